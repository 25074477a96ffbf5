"""Several short examples in one row, kept apart by `packing_ids`.

Which examples share a batch is decided from their lengths alone: examples are taken in order, as
many as fit into the batch's rows by first fit decreasing, and none is skipped. The state of a
packed stream therefore is one number too, the examples consumed so far.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.token_table import TokenTable


class Plan(NamedTuple):
    """Where the first n examples go: rows [n] and offsets [n] of their first tokens, int64."""

    rows: np.ndarray
    offsets: np.ndarray


def plan(lengths: np.ndarray, rows: int, capacity: int) -> Plan:
    """Packs as many of the leading examples as fit into rows of `capacity` tokens.

    Examples that are longest are placed first, each in the first row with room. When some find no
    room, as many of the last examples are given up and the rest is placed anew.

    Args:
      lengths: [m] tokens of the coming examples with their special tokens, each at most capacity.
    """
    count = int(np.searchsorted(np.cumsum(lengths), rows * capacity, side="right"))
    while True:
        assigned, offsets = _first_fit_decreasing(lengths[:count], rows, capacity)
        homeless = int((assigned < 0).sum())
        if not homeless:
            return Plan(assigned, offsets)
        count -= homeless


def _first_fit_decreasing(
    lengths: np.ndarray, rows: int, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    room = np.full(rows, capacity, dtype=np.int64)
    assigned = np.full(len(lengths), -1, dtype=np.int64)
    offsets = np.zeros(len(lengths), dtype=np.int64)
    for example in np.argsort(-lengths, kind="stable").tolist():
        need = lengths[example]
        row = int((room >= need).argmax())
        if room[row] >= need:
            assigned[example], offsets[example] = row, capacity - room[row]
            room[row] -= need
    return assigned, offsets


def packed_rows(
    texts: Sequence[np.ndarray],
    keys: np.ndarray,
    placed: Plan,
    shape: tuple[int, int],
    table: TokenTable,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of several [CLS] text [SEP], unmasked.

    Args:
      texts: ids [T] of each example; keys: [n] uint64, their keys; placed: where each one goes.
      shape: (B, L).

    Returns:
      `input_ids`, `token_type_ids`, `attention_mask`, `position_ids` (from 0 in each example) and
      `packing_ids` (1, 2, ... along a row, 0 = padding), [B, L] int32; and each token's example
      key [B, L] uint64, for `mask_rows`.
    """
    input_ids = np.full(shape, table.pad_id, dtype=np.int32)
    position_ids, packing_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    token_keys = np.zeros(shape, np.uint64)
    counted = np.zeros(shape[0], dtype=np.int32)
    for example in np.argsort(placed.offsets, kind="stable").tolist():
        text, row, begin = texts[example], placed.rows[example], placed.offsets[example]
        end = begin + len(text) + 1
        input_ids[row, begin] = table.cls_id
        input_ids[row, begin + 1 : end] = text
        input_ids[row, end] = table.sep_id
        counted[row] += 1
        position_ids[row, begin : end + 1] = np.arange(len(text) + 2)
        packing_ids[row, begin : end + 1] = counted[row]
        token_keys[row, begin : end + 1] = keys[example]
    fields = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros(shape, dtype=np.int32),
        "attention_mask": (packing_ids > 0).astype(np.int32),
        "position_ids": position_ids,
        "packing_ids": packing_ids,
    }
    return fields, token_keys
