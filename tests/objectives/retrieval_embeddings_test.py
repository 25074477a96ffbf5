"""Covers bert_jax/objectives/retrieval_embeddings.py; values are in tests/parity/."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_config
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.embedding_losses import (
    DistillKLDivLoss,
    MarginMSELoss,
    MaxSimRankingLoss,
    MultipleNegativesRankingLoss,
    SpladeLoss,
    distillation_loss,
)
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.config.train import MeshConfig
from bert_jax.errors import ConfigError
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.objectives.make import make_objective
from bert_jax.objectives.retrieval_embeddings import (
    TokenVectors,
    flops_regularization,
    late_interaction_scores,
)
from bert_jax.parallel import sharding
from tests.helpers.quick_init import quick_init

MODEL = small_config(num_hidden_layers=1)
SPLADE = SentenceEmbedding(
    model=MODEL,
    sentence_encoder=SparseEncoderConfig(),
    loss=SpladeLoss(document_regularizer_weight=0.1, query_regularizer_weight=0.2),
)
STATIC = dataclasses.replace(SPLADE, sentence_encoder=SparseEncoderConfig(has_static_queries=True))
COLBERT = SentenceEmbedding(
    model=MODEL,
    sentence_encoder=MultiVectorEncoderConfig(
        modules=(Dense(in_features=16, out_features=8, bias=False, activation=None), Normalize()),
        expansion=QueryExpansion(length=6, token_id=4),
        skip_token_ids=(17,),
    ),
    loss=MaxSimRankingLoss(),
)
CONFIGS = {
    "splade": SPLADE,
    "static": STATIC,
    "colbert": COLBERT,
    "splade distillation": dataclasses.replace(
        SPLADE, loss=SpladeLoss(distillation=DistillKLDivLoss(temperature=2.0))
    ),
    "colbert distillation": dataclasses.replace(
        COLBERT, loss=MaxSimRankingLoss(distillation=MarginMSELoss())
    ),
}
SIZE, LENGTH = 16, 8


def make_batch(config: SentenceEmbedding) -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(1), (SIZE, 3, LENGTH)
    mask = np.arange(LENGTH) < rng.integers(3, LENGTH + 1, (SIZE, 3, 1))
    mask[:, 0, 6:] = False  # queries are short
    batch = {
        "choice_input_ids": (rng.integers(5, 18, shape) * mask).astype(np.int32),
        "choice_token_type_ids": np.zeros(shape, np.int32),
        "choice_attention_mask": mask.astype(np.int32),
    }
    if distillation_loss(config.loss) is not None:
        batch["label_logits"] = rng.normal(size=(SIZE, 2)).astype(np.float32)
    if isinstance(config.loss, SpladeLoss):
        batch["regularizer_scale"] = np.full(SIZE, 0.25, np.float32)
    return batch


def value_and_gradients(config, params, batch):
    objective = make_objective(config)

    def loss(params):
        return objective.compute_loss(params, batch, objective.loss_denominators(batch), None).loss

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    """Returns a config, its parameters, and loss and gradients without chunks on one device."""
    config = CONFIGS[request.param]
    params = quick_init(make_objective(config).abstract())
    return config, params, value_and_gradients(config, params, make_batch(config))


def assert_equal(actual, expected) -> None:
    """Compares losses and gradients, each array to 3e-6 of its norm."""
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(left - right) <= 3e-6 * max(1.0, np.linalg.norm(right))


def test_gradients_with_chunks_equal_those_of_the_whole_batch(case):
    config, params, plain = case
    assert all(
        np.linalg.norm(leaf) > 0 for leaf in jax.tree.leaves(plain[1].get("sentence_head", {}))
    )
    for first_length in (None, 6):
        chunked = dataclasses.replace(config, chunk_size=4, first_text_length=first_length)
        assert_equal(value_and_gradients(chunked, params, make_batch(config)), plain)


def test_eight_devices_give_the_loss_of_one(case):
    """The negatives of a query are on all devices."""
    config, params, plain = case
    mesh = sharding.make_mesh(MeshConfig(data=4, fsdp=2))
    batch = sharding.put_batch(make_batch(config), sharding.batch_sharding(mesh))
    sharded = jax.device_put(params, sharding.parameter_shardings(params, mesh))
    with jax.set_mesh(mesh):
        assert_equal(value_and_gradients(config, sharded, batch), plain)


def test_flops_is_the_sum_of_squared_mean_weights():
    vectors = jnp.array([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]], jnp.float32)
    assert float(flops_regularization(vectors)) == pytest.approx(2.0**2 + 1.0**2)


def test_positives_come_before_the_negatives_of_all_examples():
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2, 5, 4))
    have = np.arange(5) < rng.integers(1, 6, (3, 2, 1))
    vectors = TokenVectors(
        jnp.asarray(queries, jnp.float32),
        jnp.ones((3, 2), bool),
        jnp.asarray(documents, jnp.float32),
        jnp.asarray(have),
    )
    scores = np.asarray(late_interaction_scores(vectors, is_mean=False))
    for query in range(3):
        for column in range(6):
            text, example = divmod(column, 3)
            of_text = documents[example, text][have[example, text]]
            expected = (queries[query] @ of_text.T).max(axis=1).sum()
            assert scores[query, column] == pytest.approx(expected, rel=1e-5)


def test_configs_are_read_back_and_checked():
    for config in CONFIGS.values():
        assert from_json(SentenceEmbedding, to_json(config)) == config
    for changes, message in (
        ({"loss": MaxSimRankingLoss()}, "MaxSimRankingLoss, which needs a MultiVectorEncoderConf"),
        ({"loss": MultipleNegativesRankingLoss()}, "needs a SentenceEncoderConfig, but object"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(SPLADE, **changes)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"scale": 0.0}, "scale is 0.0"),
        ({"query_regularizer_weight": -1.0}, "query_regularizer_weight is -1.0"),
        ({"regularizer_warmup_ratio": 2.0}, "regularizer_warmup_ratio is 2.0"),
    ]
    for changes, message in wrong:
        with pytest.raises(ConfigError, match=message):
            SpladeLoss(**changes)
    for name in ("splade", "splade distillation"):  # its regularization reads the whole batch
        with pytest.raises(ConfigError, match=r"compares each example.*objective.chunk_size"):
            CONFIGS[name].check_batch(SIZE, 2)
    CONFIGS["colbert distillation"].check_batch(SIZE, 2)
