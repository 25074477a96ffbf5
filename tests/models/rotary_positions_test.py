"""Covers bert_jax/models/nomic_bert/, models/gte/ and models/jina_embeddings_v3/."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.layers.config import ComputeConfig, RotaryPositions
from bert_jax.models.layers.dropout import dropout
from bert_jax.models.model import build_network
from bert_jax.models.nomic_bert.config import NomicBertConfig
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.mark.parametrize(
    ("config", "encoder", "masked_lm"),
    [  # the counts of Hugging Face's classes
        (NomicBertConfig(), 136_731_648, 137_354_304),
        (GteConfig(), 305_368_320, 306_210_496),
        (GteConfig(vocab_size=30528, type_vocab_size=0), 136_776_192, 137_398_848),
        (JinaEmbeddingsV3Config(), 558_314_496, 559_616_146),
    ],
)
def test_parameter_counts(config, encoder, masked_lm):
    def count(*heads: str) -> int:
        abstract = build_network(config, heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    assert (count(), count("masked_lm")) == (encoder, masked_lm)


def test_kernels_are_counted_with_the_gate():
    config = NomicBertConfig()
    assert config.kernel_params_per_layer == 4 * 768 * 768 + 3 * 768 * 3072
    assert JinaEmbeddingsV3Config().kernel_params_per_layer == 12 * 1024 * 1024


def test_gated_activations_have_dropout_of_their_own():
    config = GteConfig(**SIZES, hidden_dropout_prob=0.5)
    network = build_network(config)
    model: Any = network.merge(quick_init(network.abstract(), std=0.3))
    block = model.encoder.layers[0]
    assert block.num_dropout_sites == 4
    x = jax.random.normal(jax.random.key(0), (1, 4, 16))
    seed = jnp.array([1, 2], jnp.uint32)
    plain, dropped = block.feed_forward(x), block.feed_forward(x, seed)
    # Columns of the gated activations are 0 or doubled.
    gated = jax.nn.gelu(block.feed_forward.intermediate(x), approximate=False)
    gated *= block.feed_forward.gate(x)
    assert np.any(np.abs(dropped - plain) > 1e-3)

    expected = block.feed_forward.output(dropout(gated, 0.5, seed))
    np.testing.assert_allclose(dropped, expected, atol=1e-5)


@pytest.mark.parametrize("config", [NomicBertConfig(**SIZES), GteConfig(**SIZES)])
def test_scan_and_remat_compute_the_same_with_dropout(config):
    config = dataclasses.replace(config, hidden_dropout_prob=0.2)

    def loss_and_gradients(compute):
        network = build_network(config, (), compute=compute)

        @jax.jit
        @jax.value_and_grad
        def step(params):
            encoder = network.merge(params).encoder
            ids = jnp.arange(24).reshape(2, 12)
            return jnp.sum(encoder(ids, dropout_key=jax.random.key(1)).last_hidden_state ** 3)

        return jax.device_get(step(quick_init(network.abstract())))

    loss, gradients = loss_and_gradients(ComputeConfig(layer_loop="scanned", remat="full"))
    expected_loss, expected = loss_and_gradients(ComputeConfig())
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    flat = paths.flatten(expected)
    for path, leaf in paths.flatten(gradients).items():
        np.testing.assert_allclose(leaf, flat[path], rtol=1e-3, atol=1e-4, err_msg=path)


def test_values_that_cannot_be_used_are_refused():
    with pytest.raises(ConfigError, match="heads of an odd width"):
        JinaEmbeddingsV3Config(hidden_size=18, num_attention_heads=2)
    with pytest.raises(ConfigError, match=r"model.positions.rope_theta is -1"):
        RotaryPositions(rope_theta=-1.0)
