"""Random batches that keep the contract of `bert_jax.batch`, for tests and benchmarks."""

import numpy as np

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS
from bert_jax.models.config import (
    ChoiceHead,
    RegressionHead,
    SequenceHead,
    SpanHead,
    TaskHead,
    TokenHead,
)


def pretraining_batch(
    *,
    batch_size: int,
    length: int,
    max_predictions: int,
    vocab_size: int,
    padding: bool = True,
    first_ordinary_id: int = 5,
    mask_id: int = 4,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Pairs of random ids with ragged lengths, 80/10/10 masks and ragged numbers of predictions."""
    random = np.random.default_rng(seed)
    shape = (batch_size, length)
    lengths = np.full(batch_size, length)
    if padding:
        lengths = random.integers(length // 2, length + 1, batch_size)
    real = np.arange(length) < lengths[:, None]
    ids = np.where(real, random.integers(first_ordinary_id, vocab_size, shape), 0)
    types = np.where(real, np.arange(length) >= (lengths // 2)[:, None], 0)
    positions = np.zeros((batch_size, max_predictions), np.int32)
    labels, weights = np.zeros_like(positions), np.zeros(positions.shape, np.float32)
    seen = ids.copy()
    for row in range(batch_size):
        count = int(random.integers(1, min(max_predictions, lengths[row] - 1) + 1))
        chosen = np.sort(random.choice(np.arange(1, lengths[row]), count, replace=False))
        positions[row, :count], labels[row, :count] = chosen, ids[row, chosen]
        weights[row, :count] = 1.0
        draw = random.random(count)
        seen[row, chosen[draw < 0.8]] = mask_id
        swapped = chosen[draw > 0.9]
        seen[row, swapped] = random.integers(first_ordinary_id, vocab_size, len(swapped))
    return {
        "input_ids": seen.astype(np.int32),
        "token_type_ids": types.astype(np.int32),
        "attention_mask": real.astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": weights,
        "next_sentence_labels": random.integers(0, 2, batch_size).astype(np.int32),
    }


def fine_tuning_batch(
    head: TaskHead,
    *,
    batch_size: int,
    length: int,
    vocab_size: int,
    choices: int = 3,
    filling: int = 0,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Pairs of random ids with ragged lengths and random labels for a task's head.

    The last `filling` rows have no real token and weigh nothing.
    """
    random = np.random.default_rng(seed)
    chosen = isinstance(head, ChoiceHead)
    rows = (batch_size, choices) if chosen else (batch_size,)
    lengths = random.integers(length // 2, length + 1, rows)
    lengths[batch_size - filling :] = 0
    place = np.arange(length)
    real = place < lengths[..., None]
    ids = np.where(real, random.integers(5, vocab_size, (*rows, length)), 0)
    types = real & (place >= (lengths // 2)[..., None])
    names = CHOICE_FIELDS if chosen else ENCODER_FIELDS
    batch = {n: a.astype(np.int32) for n, a in zip(names, (ids, types, real), strict=True)}
    batch |= _labels(head, lengths, length, choices, random)
    weights = np.arange(batch_size) < batch_size - filling
    return {**batch, "example_weights": weights.astype(np.float32)}


def _labels(
    head: TaskHead, lengths: np.ndarray, length: int, choices: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    rows = len(lengths)
    match head:
        case SequenceHead():
            return {"labels": random.integers(0, len(head.labels), rows, np.int32)}
        case ChoiceHead():
            return {"labels": random.integers(0, choices, rows, np.int32)}
        case RegressionHead():
            return {"label_values": random.uniform(0, 5, rows).astype(np.float32)}
        case TokenHead():
            first = (random.random((rows, length)) < 0.6) & (np.arange(length) < lengths[:, None])
            tags = random.integers(0, len(head.labels), (rows, length))
            return {
                "token_labels": np.where(first, tags, 0).astype(np.int32),
                "token_label_weights": first.astype(np.float32),
            }
        case SpanHead():
            starts = random.integers(0, np.maximum(lengths, 1))
            ends = random.integers(starts, np.maximum(lengths, 1))
            return {
                "start_positions": starts.astype(np.int32),
                "end_positions": ends.astype(np.int32),
            }
