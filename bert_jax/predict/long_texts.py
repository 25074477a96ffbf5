"""Texts longer than a row: which of their pieces are read, and one outcome from several windows."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from scipy.special import log_softmax, logsumexp

from bert_jax.data.labelled.example import TextExample
from bert_jax.data.labelled.rows import Features, longest_first, pair_row
from bert_jax.data.labelled.windows import window_starts
from bert_jax.text.vocabulary import Vocabulary

Long = Literal["head", "tail", "head+tail", "windows"]
"""The first pieces that fit, the last ones, some of both (Sun et al. 2019, 5.3.1), or all of them
in overlapping windows. Of a pair that is too long, the longer text is cut first; with windows they
are windows of the longer text, beside the other, of which half a row is read at most."""
LONGS: tuple[Long, ...] = get_args(Long)

Pool = Literal["mean", "max", "first"]
"""Over the windows' probabilities, or their values: the mean, the greatest of each class (scaled to
add up to 1), or those of the first window."""
POOLS: tuple[Pool, ...] = get_args(Pool)

_HEAD, _WHOLE = 128, 510
"""Of so many pieces, Sun et al. take so many from the beginning."""


def text_rows(
    examples: Sequence[TextExample],
    vocabulary: Vocabulary,
    max_length: int,
    long: Long,
    stride: int,
) -> Features:
    """As `make_features` of texts and pairs, but of long ones the pieces that `long` says.

    Args:
      stride: pieces that two windows of one text share.
    """
    first = vocabulary.encode_ids([example.text for example in examples])
    pairs = [example.text_pair for example in examples]
    second = iter(vocabulary.encode_ids([text for text in pairs if text is not None]))
    features, owners = Features(), []
    for index, (a, pair) in enumerate(zip(first, pairs, strict=True)):
        b = None if pair is None else next(second)
        if b is None:
            kept, others = min(len(a), max_length - 2), 0
        else:
            kept, others = longest_first(len(a), len(b), max_length - 3)
        rows, cut = _rows(a, b, kept, others, long, stride)
        for left, right in rows:
            ids, types, _ = pair_row(left, right, vocabulary, max_length)
            features.input_ids.append(ids)
            features.token_type_ids.append(types)
            owners.append(index)
        features.truncated += cut
    features.example = np.array(owners, np.int64)
    return features


def _rows(
    a: np.ndarray, b: np.ndarray | None, kept: int, others: int, long: Long, stride: int
) -> tuple[list[tuple[np.ndarray, np.ndarray | None]], bool]:
    """Both texts of each row, `kept` pieces of `a`, `others` of `b`; and whether some are lost."""
    if kept == len(a) and (b is None or others == len(b)):
        return [(a, b)], False
    if long != "windows":
        return [
            (_shortened(a, kept, long), None if b is None else _shortened(b, others, long))
        ], True
    if b is None:
        return [(window, None) for window in _windows(a, kept, stride)], False
    if len(a) > len(b):
        return [(window, b[:others]) for window in _windows(a, kept, stride)], others < len(b)
    return [(a[:kept], window) for window in _windows(b, others, stride)], kept < len(a)


def _shortened(pieces: np.ndarray, kept: int, long: Long) -> np.ndarray:
    if long == "head" or kept == len(pieces):
        return pieces[:kept]
    head = kept * _HEAD // _WHOLE if long == "head+tail" else 0
    return np.concatenate([pieces[:head], pieces[len(pieces) - (kept - head) :]])


def _windows(pieces: np.ndarray, room: int, stride: int) -> list[np.ndarray]:
    starts = window_starts(len(pieces), room, min(stride, room // 2))
    return [pieces[start : start + room] for start in starts]


def pool_windows(
    outputs: Mapping[str, Sequence[np.ndarray]], example: np.ndarray, pool: Pool
) -> dict[str, list[np.ndarray]]:
    """One output for each example.

    Args:
      outputs: {"logits": [C] for each row} or {"values": [] for each row}.
      example: ascending; the number of the example of each row.

    Returns:
      The same name, with logarithms of the pooled probabilities as the logits. What an example with
      one row has is left as it is.
    """
    first_rows = np.flatnonzero(np.diff(example, prepend=-1))
    return {
        name: [
            window[0] if len(window) == 1 else _pooled(name, window, pool)
            for window in np.split(np.stack(list(rows)), first_rows[1:])
        ]
        for name, rows in outputs.items()
    }


def _pooled(name: str, windows: np.ndarray, pool: Pool) -> np.ndarray:
    windows = windows.astype(np.float64)
    if pool == "first":
        return windows[0]
    if name == "values":
        return windows.mean(axis=0) if pool == "mean" else windows.max(axis=0)
    shares = log_softmax(windows, axis=-1)
    if pool == "max":
        return shares.max(axis=0)
    return logsumexp(shares, axis=0) - np.log(len(windows))
