"""Texts of any length as batches of few shapes: each new shape costs a compilation."""

from collections.abc import Iterator, Sequence

import numpy as np

SHORTEST = 16
TOKENS_PER_BATCH = 4096
Batch = dict[str, np.ndarray]


def round_up(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def batches(
    rows: Sequence[Sequence[int]], *, pad_id: int, max_length: int
) -> Iterator[tuple[list[int], Batch]]:
    """Rows of ids, those of like length together, as padded batches.

    Lengths are padded to 16, 32, 64, ... or `max_length`, numbers of rows to 1, 2, 4, ...

    Args:
      rows: ids of each text, with special tokens; at most `max_length` each.
      pad_id: what pads a row.
      max_length: positions that the model has.

    Yields:
      (indices into `rows`, batch): the encoder's fields, int32 [B, L]; the rows after those of the
      indices are padding.
    """
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    while order:
        longest = len(rows[order[-1]])
        length = min(max(round_up(longest), SHORTEST), max_length)
        wanted = max(TOKENS_PER_BATCH // length, 1)
        # From the longest down, so that the biggest buffers are asked for first.
        chosen, order = order[-wanted:], order[:-wanted]
        yield chosen, _pad([rows[index] for index in chosen], pad_id, length)


def _pad(rows: Sequence[Sequence[int]], pad_id: int, length: int) -> Batch:
    shape = (round_up(len(rows)), length)
    ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    mask[len(rows) :, 0] = 1  # an empty row has no defined attention
    return {"input_ids": ids, "token_type_ids": np.zeros(shape, np.int32), "attention_mask": mask}
