"""Covers bert_jax/models/albert/: sizes and counts, groups, layer loops, FLOPs, refusals."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.config import (
    ComputeConfig,
    LearnedPositions,
)
from bert_jax.models.model import build_network
from bert_jax.models.sharding import parameter_axes
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init

SMALL = AlbertConfig(
    vocab_size=60,
    embedding_size=12,
    hidden_size=32,
    num_hidden_layers=3,
    num_hidden_groups=2,
    inner_group_num=2,
    num_attention_heads=4,
    intermediate_size=48,
    positions=LearnedPositions(max_position_embeddings=32),
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("size", "with_pooler"),
    [  # published as 12M, 18M, 60M and 235M
        ("base", 11_683_584),
        ("large", 17_683_968),
        ("xlarge", 58_724_864),
        ("xxlarge", 222_595_584),
    ],
)
def test_parameter_counts(size, version, with_pooler):
    config = AlbertConfig.from_size(size, version)

    def count(*heads: str) -> int:
        abstract = build_network(config, heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    D, E, V = config.hidden_size, config.embedding_size, config.vocab_size
    masked_lm, sentence_order = D * E + E + 2 * E + V, 2 * D + 2
    assert count("pooler") == with_pooler
    assert count(*config.pretraining_heads) == with_pooler + masked_lm + sentence_order
    if size == "base":
        assert count(*config.pretraining_heads) == 11_813_810


def test_published_values():
    base = AlbertConfig.from_size("base")
    assert base == AlbertConfig()
    assert (base.vocab_size, base.embedding_size, base.max_length) == (30000, 128, 512)
    assert base.hidden_act == "gelu_tanh" and base.hidden_dropout_prob == 0.0
    first = AlbertConfig.from_size("base", "v1")
    assert first.hidden_act == "gelu" and first.attention_probs_dropout_prob == 0.1
    assert AlbertConfig.from_size("xxlarge", "v1").hidden_dropout_prob == 0.0


def test_more_groups_than_layers_are_refused():
    with pytest.raises(ConfigError, match=r"num_hidden_groups is 4, but .* only 3 layers"):
        dataclasses.replace(SMALL, num_hidden_groups=4)
    with pytest.raises(ConfigError, match=r"model.embedding_size is 0"):
        dataclasses.replace(SMALL, embedding_size=0)


def test_group_applications_are_those_of_hugging_face():
    assert SMALL.group_applications() == [2, 1]
    for layers in range(1, 14):
        for groups in range(1, layers + 1):
            config = dataclasses.replace(SMALL, num_hidden_layers=layers, num_hidden_groups=groups)
            # `AlbertTransformer.forward` of transformers
            expected = [int(i / (layers / groups)) for i in range(layers)]
            counts = config.group_applications()
            assert [g for g, count in enumerate(counts) for _ in range(count)] == expected
            assert min(counts) >= 1


SCANNED = ComputeConfig(layer_loop="scanned", remat="full")
IDS = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)


def test_scanned_and_unrolled_layers_are_equal_with_dropout():
    config = dataclasses.replace(SMALL, num_hidden_layers=2, num_hidden_groups=1)
    params = quick_init(build_network(config).abstract())

    def output(compute: ComputeConfig) -> EncoderOutput:
        encode = jax.jit(
            lambda params: build_network(config, compute=compute).merge(params).encoder(
                IDS, dropout_key=jax.random.key(1), output_hidden_states=True,
                output_attentions=True,
            )
        )  # fmt: skip
        return encode(params)

    expected = output(ComputeConfig())
    assert len(expected.hidden_states) == 5 and len(expected.attentions) == 4
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), output(SCANNED), expected
    )


@pytest.mark.slow  # tests/parity/albert_training_test.py takes the steps of PyTorch
def test_gradients_are_summed_over_applications():
    config = dataclasses.replace(SMALL, inner_group_num=1)
    params = quick_init(build_network(config).abstract())

    def gradient(compute: ComputeConfig) -> dict[str, np.ndarray]:
        def total(params):
            encoder = build_network(config, compute=compute).merge(params).encoder
            return jnp.sum(encoder(IDS).last_hidden_state[..., :4] ** 3)

        return paths.flatten(jax.device_get(jax.jit(jax.grad(total))(params)))

    expected, found = gradient(ComputeConfig()), gradient(SCANNED)
    for path, leaf in expected.items():
        np.testing.assert_allclose(found[path], leaf, atol=1e-4, rtol=1e-4, err_msg=path)
        assert leaf.any(), path


def test_scan_compiles_one_application_of_each_group():
    config = AlbertConfig.from_size("base")

    def num_products(layers: int, compute: ComputeConfig) -> int:
        network = build_network(
            dataclasses.replace(config, num_hidden_layers=layers), compute=compute
        )
        jaxpr = jax.make_jaxpr(lambda p, ids: network.merge(p).encoder(ids).last_hidden_state)(
            network.abstract(), jax.ShapeDtypeStruct((2, 16), jnp.int32)
        )
        return str(jaxpr).count("dot_general")

    scanned = ComputeConfig(layer_loop="scanned")
    assert num_products(12, scanned) == num_products(3, scanned) == num_products(1, scanned)
    assert num_products(12, ComputeConfig()) > num_products(3, ComputeConfig())


def test_flops_grow_with_the_layers_applied():
    base = AlbertConfig()
    layer = 8 * 768**2 + 4 * 768 * 3072 + 4 * 512 * 768
    assert base.encoder_flops(512) == 12 * layer + 2 * 128 * 768
    twice = dataclasses.replace(base, inner_group_num=2)
    assert twice.encoder_flops(512) == 24 * layer + 2 * 128 * 768


def test_every_parameter_has_sharding_axes():
    objective = Pretraining(model=SMALL, mask_token_id=4, nsp_weight=0.0, sop_weight=1.0)
    for path, leaf in paths.flatten(PretrainingObjective(objective).abstract()).items():
        assert len(parameter_axes()[path]) == len(leaf.shape), path
