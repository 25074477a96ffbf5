"""Tests that windows cover all tokens with the given overlap, and each token's best window."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.finetuning.features import max_context, window_starts


@given(st.integers(0, 300), st.integers(4, 60), st.data())
def test_every_token_has_one_window_with_maximum_context(length, window_size, data):
    stride = data.draw(st.integers(0, window_size // 2))
    starts = window_starts(length, window_size, stride)
    assert starts[0] == 0
    assert all(b - a == window_size - stride for a, b in itertools.pairwise(starts))
    assert starts[-1] + window_size >= length and (len(starts) == 1 or starts[-1] < length)
    num_windows = np.zeros(length, int)
    for start, central in zip(starts, max_context(length, window_size, starts), strict=True):
        size = min(window_size, length - start)
        assert len(central) == max(size, 0)
        num_windows[start : start + size] += central
        for token in np.flatnonzero(central) + start:
            best = _context(token, start, window_size, length)
            assert all(best >= _context(token, other, window_size, length) for other in starts)
    assert (num_windows == 1).all()


def _context(token, start, window_size, length):
    """Returns the smaller number of tokens on a side of a token in a window; -1 if not in it."""
    end = min(start + window_size, length)
    return min(token - start, end - 1 - token) if start <= token < end else -1


def test_windows_of_bert_release():
    """Tests the example in `run_squad.py`: B has more context in the second of two windows."""
    assert window_starts(8, 5, 2) == [0, 3]
    first, second = max_context(8, 5, [0, 3])
    np.testing.assert_array_equal(first, [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(second, [0, 1, 1, 1, 1])
