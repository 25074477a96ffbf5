"""Covers bert_jax/models/modernbert/ and layers/: pre_norm.py, rotary.py, stack.py."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.layers.config import ComputeConfig, NoPositions
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import Span, repeating_span
from bert_jax.models.model import build_network
from bert_jax.models.modernbert.config import ModernBertConfig, alternating_layers
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init

HEADS = ("prediction_head", "masked_lm")
MODEL = ModernBertConfig(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=8,
    num_attention_heads=2,
    intermediate_size=24,
    positions=NoPositions(max_position_embeddings=64),
    local_attention=8,
    attention_probs_dropout_prob=0.1,
    attention_output_dropout=0.2,
    mlp_dropout=0.1,
)


@pytest.mark.parametrize(
    ("size", "encoder", "masked_lm"),
    [  # the counts of Hugging Face's classes; published as 149M, 395M, 17M, 32M, 68M and 1B
        ("base", 149_014_272, 149_655_232),
        ("ettin-17m", 16_797_440, 16_913_600),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("large", 394_781_696, 395_881_664),
                ("ettin-32m", 31_883_136, 32_081_344),
                ("ettin-68m", 68_144_640, 68_457_664),
                ("ettin-150m", 149_014_272, 149_655_232),
                ("ettin-400m", 394_781_696, 395_881_664),
                ("ettin-1b", 1_028_050_688, 1_031_314_112),
            )
        ),
    ],
)
def test_parameter_counts(size, encoder, masked_lm):
    def count(*heads: str) -> int:
        abstract = build_network(ModernBertConfig.from_size(size), heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    assert count() == encoder
    assert count(*HEADS) == masked_lm


def test_published_values():
    config = ModernBertConfig.from_size("base")
    assert config == ModernBertConfig()
    assert (config.vocab_size, config.max_length, config.radius) == (50368, 8192, 64)
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [
        *range(0, 22, 3)
    ]
    assert config.classifier_pooling == "mean"
    assert ModernBertConfig.from_size("ettin-1b").local_rope_theta == 160_000.0


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(22, (1, 3, 7)), (28, (1, 3, 9)), (7, (1, 3, 2)), (5, (1, 1, 2)), (1, (0, 1, 1))],
)
def test_scans_run_groups_of_layers(num_layers, expected):
    has_norm = [False] + [True] * (num_layers - 1)
    kinds = [*zip(alternating_layers(num_layers), has_norm, strict=True)]
    assert repeating_span(kinds) == Span(*expected)
    assert repeating_span([None] * num_layers) == Span(0, 1, num_layers)


def loss_and_gradients(compute):
    config = dataclasses.replace(MODEL, num_hidden_layers=7, layer_types=())
    network = build_network(config, (), compute=compute)
    ids = jax.random.randint(jax.random.key(2), (2, 24), 0, 60)

    @jax.jit
    @jax.value_and_grad
    def step(params):
        encoder = network.merge(params).encoder
        output = encoder(ids, dropout_key=jax.random.key(1), output_hidden_states=True)
        assert len(output.hidden_states) == 8
        return sum(jnp.sum(jnp.square(state)) for state in output.hidden_states)

    return jax.device_get(step(quick_init(network.abstract())))


@pytest.mark.slow
def test_scan_and_remat_compute_the_same_with_dropout():
    compute = ComputeConfig(layer_loop="scanned", remat="full")  # layer 0 is not scanned
    loss, grads = loss_and_gradients(compute)
    expected_loss, expected_grads = loss_and_gradients(ComputeConfig())
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    flat, expected = paths.flatten(grads), paths.flatten(expected_grads)
    for path, leaf in flat.items():
        assert np.any(leaf), path
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-4, atol=1e-4, err_msg=path)


def test_attention_weights_of_local_layers_stay_in_the_window():
    config = dataclasses.replace(MODEL, num_hidden_layers=3, layer_types=())
    network, ids = build_network(config), jnp.arange(40)[None] % 60

    @jax.jit
    def encode(params):
        encoder = network.merge(params).encoder
        return encoder(ids, output_attentions=True), encoder(ids).last_hidden_state

    output, without_weights = encode(quick_init(network.abstract()))
    distance = np.abs(np.arange(40)[:, None] - np.arange(40)[None])
    for kind, weights in zip(config.layer_types, output.attentions, strict=True):
        in_window = np.asarray(weights)[:, :, distance <= config.radius].sum()
        total = np.asarray(weights).sum()
        assert (in_window == pytest.approx(total)) == (kind == "sliding_attention")
    # Returning the weights computes dense attention, which must not change the result.
    np.testing.assert_allclose(output.last_hidden_state, without_weights, atol=1e-5)


def test_products_of_rotated_vectors_depend_on_the_distance_only():
    q, k = (jax.random.normal(jax.random.key(i), (1, 1, 1, 64)) for i in range(2))
    table = rotary_table(32, inverse_frequencies(64, 10_000.0), None)
    q, k = (table.rotate(jnp.broadcast_to(x, (1, 32, 1, 64))) for x in (q, k))
    products = np.einsum("BQHK,BLHK->QL", q, k)
    for distance in (0, 3, -7):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    assert abs(products[0, 3] - products[3, 0]) > 0.1


def test_mean_pooling_ignores_padding_and_feeds_the_task_head():
    head = SequenceClassificationHead(labels=("a", "b"))
    network = build_network(MODEL, (), head)
    model: Any = network.merge(quick_init(network.abstract()))
    hidden = jax.random.normal(jax.random.key(1), (2, 6, 16))
    mask = jnp.array([[1, 1, 1, 1, 0, 0], [1] * 6])
    found = model.task_logits(hidden, mask)
    means = jnp.stack([hidden[0, :4].mean(0), hidden[1].mean(0)])
    np.testing.assert_allclose(
        found, model.classifier(model.prediction_head(means)), rtol=1e-5, atol=1e-6
    )
    cached = model.sequence_vectors(hidden, mask)
    np.testing.assert_array_equal(model.task_logits(cached, jnp.ones((2, 1), jnp.int32)), found)


def test_flops_count_the_window_of_local_layers():
    config = ModernBertConfig()
    long, longer = config.encoder_flops(4096), config.encoder_flops(8192)
    assert longer - long == 8 * 4 * 768 * 4096  # 8 of 22 layers attend to all tokens
    assert config.encoder_flops(100) == config.encoder_flops(99) + 22 * 4 * 768


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 4}, "model.layer_types has 8 layers, expected .* which is 4"),
        ({"hidden_size": 18}, "heads of an odd width"),
        ({"local_attention": 1}, "model.local_attention is 1"),
        ({"mlp_dropout": 1.0}, "model.mlp_dropout is 1.0"),
        ({"global_rope_theta": 0.0}, "model.global_rope_theta"),
    ],
)
def test_configs_that_cannot_be_used_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(MODEL, **changes)
