"""Covers bert_jax/models/electra/: published sizes, parameter counts, generators, FLOPs."""

import math

import jax
import jax.numpy as jnp
import pytest

from bert_jax.batch import ENCODER_FIELDS
from bert_jax.errors import ConfigError
from bert_jax.models.electra.config import (
    GENERATOR_FRACTIONS,
    ElectraConfig,
    ElectraSize,
    generator_config,
)
from bert_jax.models.model import build_network
from bert_jax.params import paths


def count(config: ElectraConfig, *heads: str) -> int:
    abstract = build_network(config, heads).abstract()
    return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())


@pytest.mark.parametrize(
    ("size", "encoder", "discriminator", "generator"),
    [  # the counts of Hugging Face's classes; discriminators published as 14M, 110M and 335M
        ("small", 13_483_008, 13_549_057, 13_546_682),
        ("base", 108_891_648, 109_483_009, 33_740_602),
        pytest.param("large", 334_092_288, 335_142_913, 51_295_290, marks=pytest.mark.slow),
    ],
)
def test_parameter_counts(size: ElectraSize, encoder, discriminator, generator):
    config = ElectraConfig.from_size(size)
    assert count(config) == encoder
    assert count(config, "replaced_token") == discriminator
    assert count(generator_config(config, GENERATOR_FRACTIONS[size]), "masked_lm") == generator


def test_published_values():
    assert ElectraConfig.from_size("base") == ElectraConfig()
    small = ElectraConfig.from_size("small")
    assert (small.embedding_size, small.hidden_size, small.intermediate_size) == (128, 256, 1024)
    assert (small.num_hidden_layers, small.num_attention_heads, small.max_length) == (12, 4, 512)


@pytest.mark.parametrize(
    ("size", "fraction", "expected"),
    [  # hidden size, heads, feed-forward size and embedding size of `get_generator_config`
        ("small", 0.25, (64, 1, 256, 128)),
        ("small", 1.0, (256, 4, 1024, 128)),
        ("base", 1 / 3, (256, 4, 1024, 768)),
        ("large", 0.25, (256, 4, 1024, 1024)),
        ("base", 1 / 24, (32, 1, 128, 768)),
    ],
)
def test_generator_sizes(size: ElectraSize, fraction, expected):
    config = ElectraConfig.from_size(size, vocab_size=100, max_position_embeddings=40)
    made = generator_config(config, fraction)
    assert expected == (
        made.hidden_size, made.num_attention_heads, made.intermediate_size, made.embedding_size
    )  # fmt: skip
    assert (made.num_hidden_layers, made.vocab_size) == (config.num_hidden_layers, 100)
    assert made.positions == config.positions


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_generator_wider_than_its_discriminator_is_refused(fraction):
    with pytest.raises(ConfigError, match=r"generator_fraction is .*above 0 and at most 1"):
        generator_config(ElectraConfig(), fraction)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_invalid_embedding_size_is_refused(size):
    with pytest.raises(ConfigError, match=r"embedding_size is .*, expected an integer from 1"):
        ElectraConfig(embedding_size=size)


def test_replaced_token_logits_have_one_number_per_token():
    config = ElectraConfig(
        vocab_size=20, embedding_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    network = build_network(config, ("replaced_token",))
    ids = jnp.ones((2, 5), jnp.int32)
    batch = {name: ids for name in ENCODER_FIELDS}
    params = network.abstract()
    assert params["encoder"]["embedding_projection"]["kernel"].shape == (6, 8)
    outputs = jax.eval_shape(lambda p: network.merge(p)(batch), params)
    assert outputs["replaced_token"].shape == (2, 5)
    assert outputs["replaced_token"].dtype == jnp.float32


def test_flops_include_the_projection_of_the_embeddings():
    layers = 12 * (8 * 256**2 + 4 * 256 * 1024 + 4 * 128 * 256)
    assert ElectraConfig.from_size("small").encoder_flops(128) == layers + 2 * 128 * 256
