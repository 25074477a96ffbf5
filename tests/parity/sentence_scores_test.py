"""Compares scores of sentences with loops over Hugging Face's models, from the definitions."""

from typing import Any

import numpy as np
import pytest

from bert_jax.apps.sentence_scores.scorer import Masking, SentenceScorer
from bert_jax.apps.testing.models import WORDS, small_model, word_tokenizer, write_run
from bert_jax.config.objectives import CausalLM
from bert_jax.export.export import export
from bert_jax.interop.seq2seq import read_seq2seq_folder
from bert_jax.pretrained.load import load_model
from bert_jax.pretrained.seq2seq import build_seq2seq
from tests.helpers.families import FAMILIES
from tests.helpers.seq2seq_parity import BART_SMALL, T5_SMALL, torch_bart, torch_t5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# "mends" and "mended" are words of two tokens.
TEXTS = ["The old man mends a net.", "mended nets", "the sea sings and sings by the sea", "", "old"]


def log_softmax(logits: Any) -> np.ndarray:
    return torch.log_softmax(logits.double(), -1).numpy()


def masked_log_probabilities(model: Any, ids: list[int], words: Any, masking: Masking) -> list:
    """Masks one token after the other; with `words`, later tokens of its word as well."""
    found = []
    for index, token in enumerate(ids[1:-1], 1):
        same_word = [j for j in range(index + 1, len(ids) - 1) if words[j - 1] == words[index - 1]]
        hidden = [index, *(same_word if masking == "within_word_l2r" else [])]
        masked = [4 if j in hidden else other for j, other in enumerate(ids)]
        with torch.no_grad():
            logits = model(torch.tensor([masked])).logits[0, index]
        found.append(log_softmax(logits)[token])
    return found


@pytest.mark.parametrize("masking", ["original", "within_word_l2r"])
def test_pseudo_log_likelihood(tmp_path, masking):
    export(small_model(tmp_path / "vocabulary", initializer_range=0.2), tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    score = SentenceScorer(load_model(tmp_path / "model"), masking=masking)
    found = score(TEXTS)
    for text, each in zip(TEXTS, found, strict=True):
        encoding = tokenizer(text)
        words = encoding.word_ids()[1:-1]
        expected = masked_log_probabilities(model, encoding.input_ids, words, masking)
        np.testing.assert_allclose(each.log_probabilities, expected, atol=1e-5)
        assert each.tokens == tokenizer.tokenize(text)
        assert each.log_probability == pytest.approx(sum(expected), abs=1e-4)
    assert score(TEXTS[0]).log_probability == pytest.approx(found[0].log_probability, abs=1e-5)


def test_maskings_differ_within_words_only(tmp_path):
    model = small_model(tmp_path, initializer_range=0.2)
    original, within_word = (
        SentenceScorer(model, masking=masking)("the man mends")
        for masking in ("original", "within_word_l2r")
    )
    difference = np.abs(original.log_probabilities - within_word.log_probabilities)
    assert original.tokens == ["the", "man", "mend", "##s"]
    assert difference[2] > 1e-3 and np.delete(difference, 2).max() < 1e-6


def test_discriminator_of_electra(tmp_path):
    family = FAMILIES["electra"]
    config = family.small
    tokenizer = word_tokenizer(tmp_path / "vocabulary", [*WORDS, *map(str, range(85))])
    torch_model = family.torch_model(config, "ForPreTraining").eval()
    torch_model.save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    score = SentenceScorer(load_model(tmp_path / "model"))
    for text in TEXTS[:3]:
        ids = tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text)).tolist()
        with torch.no_grad():
            logits = torch_model(torch.tensor([ids])).logits[0]
        expected = torch.nn.functional.logsigmoid(-logits)[1:-1].numpy()
        np.testing.assert_allclose(score(text).log_probabilities, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_log_likelihood_of_encoder_decoders(tmp_path, family):
    config, torch_model = (
        (T5_SMALL, torch_t5(T5_SMALL)) if family == "t5" else (BART_SMALL, torch_bart(BART_SMALL))
    )
    torch_model.eval().save_pretrained(tmp_path / "torch")
    tokenizer = word_tokenizer(tmp_path / "vocabulary", [*WORDS, *map(str, range(85))])
    model = build_seq2seq(read_seq2seq_folder(tmp_path / "torch"), tokenizer, "seq2seq")
    score = SentenceScorer(model)
    source = tokenizer.build_inputs_with_special_tokens([])
    for text, found in zip(TEXTS, score(TEXTS), strict=True):
        ids = tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text))
        with torch.no_grad():
            logits = torch_model(
                torch.tensor(source[None]).long(), labels=torch.tensor(ids[None]).long()
            ).logits[0]
        expected = log_softmax(logits[:, : tokenizer.vocab_size])[np.arange(len(ids)), ids]
        np.testing.assert_allclose(found.log_probabilities, expected[1:-1], atol=2e-5)
        assert config.vocab_size >= tokenizer.vocab_size


def test_log_likelihood_of_a_left_to_right_run(tmp_path):
    made = small_model(tmp_path / "vocabulary", initializer_range=0.2)
    export(made, tmp_path / "exported")
    run = write_run(tmp_path / "run", made, objective=CausalLM(model=made.config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.BertLMHeadModel.from_pretrained(tmp_path / "exported", is_decoder=True)
    for found in SentenceScorer(load_model(run))(TEXTS):
        ids = tokenizer(found.text, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model.eval()(ids).logits[0]
        expected = log_softmax(logits[:-1])[np.arange(ids.shape[1] - 1), ids[0, 1:]][:-1]
        np.testing.assert_allclose(found.log_probabilities, expected, atol=1e-5)
