"""Plans rows of several short texts, so that the encoder computes little padding.

A process collates its own texts, and the parts of a batch are encoded one after another: they are
microbatches (gradient accumulation) or chunks (`objective.chunk_size`). So each process has rows of
its own for each part. Which texts share a row decides their dropout, and it depends on the number
of processes.
"""

import bisect
from collections.abc import Iterator, Sequence

import numpy as np


def fill_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Returns the texts of each row: the longest first, each in the fullest row that fits.

    Args:
      lengths: the number of tokens of each text, at most `row_length`.
    """
    rows: list[list[int]] = []
    by_free_tokens: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        found = bisect.bisect_left(by_free_tokens, (lengths[text], 0))
        if found == len(by_free_tokens):
            free, row = row_length, len(rows)
            rows.append([])
        else:
            free, row = by_free_tokens.pop(found)
        rows[row].append(text)
        bisect.insort(by_free_tokens, (free - lengths[text], row))
    return rows


def rows_per_part(
    lengths_BA: np.ndarray, row_length: int, process_count: int, num_parts: int
) -> int:
    """Returns the most rows that the texts of one process in one part of a batch need.

    Args:
      lengths_BA: int [B, A], the number of tokens of each text.
      num_parts: example i is in the part i % num_parts.
    """
    groups = _groups(len(lengths_BA), process_count, num_parts)
    return max(len(fill_rows(lengths_BA[group].ravel().tolist(), row_length)) for group in groups)


def packed_tokens(
    lengths_BA: np.ndarray, shape: tuple[int, int], process_count: int, num_parts: int
) -> np.ndarray:
    """Returns the field `packed_tokens` of a batch, int32 [R, L]; see `bert_jax.batch`.

    Row i is in the part i % num_parts, whose texts it numbers, and every process has equally many.

    Args:
      lengths_BA, num_parts: see `rows_per_part`.
      shape: R and L.

    Raises:
      ValueError: there are not enough rows.
    """
    num_rows, length = shape
    found = np.full((process_count, num_rows // process_count, length), -1, np.int32)
    groups = _groups(len(lengths_BA), process_count, num_parts)
    for number, examples in enumerate(groups):
        process, part = divmod(number, num_parts)
        lengths = lengths_BA[examples].ravel().tolist()
        num_texts = lengths_BA.shape[1]
        numbers = ((examples // num_parts)[:, None] * num_texts + np.arange(num_texts)).ravel()
        rows, filled = found[process, part::num_parts], fill_rows(lengths, length)
        if len(filled) > len(rows):
            raise ValueError(f"the texts need {len(filled)} rows, but there are {len(rows)}")
        for row, texts in zip(rows, filled, strict=False):
            tokens = [numbers[text] * length + np.arange(lengths[text]) for text in texts]
            row[: sum(map(len, tokens))] = np.concatenate(tokens)
    return found.reshape(shape)


def _groups(num_examples: int, process_count: int, num_parts: int) -> Iterator[np.ndarray]:
    for examples in np.split(np.arange(num_examples), process_count):
        for part in range(num_parts):
            yield examples[examples % num_parts == part]
