"""Tests the loss of encoder-decoders: packed sequences give that of padded ones."""

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config.objectives import Seq2Seq
from bert_jax.data.pretraining.denoising import SourceAndTarget, collate_sources_and_targets
from bert_jax.data.text_to_text import collate_packed_rows, pack_sources_and_targets
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.t5.config import T5Config
from bert_jax.objectives.seq2seq import Seq2SeqObjective

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
}
LENGTHS = 24, 12


@pytest.mark.parametrize(
    "config",
    [T5Config(**SIZES, d_kv=8), BartConfig(**SIZES, max_position_embeddings=24)],
    ids=["t5", "bart"],
)
def test_packed_sequences_have_the_loss_and_gradients_of_padded_ones(
    config: EncoderDecoderConfig,
) -> None:
    rng = np.random.default_rng(0)
    examples = [
        SourceAndTarget(rng.integers(3, 40, rng.integers(2, 12)), rng.integers(3, 40, length))
        for length in (1, 7, 3, 5, 2, 6)
    ]
    plan = pack_sources_and_targets(examples, 3, LENGTHS)
    assert len(plan.rows) == len(examples) and plan.rows.max() < 3
    packed = collate_packed_rows(examples, plan, 3, LENGTHS, config.pad_token_id)
    padded = collate_sources_and_targets(examples, *LENGTHS, config.pad_token_id)
    objective = Seq2SeqObjective(Seq2Seq(model=config, z_loss=1e-2))
    params = objective.init(jax.random.key(0))

    @jax.jit
    def value_and_grad(batch: Any) -> Any:
        def loss(params: Any) -> tuple[jax.Array, jax.Array]:
            output = objective.compute_loss(params, batch, objective.loss_denominators(batch), None)
            return output.loss, output.metrics["token_accuracy"].total

        return jax.value_and_grad(loss, has_aux=True)(params)

    (found, num_correct), gradients = value_and_grad(packed)
    (expected, expected_correct), expected_gradients = value_and_grad(padded)
    assert found == pytest.approx(float(expected), rel=1e-6)
    assert num_correct == expected_correct
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max() + 1e-8),
        gradients,
        expected_gradients,
    )
