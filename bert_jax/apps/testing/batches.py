"""Generates random batches with the fields of `bert_jax.batch`, for tests and benchmarks."""

import numpy as np

from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS, MAX_SPAN_TARGETS
from bert_jax.models.heads.config import TaskHead, class_labels, window_encoder_of
from bert_jax.tasks.registry import kind_of_head


def pretraining_batch(
    *,
    batch_size: int,
    seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int,
    padding: bool = True,
    first_maskable_id: int = 5,
    mask_token_id: int = 4,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Returns pairs of random ids, masked 80/10/10; lengths and numbers of predictions vary.

    The fields serve all losses of pretraining. Each masked token is a span of its own.
    """
    rng = np.random.default_rng(seed)
    shape = (batch_size, seq_length)
    lengths = np.full(batch_size, seq_length)
    if padding:
        lengths = rng.integers(seq_length // 2, seq_length + 1, batch_size)
    is_real = np.arange(seq_length) < lengths[:, None]
    ids = np.where(is_real, rng.integers(first_maskable_id, vocab_size, shape), 0)
    token_type_ids = np.where(is_real, np.arange(seq_length) >= (lengths // 2)[:, None], 0)
    positions = np.zeros((batch_size, max_predictions_per_seq), np.int32)
    labels, weights = np.zeros_like(positions), np.zeros(positions.shape, np.float32)
    masked_ids = ids.copy()
    for row in range(batch_size):
        count = int(rng.integers(1, min(max_predictions_per_seq, lengths[row] - 1) + 1))
        chosen = np.sort(rng.choice(np.arange(1, lengths[row]), count, replace=False))
        positions[row, :count], labels[row, :count] = chosen, ids[row, chosen]
        weights[row, :count] = 1.0
        draw = rng.random(count)
        masked_ids[row, chosen[draw < 0.8]] = mask_token_id
        replaced = chosen[draw > 0.9]
        masked_ids[row, replaced] = rng.integers(first_maskable_id, vocab_size, len(replaced))
    next_sentence_labels = rng.integers(0, 2, batch_size).astype(np.int32)
    has_boundary = (weights > 0) & (positions + 1 < lengths[:, None])
    return {
        "input_ids": masked_ids.astype(np.int32),
        "token_type_ids": token_type_ids.astype(np.int32),
        "attention_mask": is_real.astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": weights,
        "next_sentence_labels": next_sentence_labels,
        "sentence_order_labels": rng.integers(0, 2, batch_size).astype(np.int32),
        "span_left_positions": np.where(has_boundary, positions - 1, 0),
        "span_right_positions": np.where(has_boundary, positions + 1, 0),
        "span_target_offsets": rng.integers(0, MAX_SPAN_TARGETS, positions.shape, np.int32),
        "span_target_weights": has_boundary.astype(np.float32),
        "sampling_seeds": rng.integers(-(2**31), 2**31, positions.shape).astype(np.int32),
        "masking_rates": np.where(weights > 0, rng.uniform(0.1, 1, (batch_size, 1)), 0).astype(
            np.float32
        ),
        "num_maskable_tokens": (lengths - 1).astype(np.int32),
    }


def fine_tuning_batch(
    head: TaskHead,
    *,
    batch_size: int,
    seq_length: int,
    vocab_size: int,
    num_choices: int = 3,
    num_padding_examples: int = 0,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Returns pairs of random ids of different lengths, with random labels for a task's head.

    The last `num_padding_examples` rows are padding: they have no real token and weight 0.
    """
    rng = np.random.default_rng(seed)
    windows = window_encoder_of(head)
    if windows is not None:
        num_choices = windows.num_windows
    has_choices = head.scope == "choices" or windows is not None
    batch_shape = (batch_size, num_choices) if has_choices else (batch_size,)
    lengths = rng.integers(seq_length // 2, seq_length + 1, batch_shape)
    lengths[batch_size - num_padding_examples :] = 0
    fields: dict[str, np.ndarray] = {}
    if windows is not None:
        window_mask = np.arange(num_choices) < rng.integers(1, num_choices + 1, (batch_size, 1))
        lengths = np.where(window_mask, lengths, 0)
        fields["window_mask"] = window_mask.astype(np.int32)
    positions = np.arange(seq_length)
    is_real = positions < lengths[..., None]
    ids = np.where(is_real, rng.integers(5, vocab_size, (*batch_shape, seq_length)), 0)
    token_type_ids = is_real & (positions >= (lengths // 2)[..., None])
    names = CHOICE_FIELDS if has_choices else ENCODER_FIELDS
    batch = {
        n: a.astype(np.int32) for n, a in zip(names, (ids, token_type_ids, is_real), strict=True)
    }
    batch |= _random_labels(head, lengths, seq_length, num_choices, rng)
    weights = np.arange(batch_size) < batch_size - num_padding_examples
    return {**batch, **fields, "example_weights": weights.astype(np.float32)}


def _random_labels(
    head: TaskHead, lengths: np.ndarray, seq_length: int, num_choices: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns the label fields of the kind of task, each drawn from the values that it can have."""
    batch_size, num_classes = len(lengths), len(class_labels(head)) or num_choices
    match kind_of_head(head).spec.label_fields:
        case ("labels",):
            return {"labels": rng.integers(0, num_classes, batch_size, np.int32)}
        case ("label_indicators",):
            shape = (batch_size, num_classes)
            return {"label_indicators": rng.integers(0, 2, shape, np.int32)}
        case ("label_values",):
            largest = 5 if kind_of_head(head).output_field == "value" else 1
            return {"label_values": rng.uniform(0, largest, batch_size).astype(np.float32)}
        case ("token_labels", "token_label_weights"):
            is_first_token = (rng.random((batch_size, seq_length)) < 0.6) & (
                np.arange(seq_length) < lengths[:, None]
            )
            tags = rng.integers(0, num_classes, (batch_size, seq_length))
            return {
                "token_labels": np.where(is_first_token, tags, 0).astype(np.int32),
                "token_label_weights": is_first_token.astype(np.float32),
            }
        case ("start_positions", "end_positions"):
            starts = rng.integers(0, np.maximum(lengths, 1))
            ends = rng.integers(starts, np.maximum(lengths, 1))
            return {
                "start_positions": starts.astype(np.int32),
                "end_positions": ends.astype(np.int32),
            }
        case fields:
            raise NotImplementedError(f"random values of {fields}")
