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
    """Holds where the first n examples go, int64.

    Attributes:
      rows: [n].
      offsets: [n, S], of the first token in each of the S sequences of the row.
    """

    rows: np.ndarray
    offsets: np.ndarray


def pack(lengths: np.ndarray, num_rows: int, capacities: tuple[int, ...]) -> PackingPlan:
    """Packs as many of the first examples as fit into `num_rows` rows.

    A row is one sequence, or a source and a target, each with a capacity of its own. The example
    that takes the largest fraction of a capacity is placed first; each goes to the first row with
    enough space for all its sequences. If k examples find no row, the last k examples in order are
    left out, whichever did not fit, and the others are packed again.

    Args:
      lengths: [m, S] tokens of each of the S sequences of the next m examples, special tokens
        included; each at most its capacity.
      capacities: the tokens of each of the S sequences of a row.
    """
    totals = np.cumsum(lengths, axis=0)
    num_examples = int(np.all(totals <= num_rows * np.array(capacities), axis=1).sum())
    while True:
        assigned_rows, offsets = _first_fit_decreasing(lengths[:num_examples], num_rows, capacities)
        num_unplaced = int((assigned_rows < 0).sum())
        if not num_unplaced:
            return PackingPlan(assigned_rows, offsets)
        num_examples -= num_unplaced


def _first_fit_decreasing(
    lengths: np.ndarray, num_rows: int, capacities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row of each example, [m], -1 if none has space, and its offsets, [m, S]."""
    free_tokens = np.tile(np.array(capacities, np.int64), (num_rows, 1))
    assigned_rows = np.full(len(lengths), -1, dtype=np.int64)
    offsets = np.zeros(lengths.shape, dtype=np.int64)
    largest_fraction = (lengths / np.array(capacities)).max(axis=1)
    for example in np.argsort(-largest_fraction, kind="stable").tolist():
        num_tokens = lengths[example]
        has_space = np.all(free_tokens >= num_tokens, axis=1)
        row = int(has_space.argmax())
        if has_space[row]:
            assigned_rows[example], offsets[example] = row, capacities - free_tokens[row]
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
    offsets = packing_plan.offsets[:, 0]
    for example in np.argsort(offsets, kind="stable").tolist():
        text, row, begin = texts[example], packing_plan.rows[example], offsets[example]
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
