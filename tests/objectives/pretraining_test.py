"""Compares the pretraining losses with float64 NumPy.

Covers bert_jax/objectives/pretraining.py, causal_lm.py and bert_jax/losses.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.models import small_config
from bert_jax.batch import DIFFUSION_FIELDS, ENCODER_FIELDS, SAMPLING_FIELDS, SPAN_BOUNDARY_FIELDS
from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError
from bert_jax.losses import cross_entropy, is_correct, padding_fraction
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.objectives.causal_lm import next_token_loss, next_token_weights
from bert_jax.objectives.pretraining import (
    PretrainingObjective,
    masked_lm_loss,
    next_sentence_loss,
    sentence_order_loss,
    span_boundary_loss,
)

V = 30
BERT = small_config()
ROBERTA = RobertaConfig.from_size("base")


@pytest.fixture
def batch():
    made = pretraining_batch(batch_size=6, seq_length=24, max_predictions_per_seq=7, vocab_size=V)
    return {name: jnp.asarray(field) for name, field in made.items()}


def logits_for(shape, seed=0):
    return np.random.default_rng(seed).normal(0, 3, shape)


def reference(logits, labels):
    """Returns -log softmax at the labels, in float64."""
    total = np.log(np.exp(logits).sum(-1))
    return total - np.take_along_axis(logits, np.asarray(labels)[..., None], -1)[..., 0]


def test_masked_lm_sums_exactly_the_selected_positions(batch):
    logits = logits_for((6, 7, V))
    loss, metrics = masked_lm_loss(jnp.asarray(logits, jnp.float32), batch, 4)
    weights = np.asarray(batch["masked_lm_weights"])
    expected = (reference(logits, batch["masked_lm_ids"]) * weights).sum()
    assert float(loss.total) == pytest.approx(expected, rel=1e-5)
    assert float(loss.weight) == weights.sum()
    parts = [metrics[f"mlm_loss_{name}"] for name in ("masked", "random", "kept")]
    assert sum(float(part.total) for part in parts) == pytest.approx(expected, rel=1e-5)
    assert sum(float(part.weight) for part in parts) == weights.sum()
    right = (logits.argmax(-1) == np.asarray(batch["masked_lm_ids"])) * weights
    assert float(metrics["mlm_accuracy"].total) == right.sum()


def test_masked_lm_metrics_by_kind_of_input_token():
    batch = {
        "input_ids": jnp.asarray([[2, 4, 9, 7, 3]], jnp.int32),
        "masked_lm_positions": jnp.asarray([[1, 2, 3]], jnp.int32),
        "masked_lm_ids": jnp.asarray([[8, 6, 7]], jnp.int32),
        "masked_lm_weights": jnp.ones((1, 3), jnp.float32),
    }
    logits = jnp.asarray(logits_for((1, 3, V)), jnp.float32)
    _, metrics = masked_lm_loss(logits, batch, 4)
    losses = np.asarray(cross_entropy(logits, batch["masked_lm_ids"]))[0]
    for index, name in enumerate(("masked", "random", "kept")):
        assert float(metrics[f"mlm_loss_{name}"].weight) == 1
        assert float(metrics[f"mlm_loss_{name}"].total) == pytest.approx(losses[index])


def test_next_sentence(batch):
    logits = logits_for((6, 2))
    loss, metrics = next_sentence_loss(jnp.asarray(logits, jnp.float32), batch)
    labels = np.asarray(batch["next_sentence_labels"])
    assert float(loss.total) == pytest.approx(reference(logits, labels).sum(), rel=1e-5)
    assert float(metrics["nsp_accuracy"].total) == (logits.argmax(-1) == labels).sum()
    assert float(loss.weight) == 6


def test_sentence_order(batch):
    logits = logits_for((6, 2))
    loss, metrics = sentence_order_loss(jnp.asarray(logits, jnp.float32), batch)
    labels = np.asarray(batch["sentence_order_labels"])
    assert float(loss.total) == pytest.approx(reference(logits, labels).sum(), rel=1e-5)
    assert float(metrics["sop_accuracy"].total) == (logits.argmax(-1) == labels).sum()
    assert float(loss.weight) == 6


def test_span_boundary_sums_exactly_the_targets(batch):
    logits = logits_for((6, 7, V))
    loss, metrics = span_boundary_loss(jnp.asarray(logits, jnp.float32), batch)
    weights = np.asarray(batch["span_target_weights"])
    assert 0 < weights.sum() < np.asarray(batch["masked_lm_weights"]).sum()
    expected = (reference(logits, batch["masked_lm_ids"]) * weights).sum()
    assert float(loss.total) == pytest.approx(expected, rel=1e-5)
    right = (logits.argmax(-1) == np.asarray(batch["masked_lm_ids"])) * weights
    assert float(metrics["sbo_accuracy"].total) == right.sum()
    assert float(metrics["sbo_loss"].weight) == weights.sum()


def test_objective_has_the_heads_fields_and_divisors_of_its_losses(batch):
    bert = Pretraining(model=BERT, mask_token_id=4)
    objective = PretrainingObjective(bert)
    assert set(objective.abstract()) == {"encoder", "pooler", "masked_lm", "next_sentence"}
    everything = dataclasses.replace(bert, sop_weight=1.0, sbo_weight=1.0)
    objective = PretrainingObjective(everything)
    bert_heads = {"pooler", "masked_lm", "next_sentence"}
    assert set(objective.abstract()) == {"encoder", *bert_heads, "sentence_order", "span_boundary"}
    external = {*SAMPLING_FIELDS, *DIFFUSION_FIELDS}  # those of ELECTRA and of masked diffusion
    assert set(objective.batch_fields()) == set(batch) - external
    denominators = objective.loss_denominators(batch)
    weights = {name: float(np.asarray(batch[name]).sum()) for name in batch if "weights" in name}
    assert {name: float(value) for name, value in denominators.items()} == {
        "mlm": weights["masked_lm_weights"],
        "nsp": 6,
        "sop": 6,
        "sbo": weights["span_target_weights"] + 1,
    }
    spanbert = PretrainingObjective(
        dataclasses.replace(bert, mlm_weight=0.0, nsp_weight=0.0, sbo_weight=1.0)
    )
    assert spanbert.batch_fields() == (*ENCODER_FIELDS, "masked_lm_ids", *SPAN_BOUNDARY_FIELDS)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"mlm_weight": 0.0, "nsp_weight": 0.0}, "sbo_weight 0.0: expected all >= 0 and one > 0"),
        ({"sop_weight": -1.0}, "sop_weight -1.0, sbo_weight 0.0: expected all >= 0"),
        ({"model": ROBERTA}, "nsp_weight is 1.0, but RoBERTa is pretrained without next-sentence"),
        ({"model": ROBERTA, "nsp_weight": 0.0, "sop_weight": 1.0}, "but RoBERTa has no pooler"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        Pretraining(**{"model": BERT, "mask_token_id": 4, **weights})


def test_next_token_loss_stays_within_packed_examples():
    batch = {
        "input_ids": jnp.asarray([[2, 5, 3, 2, 6, 0]], jnp.int32),
        "attention_mask": jnp.asarray([[1, 1, 1, 1, 1, 0]], jnp.int32),
        "packing_ids": jnp.asarray([[1, 1, 1, 2, 2, 0]], jnp.int32),
    }
    weights = next_token_weights(batch)
    np.testing.assert_array_equal(weights, [[1, 1, 0, 1, 0]])
    logits = logits_for((1, 5, V))
    loss, _ = next_token_loss(jnp.asarray(logits, jnp.float32), batch)
    expected = (reference(logits, batch["input_ids"][:, 1:]) * np.asarray(weights)).sum()
    assert float(loss.total) == pytest.approx(expected, rel=1e-5)


def test_padding_fraction(batch):
    fraction = padding_fraction(batch)
    padding = np.asarray(batch["attention_mask"]) == 0
    assert float(fraction.total) / float(fraction.weight) == pytest.approx(padding.mean())


def test_cross_entropy_gradient_equals_autodiff():
    logits = jnp.asarray(logits_for((5, V)), jnp.float32)
    labels = jnp.asarray([0, 3, 3, 29, 7], jnp.int32)
    weights = jnp.asarray([1.0, 0.5, 0.0, 2.0, 1.0])

    def definition(x):
        return jnp.sum(-jax.nn.log_softmax(x)[jnp.arange(5), labels] * weights)

    def custom(x):
        return jnp.sum(cross_entropy(x, labels) * weights)

    np.testing.assert_allclose(jax.grad(custom)(logits), jax.grad(definition)(logits), atol=1e-6)


def test_is_correct_compares_with_the_highest_score():
    logits = jnp.asarray([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(is_correct(logits, jnp.asarray([1, 2])), [True, False])
