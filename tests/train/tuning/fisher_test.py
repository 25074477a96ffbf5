"""Tests bert_jax/train/tuning/fisher.py and others.

Tests bert_jax/train/tuning/fisher.py and bert_jax/apps/studies/forgetting.py against the
objective.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.studies import forgetting
from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.objectives import Pretraining
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.objectives.make import make_objective
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, build_model
from bert_jax.train.tuning import fisher


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return Path(prepare_corpus(tmp_path_factory.mktemp("corpus") / "prepared"))


def model(prepared: Path, seed: int = 0) -> LoadedModel:
    vocabulary = PreparedCorpus(str(prepared)).tokenizer()
    config = small_config(vocab_size=vocabulary.vocab_size)
    return build_model(
        ImportedModel(random_parameters(config, seed=seed), config, vocabulary), "model"
    )


def test_same_encoder_has_forgotten_nothing(prepared):
    same = model(prepared)
    found = forgetting.measure_forgetting(same, same, prepared, num_examples=32)
    assert found["before"] == found["after"] and found["tokens"] > 50
    assert set(found["distance"].values()) == {0.0}


def test_losses_equal_the_pretraining_objective(prepared):
    before, after = model(prepared), model(prepared, seed=1)
    found = forgetting.measure_forgetting(before, after, prepared, num_examples=32)
    mixed = {**before.params, "encoder": after.params["encoder"]}
    for name, params in (("before", before.params), ("after", mixed)):
        losses, weights = _program_losses(before, params, prepared, 16, 32)
        expected = np.sum(losses) / np.sum(weights)
        assert found[name]["mlm_loss"] == pytest.approx(expected, rel=1e-5)
    kernel = "embeddings/word_embeddings/embedding"
    start, end = (paths.flatten(m.params["encoder"])[kernel] for m in (before, after))
    expected = np.linalg.norm(end - start) / np.linalg.norm(start)
    assert found["distance"][kernel] == pytest.approx(expected)
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    of_tables = [found["distance"][f"embeddings/{name}/embedding"] for name in tables]
    assert found["distance_by_depth"][0] == pytest.approx(np.mean(of_tables))
    assert len(found["distance_by_depth"]) == 1 + before.config.num_hidden_layers


def _program_losses(loaded: Any, params, prepared, batch_size, examples):
    program = make_objective(
        Pretraining(model=loaded.config, mask_token_id=loaded.tokenizer.mask_id, nsp_weight=0.0)
    )
    compute_metrics = jax.jit(
        lambda p, b: program.compute_loss(p, b, program.loss_denominators(b), None).metrics
    )
    totals, weights = [], []
    for batch in fisher._batches(loaded.config, prepared, examples, batch_size):
        batch: Any = {name: batch[name] for name in program.batch_fields()}
        metrics = compute_metrics(params, batch)
        totals.append(float(metrics["mlm_loss"].total))
        weights.append(float(metrics["mlm_loss"].weight))
    return totals, weights


def test_fisher_equals_mean_squared_gradient_per_example(prepared):
    loaded: Any = model(prepared)
    found = fisher.fisher_information(loaded, prepared, num_examples=5)
    program = make_objective(
        Pretraining(model=loaded.config, mask_token_id=loaded.tokenizer.mask_id, nsp_weight=0.0)
    )
    squares = []
    compute_gradient = jax.jit(
        jax.grad(lambda p, b: program.compute_loss(p, b, program.loss_denominators(b), None).loss)
    )
    for batch in fisher._batches(loaded.config, prepared, 5, 1):
        batch: Any = {name: batch[name] for name in program.batch_fields()}
        gradient = compute_gradient(loaded.params, batch)
        squares.append({p: np.square(g) for p, g in paths.flatten(gradient).items()})
    assert len(squares) == 5
    assert found.keys() == {path for path in squares[0] if path.startswith("encoder/")}
    for path, leaf in found.items():
        expected = np.mean([square[path] for square in squares], axis=0)
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-9)


def test_fisher_round_trips_through_its_file(prepared, tmp_path):
    found = fisher.fisher_information(model(prepared), prepared, num_examples=1)
    fisher.save_fisher(found, tmp_path / "fisher.safetensors")
    again = fisher.load_fisher(str(tmp_path / "fisher.safetensors"))
    assert all(np.array_equal(again[path], leaf) for path, leaf in found.items())
    with pytest.raises(UserError, match="write it with `bert-jax fisher`"):
        fisher.load_fisher(str(tmp_path / "none.safetensors"))


def test_incomparable_models_are_rejected(prepared):
    loaded = model(prepared)
    headless = dataclasses.replace(loaded, missing=("masked_lm",))
    with pytest.raises(UserError, match="no masked-LM head"):
        forgetting.measure_forgetting(headless, loaded, prepared)
    other = dataclasses.replace(loaded, config=small_config(num_hidden_layers=1))
    with pytest.raises(UserError, match="have different encoder configs"):
        forgetting.measure_forgetting(loaded, other, prepared)
