"""Covers bert_jax/models/mpnet/ and bert_jax/models/deberta_v2/: packing, the layer loop.

What attention adds to the scores depends on distances, also within packed rows.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.models import random_parameters
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.layers.config import (
    ComputeConfig,
    NoPositions,
    PaddingOffsetPositions,
)
from bert_jax.models.model import build_network, run_forward
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.params import paths

MPNET = MPNetConfig(
    vocab_size=103,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    positions=PaddingOffsetPositions(max_position_embeddings=42),
)
# Distances beyond 4 share buckets.
DEBERTA = DebertaV2Config(
    vocab_size=103,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    positions=NoPositions(max_position_embeddings=40),
    position_buckets=8,
    max_relative_positions=40,
)
each_family = pytest.mark.parametrize("config", [MPNET, DEBERTA], ids=lambda config: config.family)


@each_family
def test_packed_examples_are_computed_as_if_alone(config):
    params = paths.unflatten(random_parameters(config))
    ids = np.random.default_rng(0).integers(5, 103, (1, 40)).astype(np.int32)
    lengths = [22, 11]

    def batch(ids, **fields):
        zeros = np.zeros_like(ids)
        return {"input_ids": ids, "token_type_ids": zeros, "attention_mask": zeros + 1, **fields}

    numbers = np.repeat([1, 2, 0], [*lengths, 7])[None].astype(np.int32)
    positions = np.concatenate([*map(np.arange, lengths), np.zeros(7)])[None].astype(np.int32)
    ids[:, sum(lengths) :] = 1  # padding
    packed = batch(ids, position_ids=positions, packing_ids=numbers)
    together = run_forward(params, config, packed)["masked_lm"][0, : sum(lengths)]
    parts = np.split(ids[:, : sum(lengths)], np.cumsum(lengths)[:-1], axis=1)
    alone = [run_forward(params, config, batch(part))["masked_lm"][0] for part in parts]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=1e-6)


# tests/models/seq2seq/network_test.py scans and rematerializes T5's layers, which also add biases
# of relative positions.
@pytest.mark.slow
@each_family
def test_scanned_layers_with_remat_have_the_same_loss_and_gradients(config):
    config = dataclasses.replace(config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    params = jax.tree.map(jnp.asarray, paths.unflatten(random_parameters(config)))
    fields = pretraining_batch(
        batch_size=2, seq_length=40, max_predictions_per_seq=2, vocab_size=config.vocab_size
    )

    def loss_and_gradients(compute):
        network = build_network(config, config.pretraining_heads, compute=compute)

        def loss(params):
            model = network.merge(params)
            states = model.encode(fields, jax.random.key(1)).last_hidden_state
            return jnp.mean(jnp.square(model.masked_lm_logits(states)))

        value, gradients = jax.jit(jax.value_and_grad(loss))(params)
        return float(value), paths.flatten(gradients)

    expected, expected_gradients = loss_and_gradients(ComputeConfig())
    found, gradients = loss_and_gradients(
        ComputeConfig(layer_loop="scanned", remat="full", attention="pallas")
    )
    assert found == pytest.approx(expected, rel=1e-5)
    for path, leaf in expected_gradients.items():
        assert np.any(leaf), path
        # The gradient of a key's bias is 0 except for rounding errors.
        tolerance = 1e-9 + 1e-4 * float(jnp.abs(leaf).max())
        np.testing.assert_allclose(gradients[path], leaf, atol=tolerance, err_msg=path)
