"""Covers bert_jax/models/bert/: sizes, masks, packing, layer loops, precision, hidden states."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import Pretraining
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import ComputeConfig, LearnedPositions
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init

V = 60
MODEL = BertConfig(
    vocab_size=V,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    positions=LearnedPositions(max_position_embeddings=48),
)


def program(**changes) -> PretrainingObjective:
    return PretrainingObjective(Pretraining(model=MODEL, mask_token_id=4, **changes))


@functools.cache
def parameters():
    return quick_init(program().abstract())


def on_device(batch):
    return {name: jnp.asarray(field) for name, field in batch.items()}


@pytest.mark.parametrize(
    ("size", "published"),
    [
        ("tiny", 4.4e6),  # Turc et al. 2019, table of the release
        ("mini", 11.3e6),
        ("small", 29.1e6),
        ("medium", 41.7e6),
        ("base", 110e6),  # Devlin et al. 2019, section 3
        ("large", 335e6),
    ],
)
def test_parameter_counts(size, published):
    config = BertConfig.from_size(size)
    D, F, N = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    embeddings = (30522 + 512 + 2) * D + 2 * D
    layer = 4 * (D * D + D) + 2 * D * F + F + D + 4 * D
    pooler, heads = D * D + D, (D * D + D) + 2 * D + 30522 + 2 * D + 2
    made = paths.flatten(
        PretrainingObjective(Pretraining(model=config, mask_token_id=103)).abstract()
    )
    counted = sum(math.prod(leaf.shape) for leaf in made.values())
    assert counted == embeddings + N * layer + pooler + heads
    assert counted == pytest.approx(published, rel=0.01)


@functools.partial(jax.jit, static_argnames="causal")
def hidden(params, batch, causal=False):
    network = program().network.merge(params)
    return network.encoder(
        batch["input_ids"],
        batch["token_type_ids"],
        batch["attention_mask"],
        position_ids=batch.get("position_ids"),
        packing_ids=batch.get("packing_ids"),
        causal=causal,
    ).last_hidden_state


def test_padding_does_not_change_real_tokens():
    params = parameters()
    batch = pretraining_batch(
        batch_size=3, seq_length=24, max_predictions_per_seq=3, vocab_size=V, padding=False
    )
    wide = {name: np.pad(batch[name], ((0, 0), (0, 8))) for name in list(batch)[:3]}
    wide["input_ids"][:, 24:] = 17  # for any token ids in padding
    np.testing.assert_allclose(
        hidden(params, on_device(wide))[:, :24], hidden(params, on_device(batch)), atol=1e-5
    )


def packed_and_padded():
    """Returns examples of 10 and 14 tokens, packed into one sequence, and padded in two."""
    random = np.random.default_rng(0)
    lengths = (10, 14)
    ids = [random.integers(5, V, n) for n in lengths]
    padded = {
        "input_ids": np.stack([np.pad(row, (0, 24 - len(row))) for row in ids]),
        "token_type_ids": np.zeros((2, 24), int),
        "attention_mask": np.stack([np.arange(24) < n for n in lengths]),
        "masked_lm_positions": np.array([[2, 5], [3, 13]]),
        "masked_lm_ids": np.array([[7, 8], [9, 10]]),
        "masked_lm_weights": np.ones((2, 2), np.float32),
    }
    packed = {
        "input_ids": np.concatenate(ids)[None],
        "token_type_ids": np.zeros((1, 24), int),
        "attention_mask": np.ones((1, 24), int),
        "packing_ids": np.repeat([1, 2], lengths)[None],
        "position_ids": np.concatenate([np.arange(n) for n in lengths])[None],
        "masked_lm_positions": np.array([[2, 5, 13, 23]]),
        "masked_lm_ids": np.array([[7, 8, 9, 10]]),
        "masked_lm_weights": np.ones((1, 4), np.float32),
    }

    def typed(batch):
        return {
            name: jnp.asarray(field, jnp.float32 if field.dtype == np.float32 else jnp.int32)
            for name, field in batch.items()
        }

    return typed(packed), typed(padded)


def test_packed_loss_and_gradients_equal_padded():
    made, params = program(nsp_weight=0.0), parameters()
    results = []
    for batch in packed_and_padded():

        def loss(params, batch=batch):
            return made.compute_loss(params, batch, made.loss_denominators(batch), None).loss

        results.append(jax.jit(jax.value_and_grad(loss))(params))
    (packed, packed_grads), (padded, padded_grads) = results
    assert float(packed) == pytest.approx(float(padded), abs=1e-5)
    padded_flat = paths.flatten(padded_grads)
    for path, leaf in paths.flatten(packed_grads).items():
        np.testing.assert_allclose(leaf, padded_flat[path], atol=1e-5, err_msg=path)


def test_causal_token_ignores_later_tokens():
    params = parameters()
    batch = on_device(
        pretraining_batch(
            batch_size=2, seq_length=16, max_predictions_per_seq=2, vocab_size=V, padding=False
        )
    )
    changed = {**batch, "input_ids": batch["input_ids"].at[:, 10:].set(7)}
    before, after = (hidden(params, b, causal=True) for b in (batch, changed))
    np.testing.assert_allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert float(jnp.abs(before[:, 10:] - after[:, 10:]).max()) > 1e-2


@pytest.mark.parametrize(
    "compute", [ComputeConfig(), ComputeConfig(layer_loop="scanned")], ids=["loop", "scan"]
)
def test_hidden_states_and_attention_weights_are_returned(compute):
    batch = on_device(
        pretraining_batch(batch_size=2, seq_length=16, max_predictions_per_seq=2, vocab_size=V)
    )
    network = program(compute=compute).network.merge(parameters())
    out = network.encode(batch, output_hidden_states=True, output_attentions=True)
    assert [state.shape for state in out.hidden_states] == [(2, 16, 32)] * 3
    np.testing.assert_array_equal(out.hidden_states[-1], out.last_hidden_state)
    assert [weights.shape for weights in out.attentions] == [(2, 4, 16, 16)] * 2
    for weights in out.attentions:
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
        padding = np.broadcast_to(
            np.asarray(batch["attention_mask"])[:, None, None] == 0, (2, 4, 16, 16)
        )
        assert np.all(np.asarray(weights)[padding] == 0)
    plain = network.encode(batch)
    assert plain.hidden_states == () and plain.attentions == ()


# objectives/fine_tuning_test.py compares bfloat16 outputs of BERT, and communication_test.py reads
# the dtypes of its gradients.
@pytest.mark.slow
def test_bfloat16_outputs_are_close_and_gradients_float32():
    batch = on_device(
        pretraining_batch(batch_size=4, seq_length=16, max_predictions_per_seq=4, vocab_size=V)
    )
    params = parameters()
    results = {}
    for dtype in ("float32", "bfloat16"):
        made = program(compute=dataclasses.replace(ComputeConfig(), dtype=dtype))

        def loss(params, made=made):
            return made.compute_loss(params, batch, made.loss_denominators(batch), None).loss

        results[dtype] = jax.jit(jax.value_and_grad(loss))(params)
    wide, narrow = results["float32"], results["bfloat16"]
    assert float(narrow[0]) == pytest.approx(float(wide[0]), rel=5e-3)
    for path, leaf in paths.flatten(narrow[1]).items():
        assert leaf.dtype == jnp.float32, path
        expected = paths.flatten(wide[1])[path]
        error = jnp.linalg.norm(leaf - expected) / (jnp.linalg.norm(expected) + 1e-6)
        assert float(error) < 0.06 or float(jnp.linalg.norm(expected)) < 1e-4, path
