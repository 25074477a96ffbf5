"""Covers bert_jax/models/roberta/: published sizes and parameter counts, positions, refusals."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError
from bert_jax.models.layers.config import PaddingOffsetPositions
from bert_jax.models.layers.embeddings import padding_offset_positions
from bert_jax.models.model import build_network
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init


@pytest.mark.parametrize(
    ("size", "encoder", "pooler", "masked_lm"),
    [  # the counts of Hugging Face's classes; published as 82M, 125M and 355M
        ("distil", 81_527_808, 82_118_400, 82_170_201),
        ("base", 124_055_040, 124_645_632, 124_697_433),
        pytest.param("large", 354_310_144, 355_359_744, 355_412_057, marks=pytest.mark.slow),
    ],
)
def test_parameter_counts(size, encoder, pooler, masked_lm):
    def count(*heads: str) -> int:
        abstract = build_network(RobertaConfig.from_size(size), heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    assert count() == encoder
    assert count("pooler") == pooler
    assert count("masked_lm") == masked_lm


def test_published_values():
    config = RobertaConfig.from_size("base")
    assert config == RobertaConfig()
    assert (config.vocab_size, config.max_length, config.type_vocab_size) == (50265, 512, 1)
    assert config.layer_norm_eps == 1e-5 and config.positions.max_position_embeddings == 514


def test_positions_count_from_the_padding_id():
    ids = jnp.array([[0, 9, 8, 2, 1, 1], [1, 1, 0, 9, 1, 2]])
    found = padding_offset_positions(ids, None, PaddingOffsetPositions())
    np.testing.assert_array_equal(found, [[2, 3, 4, 5, 1, 1], [1, 1, 2, 3, 1, 4]])


def test_positions_restart_in_each_packed_example():
    ids = jnp.array([[0, 9, 2, 0, 8, 7, 2, 1]])
    position_ids = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0]])
    found = padding_offset_positions(ids, position_ids, PaddingOffsetPositions())
    np.testing.assert_array_equal(found, [[2, 3, 4, 2, 3, 4, 5, 1]])


def test_sequences_longer_than_the_positions_are_refused():
    config = RobertaConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, positions=PaddingOffsetPositions(max_position_embeddings=10),
    )  # fmt: skip
    network = build_network(config)
    params = quick_init(network.abstract())
    network.merge(params).encoder(jnp.full((1, 8), 5))
    with pytest.raises(ConfigError, match=r"length 9 is beyond .* room for 8 tokens"):
        network.merge(params).encoder(jnp.full((1, 9), 5))


def test_next_sentence_prediction_is_refused():
    with pytest.raises(ConfigError, match="RoBERTa is pretrained without next-sentence"):
        Pretraining(model=RobertaConfig(), mask_token_id=50264)


def test_flops_are_those_of_bert_layers():
    assert RobertaConfig().encoder_flops(512) == 12 * (8 * 768**2 + 4 * 768 * 3072 + 4 * 512 * 768)
