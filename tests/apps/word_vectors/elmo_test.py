"""Covers ELMo in bert_jax/apps/word_vectors/: scalar mix, training, its folder."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.word_vectors.elmo import ElmoTraining, load_elmo, train_elmo
from bert_jax.apps.word_vectors.elmo_model import ElmoConfig, scalar_mix
from bert_jax.errors import ConfigError, UserError

SIZES: dict[str, Any] = {
    "character_size": 4,
    "filters": ((1, 8), (2, 8)),
    "projection_size": 8,
    "cell_size": 16,
    "max_word_length": 8,
}
SENTENCES = [["the", "bank", "lends"], ["the", "river", "bank"]] * 40


def test_the_scalar_mix_is_a_weighted_mean_times_gamma():
    layers = np.random.default_rng(1).normal(size=(4, 3, 5)).astype(np.float32)
    weights = np.array([0.3, -1.0, 2.0], np.float32)
    s = np.exp(weights) / np.exp(weights).sum()
    expected = 1.5 * (s[0] * layers[:, 0] + s[1] * layers[:, 1] + s[2] * layers[:, 2])
    found = scalar_mix(jnp.asarray(layers), jnp.asarray(weights), jnp.float32(1.5))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_training_lowers_the_loss_and_the_folder_is_read_again(tmp_path: Path):
    training = ElmoTraining(steps=30, batch_size=4, seq_length=10, min_count=1, learning_rate=0.03)
    model, losses = train_elmo(SENTENCES, training, **SIZES)
    assert losses[0] > 1.8 and losses[-1] < 1.0  # log 7 = 1.95 for seven words
    model.save(tmp_path / "elmo")
    texts = ["The river bank.", "", "the bank lends zebras"]
    vectors = model.embed(texts)
    assert [v.shape for v in vectors] == [(3, 3, 16), (0, 3, 16), (4, 3, 16)]
    again = load_elmo(tmp_path / "elmo").embed(texts)
    np.testing.assert_array_equal(vectors[2], again[2])
    # The vector of characters does not depend on the context; those of the LSTMs do.
    np.testing.assert_allclose(vectors[0][2, 0], vectors[2][1, 0], atol=1e-5)
    assert np.abs(vectors[0][2, 1:] - vectors[2][1, 1:]).max() > 0.01
    config = json.loads((tmp_path / "elmo/config.json").read_text())
    config["config"]["cell_size"] = 9
    (tmp_path / "elmo/config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model.safetensors does not fit config.json"):
        load_elmo(tmp_path / "elmo")


def test_a_short_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "text.txt"
    file.write_text("The bank lends money.\n" * 5)
    train = ["word-vectors", "train-elmo", str(file), "--output", str(tmp_path / "elmo")]
    assert main([*train, "--steps", "2"]) == 1
    assert "the corpus has 30 words with the marks of sentences" in capsys.readouterr().err
    assert main([*train, "--steps", "0"]) == 2
    with pytest.raises(ConfigError, match="expected widths up to 2"):
        ElmoConfig(vocab_size=1, num_characters=1, max_word_length=2)
