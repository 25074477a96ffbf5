"""Covers bert_jax/models/layers/embeddings.py: initialization and length of positions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import ComputeConfig, LearnedPositions
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.params.functional import Network

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=40, init="sinusoidal"),
)


def network(config: BertConfig) -> Network[Embeddings]:
    return Network(lambda rngs: Embeddings(config, ComputeConfig(), rngs))


def table(config: BertConfig) -> np.ndarray:
    params = network(config).init(jax.random.key(0))
    return np.asarray(params["position_embeddings"]["embedding"])


def test_sinusoidal_init_has_the_variance_of_the_config():
    wide = dataclasses.replace(
        CONFIG, positions=LearnedPositions(max_position_embeddings=4000, init="sinusoidal")
    )
    assert np.sqrt(np.mean(table(wide) ** 2)) == pytest.approx(wide.initializer_range, rel=1e-4)


def test_sinusoidal_similarity_depends_only_on_distance():
    positions = table(CONFIG)
    alike = positions @ positions.T
    for distance in range(1, 39):
        diagonal = np.diagonal(alike, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-8)
    assert alike[0, 1] > alike[0, 20]


def test_sequence_longer_than_the_table_is_refused():
    made = network(CONFIG)
    params = made.init(jax.random.key(0))
    ids = jnp.zeros((1, 41), jnp.int32)
    with pytest.raises(ConfigError, match="41 is beyond the position table"):
        made.merge(params)(ids, ids, None, None)
