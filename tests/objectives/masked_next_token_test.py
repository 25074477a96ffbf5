"""Compares masked next-token prediction and its mix with causal LM with float64 NumPy.

Covers `masked_next_token` of bert_jax/objectives/pretraining.py, and causal rows of
bert_jax/models/layers/attention.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.models import random_parameters, small_config, small_model, write_run
from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.config import TransformerConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.layers.config import NoPositions
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.model import build_network
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.predict.fill_mask import FillMask
from bert_jax.pretrained.load import LoadedModel, load_model

B, L, V = 8, 12, 30
CONFIG = small_config(vocab_size=V)
SIZES: Any = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def objective_of(model: Any = CONFIG, **changes) -> PretrainingObjective:
    settings = {"nsp_weight": 0.0, "masked_next_token": True, **changes}
    return PretrainingObjective(Pretraining(model=model, mask_token_id=4, **settings))


@pytest.fixture(name="batch")
def _batch() -> dict[str, np.ndarray]:
    """Returns a batch with first tokens that are predicted, and packing ids."""
    made = pretraining_batch(batch_size=B, seq_length=L, max_predictions_per_seq=6, vocab_size=V)
    made["masked_lm_positions"][0, 0] = 0
    packing_ids = np.where(np.arange(L) < 5, 1, 2) * made["attention_mask"]
    return {**made, "packing_ids": packing_ids, "position_ids": np.tile(np.arange(L), (B, 1))}


def surprisals(model: dict, batch: dict, row: int, is_causal: bool) -> np.ndarray:
    """Returns -log p of each token of a row at the position before it, [L]; 0 for the first."""
    fields = ("input_ids", "token_type_ids", "attention_mask", "packing_ids", "position_ids")
    network = build_network(CONFIG, ("masked_lm",)).merge(model)
    one: Any = {name: jnp.asarray(batch[name][row : row + 1], jnp.int32) for name in fields}
    hidden = network.encode(one, causal=is_causal).last_hidden_state
    logits = np.asarray(network.masked_lm_logits(hidden))[0].astype(np.float64)
    log_z = np.log(np.exp(logits).sum(axis=1))
    labels = np.zeros(L, np.int64)
    for position, label, weight in zip(
        *(batch[f"masked_lm_{name}"][row] for name in ("positions", "ids", "weights")), strict=True
    ):
        if weight:
            labels[position] = label
    return np.array([0.0, *(log_z[i - 1] - logits[i - 1, labels[i]] for i in range(1, L))])


@pytest.mark.parametrize("causal_rows", [(), (1, 4, 5)])
def test_loss_is_that_of_the_position_before(batch, causal_rows):
    params = paths.unflatten(random_parameters(CONFIG))
    is_causal = np.zeros(B, np.int32)
    is_causal[list(causal_rows)] = 1
    sums = {0: [0.0, 0], 1: [0.0, 0]}
    for row in range(B):
        losses = surprisals(params, batch, row, bool(is_causal[row]))
        for position, weight in zip(
            batch["masked_lm_positions"][row], batch["masked_lm_weights"][row], strict=True
        ):
            packing_ids = batch["packing_ids"][row]
            if weight and position and packing_ids[position] == packing_ids[position - 1]:
                sums[is_causal[row]][0] += float(losses[position])
                sums[is_causal[row]][1] += 1
    (masked, num_masked), (causal, num_causal) = sums[0], sums[1]
    fraction = is_causal.mean()
    expected = (1 - fraction) * masked / num_masked + fraction * causal / max(num_causal, 1)
    assert num_masked + num_causal < batch["masked_lm_weights"].sum()  # some have no token before

    objective = objective_of()
    fields: Any = {name: jnp.asarray(field) for name, field in batch.items()}
    if causal_rows:
        fields["is_causal"] = jnp.asarray(is_causal)
    denominators = objective.loss_denominators(fields)
    loss, metrics, _ = jax.jit(lambda p, f: objective.compute_loss(p, f, denominators, None))(
        params, fields
    )
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["mlm_loss"].total) == pytest.approx(masked, rel=1e-5)
    assert float(metrics["mlm_loss"].weight) == num_masked
    if causal_rows:
        assert float(metrics["lm_loss"].total) == pytest.approx(causal, rel=1e-5)
        assert float(metrics["lm_loss"].weight) == num_causal
        # Microbatches add up, also if one has all the causal rows.
        halves = [
            {name: field[part] for name, field in fields.items()}
            for part in (slice(0, 6), slice(6, 8))
        ]
        parts = [float(objective.compute_loss(params, h, denominators, None).loss) for h in halves]
        assert sum(parts) == pytest.approx(expected, rel=1e-5)


FAMILIES: list[TransformerConfig] = [
    CONFIG,
    ModernBertConfig(**SIZES, positions=NoPositions(max_position_embeddings=16), local_attention=4),
    EuroBertConfig(
        **SIZES, positions=NoPositions(max_position_embeddings=16), num_key_value_heads=1
    ),
    DebertaV2Config(
        **SIZES,
        positions=NoPositions(max_position_embeddings=16),
        position_buckets=4,
        max_relative_positions=16,
    ),
]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: type(config).__name__)
def test_rows_are_computed_as_in_batches_of_one_kind(config):
    network = build_network(config, ("masked_lm",))
    model = network.merge(paths.unflatten(random_parameters(config)))
    made = pretraining_batch(batch_size=4, seq_length=L, max_predictions_per_seq=6, vocab_size=V)
    names = ("input_ids", "token_type_ids", "attention_mask")
    fields: Any = {name: jnp.asarray(made[name]) for name in names}
    is_causal = np.array([True, False, False, True])

    @jax.jit
    def hidden(rows: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            model.encode(fields, causal=causal).last_hidden_state for causal in (rows, True, False)
        )

    mixed, causal, full = map(np.asarray, hidden(jnp.asarray(is_causal)))
    expected = np.where(is_causal[:, None, None], causal, full)
    is_real = made["attention_mask"] > 0  # local attention computes other values at padding
    np.testing.assert_allclose(mixed[is_real], expected[is_real], atol=1e-5)
    assert np.abs(causal - full)[is_real].max() > 1e-2


def test_longformer_refuses_causal_rows():
    config = LongformerConfig(**SIZES, attention_window=(4,) * 2)
    model = build_network(config).merge(paths.unflatten(random_parameters(config)))
    ids = jnp.ones((2, 8), jnp.int32)
    with pytest.raises(ConfigError, match="Longformer cannot read some sequences"):
        model.encoder(ids, causal=jnp.array([True, False]))


def test_trained_model_has_no_head_that_fills_masks():
    params: Any = paths.unflatten(random_parameters(CONFIG))
    assert "masked_lm" in objective_of(masked_next_token=False).trained_model(params, None).params
    found = objective_of().trained_model(params, None).params
    assert set(found) == set(params) - {"masked_lm"}


def test_run_is_an_encoder_that_fills_no_masks(tmp_path):
    model = small_model(tmp_path / "words")
    objective = Pretraining(
        model=model.config, mask_token_id=4, nsp_weight=0.0, masked_next_token=True
    )
    loaded = load_model(write_run(tmp_path / "run", model, objective=objective))
    assert isinstance(loaded, LoadedModel) and "masked_lm" in loaded.missing
    with pytest.raises(UserError, match="has no masked-LM head, so it cannot fill masks"):
        FillMask(loaded)
    export(loaded, tmp_path / "exported")
    again = load_model(tmp_path / "exported")
    assert isinstance(again, LoadedModel) and "masked_lm" in again.missing


def test_next_tokens_without_masks_of_other_losses_are_refused():
    with pytest.raises(ConfigError, match="masked_next_token is true, but objective has"):
        objective_of(diffusion_weight=1.0)
