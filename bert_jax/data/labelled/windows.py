"""Overlapping windows over what is longer than a row, and which window decides each piece."""

import numpy as np


def window_starts(length: int, room: int, stride: int) -> list[int]:
    """Where windows of `room` pieces start that overlap by `stride` and cover `length` pieces.

    The last one may be shorter, as in Hugging Face's tokenizers (`return_overflowing_tokens`).
    There is one window even over nothing.
    """
    starts = [0]
    while starts[-1] + room < length:
        starts.append(starts[-1] + room - stride)
    return starts


def most_central(length: int, room: int, starts: list[int]) -> list[np.ndarray]:
    """For each window bool [its length]: whether it gives a piece more context than the others.

    A piece's context is the smaller of the pieces to its left and to its right within the window;
    among equals the longer window wins, then the earlier one (Devlin et al.'s `run_squad.py`).
    """
    place = np.arange(length)
    score = np.full((len(starts), length), -1.0)
    for row, start in enumerate(starts):
        size = min(room, length - start)
        here = place[start : start + size] - start
        score[row, start : start + size] = np.minimum(here, size - 1 - here) + 0.01 * size
    best = np.argmax(score, axis=0) if length else np.zeros(0, np.int64)
    return [
        best[start : start + room] == row if length else np.zeros(0, bool)
        for row, start in enumerate(starts)
    ]
