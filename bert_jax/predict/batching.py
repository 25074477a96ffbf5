"""Texts of any length as batches of few shapes: each new shape costs a compilation."""

from collections.abc import Iterator, Sequence

import numpy as np

MIN_LENGTH = 16
TOKENS_PER_BATCH = 4096
Batch = dict[str, np.ndarray]


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def padded_batches(
    sequences: Sequence[Sequence[int]], *, pad_id: int, max_length: int
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
    remaining = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    while remaining:
        longest = len(sequences[remaining[-1]])
        length = min(max(next_power_of_two(longest), MIN_LENGTH), max_length)
        batch_size = max(TOKENS_PER_BATCH // length, 1)
        # From the longest down, so that the biggest buffers are asked for first.
        batch_indices, remaining = remaining[-batch_size:], remaining[:-batch_size]
        yield batch_indices, _pad([sequences[index] for index in batch_indices], pad_id, length)


def _pad(sequences: Sequence[Sequence[int]], pad_id: int, length: int) -> Batch:
    shape = (next_power_of_two(len(sequences)), length)
    ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
        mask[index, : len(sequence)] = 1
    mask[len(sequences) :, 0] = 1  # an empty row has no defined attention
    return {"input_ids": ids, "token_type_ids": np.zeros(shape, np.int32), "attention_mask": mask}
