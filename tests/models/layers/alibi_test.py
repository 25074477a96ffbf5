"""Covers ALiBi in bert_jax/models/layers/relative_bias.py, and a BERT with `AlibiPositions`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.models import small_config
from bert_jax.config.config_lib import override
from bert_jax.errors import UserError
from bert_jax.export.onnx.encoder import check_family
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.families import format_of
from bert_jax.models.layers.config import AlibiPositions, NoPositions
from bert_jax.models.layers.relative_bias import alibi_bias, alibi_slopes
from bert_jax.models.model import build_network
from bert_jax.params import paths

MODEL = dataclasses.replace(
    small_config(vocab_size=50), positions=AlibiPositions(max_position_embeddings=64)
)
H = MODEL.num_attention_heads


def test_slopes_are_those_of_the_authors():
    np.testing.assert_array_equal(alibi_slopes(8), [2.0**-i for i in range(1, 9)])
    # 12 heads: the slopes of 8 heads, then the first, third, ... of 16 heads.
    expected = [2.0**-i for i in range(1, 9)] + [2.0 ** (-i / 2) for i in (1, 3, 5, 7)]
    np.testing.assert_allclose(alibi_slopes(12), expected, rtol=1e-7)
    np.testing.assert_array_equal(alibi_slopes(1), [2.0**-8])


def test_weights_are_those_of_a_slow_reference_and_packing_changes_nothing():
    network = build_network(MODEL)
    params = jax.jit(network.init)(jax.random.key(0))
    assert not any("position" in path for path in paths.flatten(params))
    ids = jax.random.randint(jax.random.key(1), (1, 12), 0, 50)
    packing_ids = jnp.array([[1] * 7 + [2] * 5])

    @jax.jit
    def encode(params):
        encoder: Any = network.merge(params).encoder
        first, second = (encoder(part).last_hidden_state for part in (ids[:, :7], ids[:, 7:]))
        packed = encoder(ids, packing_ids=packing_ids, output_attentions=True)
        encoder.positions = NoPositions()
        return packed, encoder(ids, packing_ids=packing_ids, output_attentions=True), first, second

    output, without, first, second = encode(params)
    weights = np.asarray(without.attentions[0], np.float64)
    expected = np.zeros_like(weights)
    for head, slope in enumerate(alibi_slopes(H)):
        for i in range(12):
            row = [weights[0, head, i, j] * np.exp(-slope * abs(i - j)) for j in range(12)]
            expected[0, head, i] = np.array(row) / sum(row)
    np.testing.assert_allclose(output.attentions[0], expected, atol=1e-6)
    assert np.abs(expected - weights).max() > 0.01
    alone = np.concatenate([first, second], axis=1)
    np.testing.assert_allclose(output.last_hidden_state, alone, atol=1e-5)
    assert alibi_bias(H, 12).shape == (1, H, 12, 12)


def test_a_recipe_can_have_them_and_other_formats_refuse_them():
    bert = override(BertConfig.from_size("base"), ["positions=AlibiPositions"])
    assert bert.positions == AlibiPositions()
    with pytest.raises(UserError, match="transformers has no BERT with AlibiPositions"):
        format_of(MODEL).config_fields(MODEL)
    with pytest.raises(UserError, match="BERT with AlibiPositions cannot be exported to ONNX"):
        check_family(MODEL)
