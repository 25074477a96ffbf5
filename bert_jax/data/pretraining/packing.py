"""Packs several short examples into one sequence; `packing_ids` tell them apart.

The lengths alone decide which examples are in a batch: examples are taken in order, as many as fit
by first-fit decreasing, and none is skipped. The state of a packed stream is therefore one number:
how many examples have been consumed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.vocab_arrays import VocabArrays


class PackingPlan(NamedTuple):
    """Holds where the first n examples go: row [n] and offset [n] of their first tokens, int64."""

    rows: np.ndarray
    offsets: np.ndarray


def pack(lengths: np.ndarray, num_rows: int, capacity: int) -> PackingPlan:
    """Packs as many of the first examples as fit into `num_rows` rows of `capacity` tokens.

    The longest example is placed first; each goes to the first row with enough space. If n examples
    do not fit, the last n in order are left out and the rest is packed again.

    Args:
      lengths: [m] tokens of the next examples, special tokens included; each at most `capacity`.
    """
    num_examples = int(np.searchsorted(np.cumsum(lengths), num_rows * capacity, side="right"))
    while True:
        assigned_rows, offsets = _first_fit_decreasing(lengths[:num_examples], num_rows, capacity)
        num_unplaced = int((assigned_rows < 0).sum())
        if not num_unplaced:
            return PackingPlan(assigned_rows, offsets)
        num_examples -= num_unplaced


def _first_fit_decreasing(
    lengths: np.ndarray, num_rows: int, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    free_tokens = np.full(num_rows, capacity, dtype=np.int64)
    assigned_rows = np.full(len(lengths), -1, dtype=np.int64)
    offsets = np.zeros(len(lengths), dtype=np.int64)
    for example in np.argsort(-lengths, kind="stable").tolist():
        num_tokens = lengths[example]
        row = int((free_tokens >= num_tokens).argmax())
        if free_tokens[row] >= num_tokens:
            assigned_rows[example], offsets[example] = row, capacity - free_tokens[row]
            free_tokens[row] -= num_tokens
    return assigned_rows, offsets


def collate_packed_segments(
    texts: Sequence[np.ndarray],
    keys: np.ndarray,
    packing_plan: PackingPlan,
    shape: tuple[int, int],
    vocab_arrays: VocabArrays,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Builds sequences of several packed examples [CLS] text [SEP], not yet masked.

    Args:
      texts: ids [T] of each example.
      keys: [n] uint64, the random keys of the examples.
      packing_plan: where each example goes.
      shape: (B, L).

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask`, `position_ids` (from 0 in each example) and
      `packing_ids` (1, 2, ... along a row, 0 = padding), [B, L] int32; and the random key of the
      example of each token, [B, L] uint64, for `mask_tokens`.
    """
    input_ids = np.full(shape, vocab_arrays.pad_id, dtype=np.int32)
    position_ids, packing_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    token_keys = np.zeros(shape, np.uint64)
    num_packed = np.zeros(shape[0], dtype=np.int32)
    for example in np.argsort(packing_plan.offsets, kind="stable").tolist():
        text, row, begin = texts[example], packing_plan.rows[example], packing_plan.offsets[example]
        length = vocab_arrays.template.write_inputs(
            input_ids[row, begin:], vocab_arrays.cls_id, vocab_arrays.sep_id, text
        )
        end = begin + length
        num_packed[row] += 1
        position_ids[row, begin:end] = np.arange(length)
        packing_ids[row, begin:end] = num_packed[row]
        token_keys[row, begin:end] = keys[example]
    fields = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros(shape, dtype=np.int32),
        "attention_mask": (packing_ids > 0).astype(np.int32),
        "position_ids": position_ids,
        "packing_ids": packing_ids,
    }
    return fields, token_keys
