"""Random batches that keep the contract of `bert_jax.batch`, for tests and benchmarks."""

import numpy as np


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
