"""Overlapping windows over what is longer than a row, and which window decides each piece."""

import numpy as np


def window_starts(num_tokens: int, window_length: int, window_overlap: int) -> list[int]:
    """Where windows of `room` pieces start that overlap by `stride` and cover `length` pieces.

    The last one may be shorter, as in Hugging Face's tokenizers (`return_overflowing_tokens`).
    There is one window even over nothing.
    """
    starts = [0]
    while starts[-1] + window_length < num_tokens:
        starts.append(starts[-1] + window_length - window_overlap)
    return starts


def max_context(num_tokens: int, window_length: int, starts: list[int]) -> list[np.ndarray]:
    """For each window bool [its length]: whether it gives a piece more context than the others.

    A piece's context is the smaller of the pieces to its left and to its right within the window;
    among equals the longer window wins, then the earlier one (Devlin et al.'s `run_squad.py`).
    """
    positions = np.arange(num_tokens)
    score = np.full((len(starts), num_tokens), -1.0)
    for window_index, start in enumerate(starts):
        current_length = min(window_length, num_tokens - start)
        positions_in_window = positions[start : start + current_length] - start
        score[window_index, start : start + current_length] = (
            np.minimum(positions_in_window, current_length - 1 - positions_in_window)
            + 0.01 * current_length
        )
    best_window = np.argmax(score, axis=0) if num_tokens else np.zeros(0, np.int64)
    return [
        best_window[start : start + window_length] == window_index
        if num_tokens
        else np.zeros(0, bool)
        for window_index, start in enumerate(starts)
    ]
