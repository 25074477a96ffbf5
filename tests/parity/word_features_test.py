"""Compares features of words with the hidden states of Hugging Face's models."""

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.apps.treebanks.word_features import (
    encode_words,
    fitting_sentences,
    with_random_parameters,
)
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.pretrained.load import load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# "mends" and "mended" have two tokens each.
SENTENCES = [("the", "old", "man", "mends", "a", "net", "."), ("mended",), ("the", "sea", "mended")]


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_words_have_the_hidden_states_of_their_tokens(tmp_path, pooling):
    export(small_model(tmp_path / "vocabulary", initializer_range=0.2), tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    reference = transformers.AutoModel.from_pretrained(tmp_path / "model").eval()
    expected = []
    for sentence in SENTENCES:
        encoding = tokenizer([list(sentence)], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            hidden = torch.stack(reference(**encoding, output_hidden_states=True).hidden_states)
        word_ids = encoding.word_ids()
        for word in range(len(sentence)):
            tokens = [i for i, each in enumerate(word_ids) if each == word]
            tokens = tokens[:1] if pooling == "first" else tokens
            expected.append(hidden[:, 0, tokens].mean(1).numpy())
    model = load_encoder(tmp_path / "model")
    found = encode_words(model, SENTENCES, pooling=pooling, cache=None)
    assert found.layers == ("0", "1", "2") and found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, np.stack(expected, 1), atol=1e-5)
    cached = encode_words(model, SENTENCES, pooling=pooling, cache=tmp_path / "cache")
    np.testing.assert_array_equal(cached.values, found.values)
    # The second call reads the file.
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    again = encode_words(model, SENTENCES, pooling=pooling, cache=tmp_path / "cache")
    assert again.values[-1, -1, -1] == 0 != found.values[-1, -1, -1]


def test_other_models_and_sentences_have_other_files(tmp_path):
    model = small_model(tmp_path / "vocabulary")
    for each in (model, with_random_parameters(model, 0), with_random_parameters(model, 1)):
        for sentences in (SENTENCES, SENTENCES[1:]):
            encode_words(each, sentences, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 6


def test_sentences_that_are_too_long(tmp_path):
    model = small_model(tmp_path / "vocabulary")
    sentences = [*SENTENCES, ("the",) * 19]
    assert fitting_sentences(model, sentences) == [0, 1, 2]
    with pytest.raises(UserError, match="21 tokens with special tokens, but small model reads 20"):
        encode_words(model, sentences, cache=None)
