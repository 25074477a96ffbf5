"""Covers bert_jax/models/longformer/: sizes and counts, the global tokens of tasks, refusals."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.objectives import MultiTask, NamedHead
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RegressionHead,
    TokenClassificationHead,
)
from bert_jax.models.layers.config import (
    ComputeConfig,
    PaddingOffsetPositions,
)
from bert_jax.models.longformer.attention import (
    count_global_tokens,
    global_attention_mask,
    make_global_mask,
)
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.model import build_network
from bert_jax.models.sharding import parameter_axes
from bert_jax.params import paths
from bert_jax.train.workloads.fine_tuning import warn_of_local_tokens
from tests.helpers.quick_init import quick_init

SMALL = LongformerConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
    positions=PaddingOffsetPositions(max_position_embeddings=34), attention_window=(4, 6),
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "with_pooler"),
    [("base", 148_659_456), pytest.param("large", 434_600_960, marks=pytest.mark.slow)],
)
def test_parameter_counts(size, with_pooler):
    params = paths.flatten(build_network(LongformerConfig.from_size(size), ("pooler",)).abstract())
    assert sum(math.prod(leaf.shape) for leaf in params.values()) == with_pooler
    for path, leaf in params.items():
        assert len(parameter_axes()[path]) in (1, len(leaf.shape))


def test_published_values():
    config = LongformerConfig.from_size("base")
    assert config == LongformerConfig()
    assert (config.vocab_size, config.max_length, config.type_vocab_size) == (50265, 4096, 1)
    assert config.attention_window == (512,) * 12 and config.layer_norm_eps == 1e-5


def test_each_task_marks_its_global_tokens():
    ids = jnp.array([[0, 9, 9, 2, 2, 8, 2, 1], [0, 2, 2, 8, 8, 8, 8, 2]])
    heads = [RegressionHead(), QuestionAnsweringHead(), MultipleChoiceHead()]
    tokens: list[Any] = [SMALL.global_tokens(head) for head in heads]
    found = [global_attention_mask(each, ids).tolist() for each in tokens]
    assert found == [
        [[1, 0, 0, 0, 0, 0, 0, 0]] * 2,
        [[1, 1, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
        [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]],
    ]
    assert SMALL.global_tokens(None) is None
    assert SMALL.global_tokens(TokenClassificationHead(labels=("a", "b"))) is None


@pytest.mark.parametrize(
    "head", [RegressionHead(), QuestionAnsweringHead(), MultipleChoiceHead()], ids=str
)
def test_global_tokens_of_one_sequence_are_counted(head):
    tokens: Any = SMALL.global_tokens(head)
    ids = np.array([0, 5, 6, 7, 2, 2, 8, 9, 2])
    expected = int(global_attention_mask(tokens, jnp.asarray(ids)[None]).sum())
    assert count_global_tokens(tokens, ids) == expected


def test_questions_beyond_the_largest_number_of_global_tokens_are_reported(caplog):
    model, head = dataclasses.replace(SMALL, max_global_tokens=4), QuestionAnsweringHead()
    texts = [np.array([0, *[5] * length, 2, 2, 8, 2]) for length in (3, 4, 6)]
    warn_of_local_tokens("squad dev", model, head, texts[:1])
    assert not caplog.records
    warn_of_local_tokens("squad dev", model, head, texts)
    assert "squad dev: 2 sequences have up to 7 tokens" in caplog.text
    assert "after the first 4 have local attention; set model.max_global_tokens" in caplog.text


def test_first_token_of_every_packed_example_is_global():
    position_ids = jnp.array([[0, 1, 2, 0, 1, 0]])
    tokens: Any = SMALL.global_tokens(RegressionHead())
    marks = global_attention_mask(tokens, jnp.full((1, 6), 9), position_ids)
    mask = make_global_mask(jnp.array([[1, 1, 1, 2, 2, 0]]), False, marks, 4)
    np.testing.assert_array_equal(mask.global_positions, [[0, 3, 6, 6]])  # padding is not global
    np.testing.assert_array_equal(mask.window_segment_ids, [[-1, 1, 1, -1, 2, 0]])


def test_tokens_after_the_largest_number_of_global_ones_are_local():
    mask = make_global_mask(jnp.ones((1, 6), int), False, jnp.array([[0, 1, 1, 0, 1, 1]]), 3)
    np.testing.assert_array_equal(mask.global_positions, [[1, 2, 4]])
    np.testing.assert_array_equal(mask.window_segment_ids, [[1, -1, -1, 1, -1, 1]])


def test_attention_weights_sum_to_one_and_are_those_of_the_pattern():
    network = build_network(SMALL)
    encoder: Any = network.merge(quick_init(network.abstract())).encoder
    marks = jnp.zeros((1, 20), int).at[0, 11].set(1)
    output = encoder(jnp.full((1, 20), 5), global_attention_mask=marks, output_attentions=True)
    weights = np.asarray(output.attentions[0])
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    near = np.abs(np.arange(20)[:, None] - np.arange(20)) <= 2
    near[11] = near[:, 11] = True
    np.testing.assert_array_equal(weights[0, 0] > 0, near)


@pytest.mark.parametrize(
    "compute",
    [ComputeConfig(), pytest.param(ComputeConfig(remat="full"), marks=pytest.mark.slow)],
)
def test_every_layer_has_its_own_window(compute):
    """A change of a token reaches the sum of the radii, 2 + 3 tokens, also with remat."""
    network = build_network(SMALL, compute=compute)
    params = quick_init(network.abstract())

    def hidden(ids):
        return network.merge(params).encoder(ids).last_hidden_state[0]

    ids = jnp.full((1, 30), 5)
    difference = jnp.abs(hidden(ids) - hidden(ids.at[0, 12].set(7))).max(-1)
    assert np.flatnonzero(difference > 0).tolist() == list(range(7, 18))


def test_dropout_changes_the_output_and_its_gradients_are_finite():
    network = build_network(SMALL)
    params = quick_init(network.abstract())
    ids, marks = jnp.full((1, 30), 5), jnp.zeros((1, 30), int).at[0, 0].set(1)

    def loss(params, seed):
        encoder: Any = network.merge(params).encoder
        output = encoder(ids, global_attention_mask=marks, dropout_key=jax.random.key(seed))
        return jnp.sum(output.last_hidden_state**3)

    step = jax.jit(jax.value_and_grad(loss))
    values, grads = zip(*(step(params, seed) for seed in range(2)), strict=True)
    assert values[0] != values[1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    flat = paths.flatten(grads[0])
    assert np.abs(flat["encoder/layers/0/attention/query_global/kernel"]).max() > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_window": (4,)}, "has 1 values, expected one for each of the 2 layers"),
        ({"attention_window": (4, 5)}, "has 5 for layer 1, expected an even number"),
        ({"attention_window": (4, 34)}, "34 for layer 1, but the position table has room for 32"),
        ({"max_global_tokens": 0}, "max_global_tokens is 0, expected an integer >= 1"),
    ],
)
def test_bad_values_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **fields)


def test_scan_over_different_windows_is_refused():
    with pytest.raises(ConfigError, match="use the same window in all layers"):
        build_network(SMALL, compute=ComputeConfig(layer_loop="scanned"))


def test_causal_global_attention_is_refused():
    network = build_network(SMALL)
    encoder: Any = network.merge(quick_init(network.abstract())).encoder
    ids = jnp.full((1, 8), 5)
    with pytest.raises(ConfigError, match="cannot be causal"):
        encoder(ids, global_attention_mask=ids, causal=True)


def test_sequences_longer_than_the_positions_are_refused():
    config = dataclasses.replace(
        SMALL, positions=PaddingOffsetPositions(max_position_embeddings=514)
    )
    with pytest.raises(ConfigError, match=r"length 8192 is beyond .* room for 512 tokens"):
        jax.eval_shape(build_network(config).merge(build_network(config).init(jax.random.key(0)))
                       .encoder, jnp.zeros((1, 8192), int))  # fmt: skip


def test_tasks_with_different_global_tokens_are_not_mixed():
    heads = (
        NamedHead(name="score", head=RegressionHead()),
        NamedHead(name="tags", head=TokenClassificationHead(labels=("a", "b"))),
    )
    with pytest.raises(ConfigError, match="'score', 'tags' give global attention to different"):
        MultiTask(model=SMALL, heads=heads)
    MultiTask(model=SMALL, heads=heads[:1])


def test_flops_count_the_window_only():
    config = LongformerConfig()
    layer = 8 * 768**2 + 4 * 768 * 3072
    assert config.encoder_flops(4096) == 12 * (layer + 4 * 513 * 768)
    assert config.encoder_flops(128) == 12 * (layer + 4 * 128 * 768)
