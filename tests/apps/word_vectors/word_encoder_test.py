"""Covers what compares kinds of vectors in bert_jax/apps/word_vectors/: senses, frozen features."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.apps.word_vectors.average import average_contexts
from bert_jax.apps.word_vectors.frozen_features import (
    LabeledTexts,
    classify_frozen,
    mean_features,
    mixed_logistic_regression,
)
from bert_jax.apps.word_vectors.senses import compare_senses
from bert_jax.apps.word_vectors.vectors import WordVectors, write_word_vectors
from bert_jax.apps.word_vectors.word_encoder import EncoderWords
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.model import build_network
from bert_jax.pretrained.load import LoadedModel, require_tokenizer

SENTENCES = ["The old man.", "A man mends the old net!", "By the sea, the man sings."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    words = ["the", "old", "man", "net", "good", "bad"]
    return WordVectors(words, np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32))


def test_words_of_an_encoder_are_means_of_its_hidden_states(model: LoadedModel):
    found = EncoderWords(model).embed([SENTENCES[1], "!", "", "old_man " + "the " * 30])
    assert [v.shape for v in found] == [(6, 3, 16), (0, 3, 16), (0, 3, 16), (32, 3, 16)]
    tokenizer = require_tokenizer(model)
    ids = tokenizer.build_inputs_with_special_tokens(tokenizer.encode("a man mends the old net !"))
    batch = {
        "input_ids": jnp.asarray(ids)[None],
        "token_type_ids": jnp.zeros((1, len(ids)), jnp.int32),
        "attention_mask": jnp.ones((1, len(ids)), jnp.int32),
    }
    network = build_network(model.config, ()).merge({"encoder": model.params["encoder"]})
    states = network.encode(batch, output_hidden_states=True).hidden_states
    states = np.stack([np.asarray(layer[0]) for layer in states], axis=1)
    mends = states[3:5].mean(axis=0)  # mend ##s
    np.testing.assert_allclose(found[0][2], mends, atol=1e-5)
    np.testing.assert_allclose(found[0][[0, 1, 3, 4, 5]], states[[1, 2, 5, 6, 7]], atol=1e-5)
    # The model has 20 positions; later words have zeros.
    assert found[3][:10].any(axis=(1, 2)).all() and not found[3][-10:].any()


def test_static_vectors_have_one_sense_and_an_encoder_several(
    model: LoadedModel, vectors: WordVectors
):
    static = compare_senses(vectors, "man", SENTENCES)["layers"]["static"]["cosines"]
    np.testing.assert_allclose(static, np.ones((3, 3)), atol=1e-6)
    found = compare_senses(EncoderWords(model), "man", SENTENCES)["layers"]["layer 2"]
    cosines = np.array(found["cosines"])
    np.testing.assert_allclose(cosines, cosines.T)
    assert cosines[0, 1] < 0.999 and abs(cosines[0, 0] - 1) < 1e-6
    assert found["nearest"][0] == 1 + int(cosines[0, 2] > cosines[0, 1])
    with pytest.raises(UserError, match=r"'The old man\.' does not have the word 'sea'"):
        compare_senses(vectors, "sea", SENTENCES)
    with pytest.raises(UserError, match="no vector of 'mends'"):
        compare_senses(vectors, "mends", ["A man mends.", "The old man mends."])
    with pytest.raises(UserError, match="1 sentence with 'man'; expected at least two"):
        compare_senses(vectors, "man", SENTENCES[:1])


def test_averages_over_contexts_equal_a_slow_mean(model: LoadedModel):
    encoder, texts = EncoderWords(model), [*SENTENCES, "The man and the sea."]
    settings = {"max_contexts": 3, "min_count": 2}
    found = average_contexts(encoder, texts, layer=1, **settings)
    assert set(found.words) == {"the", "man", "old", "sea"} and found.words[0] == "the"
    embedded = [encoder.embed([text])[0][:, 1] for text in texts]
    the = [embedded[0][0], embedded[1][3], embedded[2][1]]  # the first three of six
    np.testing.assert_allclose(found["the"], np.mean(the, axis=0), atol=1e-5)
    sea = [embedded[2][2], embedded[3][4]]
    np.testing.assert_allclose(found["sea"], np.mean(sea, axis=0), atol=1e-5)
    with pytest.raises(ConfigError, match=r"layer is 3, but the model has 3: layer 0, .* 0 to 2"):
        average_contexts(encoder, texts, layer=3, **settings)


def test_mean_features_leave_unknown_words_out(vectors: WordVectors):
    found = mean_features(vectors, ["The man whistles.", "nothing known"])
    np.testing.assert_allclose(found[0, 0], (vectors["the"] + vectors["man"]) / 2, rtol=1e-6)
    assert not found[1].any()


def test_the_mix_finds_the_layer_with_the_labels():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(120, 3, 4)).astype(np.float32)
    labels = ["yes" if value > 0 else "no" for value in features[:, 1, 0]]
    predicted, weights = mixed_logistic_regression(features[:80], labels[:80], features[80:])
    assert weights.argmax() == 1 and weights[1] > 0.9
    assert np.mean([a == b for a, b in zip(predicted, labels[80:], strict=True)]) >= 0.9
    # With one layer it is scikit-learn's, up to gamma, which weakens its penalty.
    one, _ = mixed_logistic_regression(features[:80, 1:2], labels[:80], features[80:, 1:2])
    scaled = (features[:, 1] - features[:80, 1].mean(0)) / features[:80, 1].std(0)
    reference = LogisticRegression(C=100.0).fit(scaled[:80], labels[:80]).predict(scaled[80:])
    assert np.mean(np.array(one) == reference) >= 0.95


def test_labels_need_two_classes(vectors: WordVectors):
    texts = LabeledTexts(["the man", "the net"], ["a", "a"])
    with pytest.raises(UserError, match="all 2 training examples have the label 'a'"):
        classify_frozen(vectors, texts, texts)


def test_the_verbs_write_a_page_and_accuracies(
    vectors: WordVectors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, page = str(tmp_path / "v.txt"), tmp_path / "man.html"
    write_word_vectors(file, vectors)
    senses = ["word-vectors", "senses", "Man", *SENTENCES, "--models", file]
    assert main([*senses, "--output", str(page)]) == 0
    assert "1   1.00   1.00   1.00   nearest" in capsys.readouterr().out
    assert "The old man." in page.read_text("utf-8")
    assert json.loads(page.with_suffix(".json").read_text())[file]["word"] == "man"
    table = tmp_path / "train.csv"
    table.write_text("text,label\ngood man,+\nbad man,-\ngood net,+\nbad net,-\n")
    classify = ["word-vectors", "classify", file, "--train", str(table), "--dev", str(table)]
    classify += ["--text", "text", "--label", "label", "--output", str(tmp_path / "found.json")]
    assert main(classify) == 0
    assert json.loads((tmp_path / "found.json").read_text())["accuracy"] == {"static": 1.0}
