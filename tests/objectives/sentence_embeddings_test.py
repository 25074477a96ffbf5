"""Covers bert_jax/objectives/sentence_embeddings.py and config.py."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_config
from bert_jax.batch import PACKED_TOKENS
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.embedding_losses import (
    AdaptiveLayerLoss,
    AnglELoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DistillKLDivLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    SoftmaxLoss,
    TripletLoss,
    UnsupervisedSimCSE,
)
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.config.train import MeshConfig
from bert_jax.data.sentence_embeddings.packed_rows import packed_tokens, rows_per_part
from bert_jax.errors import ConfigError
from bert_jax.models.sentence_encoder.config import Dense, SentenceEncoderConfig
from bert_jax.objectives.sentence_embeddings import SentenceEmbeddingObjective
from bert_jax.parallel import sharding
from tests.helpers.quick_init import quick_init

CONFIG = SentenceEmbedding(
    model=small_config(num_hidden_layers=1),
    sentence_encoder=SentenceEncoderConfig(modules=(Dense(in_features=16, out_features=8),)),
    # The scale keeps gradients below 1, so that 1e-6 is about the precision of float32.
    loss=MultipleNegativesRankingLoss(scale=1.0),
)
SIZE, LENGTH = 16, 8


def make_batch(num_texts: int) -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(1), (SIZE, num_texts, LENGTH)
    mask = np.arange(LENGTH) < rng.integers(3, LENGTH + 1, (SIZE, num_texts, 1))
    return {
        "choice_input_ids": (rng.integers(5, 18, shape) * mask).astype(np.int32),
        "choice_token_type_ids": np.zeros(shape, np.int32),
        "choice_attention_mask": mask.astype(np.int32),
    }


def value_and_gradients(objective, params, batch, key=None):
    def loss(params):
        return objective.compute_loss(params, batch, objective.loss_denominators(batch), key).loss

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.fixture(scope="module")
def params():
    """Parameters of `CONFIG`."""
    return quick_init(SentenceEmbeddingObjective(CONFIG).abstract())


@pytest.fixture(scope="module")
def plain(params):
    """Loss and gradients of triples without chunks and without dropout."""
    return value_and_gradients(SentenceEmbeddingObjective(CONFIG), params, make_batch(3))


def assert_equal(actual, expected) -> None:
    """Compares losses and gradients, each array to 3e-6 of its norm.

    Sums in another order differ by up to 1.3e-6 with the float32 products of some processors.
    """
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(left - right) <= 3e-6 * max(1.0, np.linalg.norm(right))


def test_gradients_with_chunks_equal_those_of_the_whole_batch(params, plain):
    chunked = SentenceEmbeddingObjective(dataclasses.replace(CONFIG, chunk_size=4))
    assert_equal(value_and_gradients(chunked, params, make_batch(3)), plain)


@pytest.mark.slow
def test_chunks_repeat_their_dropout_in_the_backward_pass(params, plain):
    """Compares with a loop over chunks that computes nothing again."""
    chunked = SentenceEmbeddingObjective(dataclasses.replace(CONFIG, chunk_size=8))
    one_chunk, batch, key = SentenceEmbeddingObjective(CONFIG), make_batch(3), jax.random.key(3)

    class Loop(SentenceEmbeddingObjective):
        def example_vectors(self, params, batch, dropout_key):
            assert dropout_key is not None
            keys = jax.random.split(dropout_key, 2)
            parts = [
                one_chunk.example_vectors(params, {n: a[i::2] for n, a in batch.items()}, keys[i])
                for i in range(2)
            ]
            return jax.numpy.stack(parts, axis=1).reshape(SIZE, 3, -1)

    actual = value_and_gradients(chunked, params, batch, key)
    assert_equal(actual, value_and_gradients(Loop(CONFIG), params, batch, key))
    assert abs(float(actual[0]) - float(plain[0])) > 1e-3


# Name -> (loss of triples or pairs, texts of an example, its targets).
WITH_TARGETS = {
    "gist": (
        GISTEmbedLoss(guide="g", temperature=1.0),
        3,
        {"guide_vectors": np.random.default_rng(2).normal(size=(SIZE, 3, 5)).astype(np.float32)},
    ),
    "angle": (
        AnglELoss(scale=1.0),
        2,
        {"label_values": (np.arange(SIZE) % 3 / 2).astype(np.float32)},
    ),
    "layers": (
        AdaptiveLayerLoss(
            loss=MatryoshkaLoss(loss=MultipleNegativesRankingLoss(scale=1.0), dims=(8, 4))
        ),
        3,
        {},
    ),
    "distill-kl": (
        DistillKLDivLoss(),
        3,
        {"label_logits": np.random.default_rng(2).normal(size=(SIZE, 2)).astype(np.float32)},
    ),
}


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_chunks_on_eight_devices_give_the_loss_of_one(params, name):
    loss, num_texts, targets = WITH_TARGETS[name]
    config, batch = dataclasses.replace(CONFIG, loss=loss), make_batch(num_texts) | targets
    expected = value_and_gradients(SentenceEmbeddingObjective(config), params, batch)
    chunked = SentenceEmbeddingObjective(dataclasses.replace(config, chunk_size=8))
    mesh = sharding.make_mesh(MeshConfig(data=4, fsdp=2))
    sharded = jax.device_put(params, sharding.parameter_shardings(params, mesh))
    with jax.set_mesh(mesh):
        shards = sharding.put_batch(batch, sharding.batch_sharding(mesh))
        assert_equal(value_and_gradients(chunked, sharded, shards), expected)


@pytest.mark.parametrize("name", [None, "gist", "layers"])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_short_first_texts_are_encoded_at_their_own_length(params, name, chunk_size):
    loss, num_texts, targets = WITH_TARGETS.get(name, (CONFIG.loss, 2, {}))
    config, batch = dataclasses.replace(CONFIG, loss=loss), make_batch(num_texts) | targets
    for array in batch.values():
        if array.ndim == 3 and array.shape[-1] == LENGTH:
            array[:, 0, 5:] = 0
    plain = SentenceEmbeddingObjective(config)
    short = SentenceEmbeddingObjective(
        dataclasses.replace(config, first_text_length=5, chunk_size=chunk_size)
    )
    expected = value_and_gradients(plain, params, batch)
    assert_equal(value_and_gradients(short, params, batch), expected)
    metrics = short.compute_loss(params, batch, short.loss_denominators(batch), None).metrics
    num_tokens, positions = batch["choice_attention_mask"].sum(), 5 + (num_texts - 1) * LENGTH
    total, weight = metrics["padding_fraction"]
    assert (float(total), float(weight)) == (SIZE * positions - num_tokens, SIZE * positions)


def test_short_first_texts_have_dropout(params):
    config = dataclasses.replace(CONFIG, first_text_length=5)
    objective, batch = SentenceEmbeddingObjective(config), jax.device_put(make_batch(2))
    first, second = (
        np.asarray(objective.example_vectors(params, batch, jax.random.key(seed)))
        for seed in (0, 1)
    )
    assert (np.abs(first - second).max(axis=-1) > 1e-4).all()


def pack(batch, num_parts: int = 1, num_rows: int | None = None) -> dict[str, np.ndarray]:
    """Adds the rows of packed texts to a batch; by default, as few as are needed."""
    lengths = batch["choice_attention_mask"].sum(axis=-1)
    if num_rows is None:
        num_rows = num_parts * rows_per_part(lengths, LENGTH, 1, num_parts)
    return {**batch, PACKED_TOKENS: packed_tokens(lengths, (num_rows, LENGTH), 1, num_parts)}


@pytest.mark.parametrize("name", [None, "gist", "layers"])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_packed_texts_give_the_loss_of_padded_ones(params, name, chunk_size):
    loss, num_texts, targets = WITH_TARGETS.get(name, (CONFIG.loss, 2, {}))
    config, batch = dataclasses.replace(CONFIG, loss=loss), make_batch(num_texts) | targets
    expected = value_and_gradients(SentenceEmbeddingObjective(config), params, batch)
    objective = SentenceEmbeddingObjective(dataclasses.replace(config, chunk_size=chunk_size))
    packed = pack(batch, 1 if chunk_size is None else SIZE // chunk_size)
    assert_equal(value_and_gradients(objective, params, packed), expected)
    arrays = jax.device_put(packed)
    metrics = objective.compute_loss(
        params, arrays, objective.loss_denominators(arrays), None
    ).metrics
    num_tokens, positions = batch["choice_attention_mask"].sum(), packed[PACKED_TOKENS].size
    total, weight = metrics["padding_fraction"]
    assert positions < SIZE * num_texts * LENGTH
    assert (float(total), float(weight)) == (positions - num_tokens, positions)


def test_packed_texts_on_eight_devices_give_the_loss_of_one(params, plain):
    """A text may be on another device than its row."""
    mesh, objective = sharding.make_mesh(MeshConfig(data=4, fsdp=2)), SentenceEmbeddingObjective
    packed = pack(make_batch(3), num_rows=40)
    batch = sharding.put_batch(packed, sharding.batch_sharding(mesh))
    sharded = jax.device_put(params, sharding.parameter_shardings(params, mesh))
    with jax.set_mesh(mesh):
        assert_equal(value_and_gradients(objective(CONFIG), sharded, batch), plain)


def test_packed_texts_have_dropout(params):
    objective, batch = SentenceEmbeddingObjective(CONFIG), jax.device_put(pack(make_batch(2)))
    first, second = (
        np.asarray(objective.example_vectors(params, batch, jax.random.key(seed)))
        for seed in (0, 1)
    )
    assert (np.abs(first - second).max(axis=-1) > 1e-4).all()


@pytest.mark.parametrize("chunk_size", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_eight_devices_give_the_loss_of_one(params, plain, chunk_size):
    """The negatives of a query are on all devices."""
    mesh = sharding.make_mesh(MeshConfig(data=4, fsdp=2))
    objective = SentenceEmbeddingObjective(dataclasses.replace(CONFIG, chunk_size=chunk_size))
    batch = sharding.put_batch(make_batch(3), sharding.batch_sharding(mesh))
    sharded = jax.device_put(params, sharding.parameter_shardings(params, mesh))
    with jax.set_mesh(mesh):
        assert_equal(value_and_gradients(objective, sharded, batch), plain)


def test_two_views_of_a_text_differ_by_dropout(params):
    batch = make_batch(1)
    views = {name: np.repeat(array, 2, axis=1) for name, array in batch.items()}
    objective = SentenceEmbeddingObjective(dataclasses.replace(CONFIG, loss=UnsupervisedSimCSE()))
    vectors = np.asarray(jax.jit(objective.example_vectors)(params, views, jax.random.key(0)))
    distances = np.linalg.norm(vectors[:, 0] - vectors[:, 1], axis=-1)
    assert vectors.shape == (SIZE, 2, 8)
    assert (distances > 1e-3).all()


def test_mlp_of_simcse_is_read_by_the_loss_and_not_by_vectors():
    loss = UnsupervisedSimCSE(mlp_only_train=True)
    objective = SentenceEmbeddingObjective(dataclasses.replace(CONFIG, loss=loss))
    params = objective.init(jax.random.key(0))
    assert jax.eval_shape(lambda: params) == objective.abstract()
    layer = params["simcse_mlp"]
    layer["kernel"] = 30 * layer["kernel"]  # so that the tanh is not almost linear
    batch = make_batch(2)
    value, gradients = value_and_gradients(objective, params, batch)
    vectors = np.asarray(jax.jit(objective.example_vectors)(params, batch, None))
    unit = np.tanh(vectors @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    logits = unit[:, 0] @ unit[:, 1].T / loss.temperature
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - np.diag(logits))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients["simcse_mlp"]))


def test_softmax_classifier_is_trained_with_the_encoder():
    objective = SentenceEmbeddingObjective(
        dataclasses.replace(CONFIG, loss=SoftmaxLoss(labels=("no", "maybe", "yes")))
    )
    params = objective.init(jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), objective.abstract())
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)
    batch = make_batch(2) | {"labels": np.arange(SIZE, dtype=np.int32) % 3}
    _, gradients = value_and_gradients(objective, params, batch)
    assert gradients["softmax_classifier"]["kernel"].shape == (24, 3)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients["sentence_head"]))


def test_config_round_trips_through_json():
    loss = MatryoshkaLoss(loss=CoSENTLoss(scale=10.0), dims=(8, 4), weights=(1.0, 0.5))
    for each in (loss, AdaptiveLayerLoss(loss=loss), AdaptiveLayerLoss(loss=CoSENTLoss())):
        config = dataclasses.replace(CONFIG, loss=each, chunk_size=4)
        assert from_json(SentenceEmbedding, to_json(config), "objective") == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": MatryoshkaLoss(loss=CoSENTLoss(), dims=(9,))}, "vectors have 8 components"),
        ({"chunk_size": 0}, "objective.chunk_size is 0"),
    ],
)
def test_errors_of_configs(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **fields)


def test_errors_of_losses():
    with pytest.raises(ConfigError, match=r"objective.loss.scale is 0, expected a number > 0"):
        CoSENTLoss(scale=0)
    distill: Any = {"teacher": "t", "distance": "l2"}
    with pytest.raises(ConfigError, match="distance is 'l2'; expected one of cosine, mse"):
        EmbedDistillLoss(**distill)
    with pytest.raises(ConfigError, match=r"several sizes .* have no common layer"):
        MatryoshkaLoss(loss=EmbedDistillLoss(teacher="t", projection_size=4), dims=(4, 2))
    with pytest.raises(ConfigError, match=r"kl_temperature is 0.0, expected a number > 0"):
        AdaptiveLayerLoss(loss=CoSENTLoss(), kl_temperature=0.0)
    with pytest.raises(ConfigError, match=r"margin"):
        GISTEmbedLoss(guide="g", margin=3.0)
    with pytest.raises(ConfigError, match="expected at least two different names"):
        SoftmaxLoss(labels=("a",))
    with pytest.raises(ConfigError, match="one for each"):
        MatryoshkaLoss(loss=CosineSimilarityLoss(), dims=(4, 2), weights=(1.0,))


def test_losses_that_compare_examples_refuse_microbatches():
    with pytest.raises(ConfigError, match=r"compares each example.*objective.chunk_size"):
        CONFIG.check_batch(SIZE, 2)
    with pytest.raises(ConfigError, match="does not divide the batch_size 16"):
        dataclasses.replace(CONFIG, chunk_size=5).check_batch(SIZE, 1)
    dataclasses.replace(CONFIG, loss=TripletLoss()).check_batch(SIZE, 2)
