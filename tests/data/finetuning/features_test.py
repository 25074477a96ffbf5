"""Windows cover everything, overlap as asked, and each piece has one window that decides it."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.finetuning.features import max_context, window_starts


@given(st.integers(0, 300), st.integers(4, 60), st.data())
def test_every_piece_is_decided_once_where_its_context_is_greatest(length, room, data):
    stride = data.draw(st.integers(0, room // 2))
    starts = window_starts(length, room, stride)
    assert starts[0] == 0
    assert all(b - a == room - stride for a, b in itertools.pairwise(starts))
    assert starts[-1] + room >= length and (len(starts) == 1 or starts[-1] < length)
    decided = np.zeros(length, int)
    for start, central in zip(starts, max_context(length, room, starts), strict=True):
        size = min(room, length - start)
        assert len(central) == max(size, 0)
        decided[start : start + size] += central
        for piece in np.flatnonzero(central) + start:
            mine = _context(piece, start, room, length)
            assert all(mine >= _context(piece, other, room, length) for other in starts)
    assert (decided == 1).all()


def _context(piece, start, room, length):
    """The smaller number of neighbors that a piece has in a window; -1 where it is not in it."""
    end = min(start + room, length)
    return min(piece - start, end - 1 - piece) if start <= piece < end else -1


def test_windows_of_bert_release():
    """The example in `run_squad.py`: B is better placed in the second of two windows."""
    assert window_starts(8, 5, 2) == [0, 3]
    first, second = max_context(8, 5, [0, 3])
    np.testing.assert_array_equal(first, [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(second, [0, 1, 1, 1, 1])
