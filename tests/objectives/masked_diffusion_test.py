"""Compares the loss of masked diffusion with its definition and with the entropy of a known text.

Covers `masked_diffusion_loss` of bert_jax/objectives/pretraining.py.
"""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.models import small_config
from bert_jax.apps.testing.random_corpus import CLS, MASK, SEP, random_vocab_arrays
from bert_jax.config.data import DiffusionMasking
from bert_jax.config.objectives import Pretraining
from bert_jax.data.pretraining.diffusion_masking import mask_for_diffusion, masking_rates
from bert_jax.data.pretraining.rng import epoch_key, example_keys
from bert_jax.objectives.base import BatchSizes
from bert_jax.objectives.pretraining import PretrainingObjective, masked_diffusion_loss

N, V = 3, 4
"""Tokens of a text, and symbols that they have."""
FIRST = 5  # id of the first symbol
TABLE = random_vocab_arrays(vocab_size=FIRST + V)


def test_loss_is_the_weighted_sum_divided_by_all_tokens():
    batch = pretraining_batch(
        batch_size=6, seq_length=24, max_predictions_per_seq=20, vocab_size=30
    )
    logits = np.random.default_rng(0).normal(0, 3, (6, 20, 30))
    fields = {name: jnp.asarray(field) for name, field in batch.items()}
    loss, metrics = masked_diffusion_loss(jnp.asarray(logits, jnp.float32), fields)
    total, correct, count = 0.0, 0, 0
    for row, slot in zip(*np.nonzero(batch["masked_lm_weights"]), strict=True):
        label = batch["masked_lm_ids"][row, slot]
        surprisal = np.log(np.exp(logits[row, slot]).sum()) - logits[row, slot, label]
        total += surprisal / batch["masking_rates"][row, slot]
        correct += int(logits[row, slot].argmax() == label)
        count += 1
    assert float(loss.total) == pytest.approx(total, rel=1e-5)
    assert float(loss.weight) == batch["num_maskable_tokens"].sum()
    accuracy = metrics["diffusion_accuracy"]
    assert (float(accuracy.total), float(accuracy.weight)) == (correct, count)

    config = Pretraining(
        model=small_config(), mask_token_id=4, mlm_weight=0, diffusion_weight=2, nsp_weight=0
    )
    objective = PretrainingObjective(config)
    assert objective.losses == ["diffusion"]
    assert float(objective.loss_denominators(fields)["diffusion"]) == float(loss.weight)
    sizes = BatchSizes(examples=6, sequences=6, length=24, predictions=20)
    masked_lm = PretrainingObjective(
        Pretraining(model=small_config(), mask_token_id=4, nsp_weight=0)
    )
    assert objective.head_flops(sizes) == masked_lm.head_flops(sizes) > 0


def joint_distribution() -> np.ndarray:
    """Returns random probabilities of all texts, [V, V, V]."""
    weights = np.random.default_rng(1).exponential(1, (V,) * N) ** 2
    return weights / weights.sum()


def conditional(joint: np.ndarray, text: tuple[int, ...], is_masked: tuple[bool, ...], i: int):
    """Returns the exact distribution of token i given the tokens that are not masked, [V]."""
    known = joint[tuple(slice(None) if m else t for t, m in zip(text, is_masked, strict=True))]
    axis = sum(is_masked[:i])
    others = tuple(a for a in range(known.ndim) if a != axis)
    return known.sum(axis=others) / known.sum()


def surprisals(joint: np.ndarray, text: tuple[int, ...], is_masked: tuple[bool, ...]) -> float:
    return sum(
        -math.log(conditional(joint, text, is_masked, i)[text[i]]) for i in range(N) if is_masked[i]
    )


def test_exact_loss_of_the_true_conditionals_is_the_log_probability():
    """The bound of Sahoo et al. 2024 is tight for them: the mean over rates and masks, exactly."""
    joint = joint_distribution()
    for text in [(0, 1, 2), (3, 3, 0)]:
        expected_loss = 0.0
        for is_masked in itertools.product((False, True), repeat=N):
            k = sum(is_masked)
            if k:  # the integral of t^k (1 - t)^(N - k) / t is a beta function
                weight = math.factorial(k - 1) * math.factorial(N - k) / math.factorial(N)
                expected_loss += weight * surprisals(joint, text, is_masked)
        assert expected_loss == pytest.approx(-math.log(joint[text]), rel=1e-12)


@pytest.mark.parametrize("text", [(0, 1, 2), (3, 3, 0)])
def test_mean_loss_of_batches_is_the_log_probability(text):
    """The same with the masks of batches and the loss of the objective."""
    joint, count = joint_distribution(), 20_000
    ids = np.tile(np.array([CLS, *(FIRST + t for t in text), SEP], np.int32), (count, 1))
    keys = example_keys(np.full(count, epoch_key(0, 0), np.uint64), np.arange(count))
    rates = masking_rates(DiffusionMasking(), 0, np.arange(count))
    batch = mask_for_diffusion(ids, np.ones_like(ids), keys, rates, TABLE)
    logits = np.full((count, N + 2, FIRST + V), -50.0, np.float32)
    losses = np.zeros(count)
    log_conditionals = {
        (is_masked, i): np.log(conditional(joint, text, is_masked, i))
        for is_masked in itertools.product((False, True), repeat=N)
        for i in range(N)
        if is_masked[i]
    }
    for row, masked in enumerate(batch["input_ids"][:, 1:-1] == MASK):
        is_masked = tuple(masked.tolist())
        for slot, i in enumerate(np.flatnonzero(masked).tolist()):
            logits[row, slot, FIRST:] = log_conditionals[is_masked, i]
        losses[row] = surprisals(joint, text, is_masked) / rates[row]
    fields = {name: jnp.asarray(field) for name, field in batch.items()}
    loss, _ = masked_diffusion_loss(jnp.asarray(logits), fields)
    assert float(loss.weight) == N * count
    per_text = N * float(loss.total) / float(loss.weight)
    assert per_text == pytest.approx(losses.mean(), rel=1e-4)
    error = losses.std() / math.sqrt(count)
    assert error < -0.03 * math.log(joint[text])
    # Rates below 0.001 are left out, which costs a thousandth.
    assert per_text == pytest.approx(-math.log(joint[text]), abs=4 * error + 0.005)
