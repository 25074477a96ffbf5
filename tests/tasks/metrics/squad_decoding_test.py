"""Compares the decoding of answers with a search over all spans of all windows."""

import numpy as np
import pytest

from bert_jax.data.finetuning.features import max_context, window_starts
from bert_jax.errors import UserError
from bert_jax.tasks.metrics.squad_decoding import ContextWindow, decode_answers

CONTEXT = "Émile  left\tParis in 1885, and wrote “La Terre” there; it came out in 1887."


def token_offsets(context: str) -> list[tuple[int, int]]:
    """Returns the offsets of tokens of at most three characters of each word."""
    offsets, place = [], 0
    for word in context.split():
        start = context.index(word, place)
        place = start + len(word)
        offsets += [(s, min(s + 3, place)) for s in range(start, place, 3)]
    return offsets


def make_windows(
    context: str, context_size: int, stride: int, example: int = 0
) -> list[ContextWindow]:
    """Builds windows [CLS] question [SEP] context [SEP] with a question of two tokens."""
    tokens = token_offsets(context)
    starts = window_starts(len(tokens), context_size, stride)
    windows = []
    for start, central in zip(starts, max_context(len(tokens), context_size, starts), strict=True):
        here = tokens[start : start + context_size]
        outside = [(-1, -1)]
        offsets = np.array([*outside * 4, *here, *outside])
        is_max_context = np.array([*[False] * 4, *central, False])
        windows.append(
            ContextWindow(example_index=example, offsets=offsets, is_max_context=is_max_context)
        )
    return windows


def random_logits(windows: list[ContextWindow], seed: int, padding: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=len(w.offsets) + padding).astype(np.float32) for w in windows]


def all_spans(
    window: ContextWindow, starts: np.ndarray, ends: np.ndarray, longest: int
) -> list[tuple[float, int, int]]:
    """Returns (score, first character, end) of every valid span."""
    found = []
    for first in range(len(window.offsets)):
        for last in range(first, min(first + longest, len(window.offsets))):
            inside = window.offsets[first][0] >= 0 and window.offsets[last][0] >= 0
            if inside and window.is_max_context[first]:
                score = float(starts[first]) + float(ends[last])
                found.append((score, int(window.offsets[first][0]), int(window.offsets[last][1])))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("longest", [1, 3, 30])
def test_best_spans_in_order_of_score(seed: int, longest: int):
    contexts = [CONTEXT, "One two three four five."]
    windows = [*make_windows(CONTEXT, 9, 4), *make_windows(contexts[1], 9, 4, example=1)]
    starts, ends = random_logits(windows, seed), random_logits(windows, seed + 100)
    order = np.random.default_rng(seed).permutation(len(windows))
    answers = decode_answers(
        contexts,
        [windows[k] for k in order],
        [starts[k] for k in order],
        [ends[k] for k in order],
        n_best_size=7,
        max_answer_length=longest,
    )
    assert len(windows) > 3 and len(answers) == 2
    for example, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
        own_windows = [k for k, window in enumerate(windows) if window.example_index == example]
        spans = [s for k in own_windows for s in all_spans(windows[k], starts[k], ends[k], longest)]
        expected = sorted(spans, reverse=True)[:7]
        assert [(c.score, c.start, c.end) for c in answer.n_best] == expected
        assert all(c.text == context[c.start : c.end] != "" for c in answer.n_best)
        shares = np.exp([score for score, _, _ in expected])
        assert [c.probability for c in answer.n_best] == pytest.approx(shares / shares.sum())
        assert answer.best == answer.n_best[0]
        no_answer = min(float(starts[k][0]) + float(ends[k][0]) for k in own_windows)
        assert answer.no_answer_score == pytest.approx(no_answer - expected[0][0])


def test_overlapping_windows_give_no_duplicate_spans():
    windows = make_windows(CONTEXT, 12, 6)
    assert len(windows) > 2
    (answer,) = decode_answers(
        [CONTEXT], windows, random_logits(windows, 0), random_logits(windows, 1), n_best_size=10**4
    )
    spans = [(candidate.start, candidate.end) for candidate in answer.n_best]
    assert len(set(spans)) == len(spans) > 100


def test_no_answer_score_is_the_smallest_over_windows():
    (window,) = make_windows("yes no", 9, 4)
    assert window.offsets[4:6].tolist() == [[0, 3], [4, 6]]
    starts, ends = np.array([[2.0, 9, 9, 9, 1, 0, 9], [1.5, 9, 9, 9, 0, 1, 9]])
    (answer,) = decode_answers(["yes no"], [window], [starts], [ends], allow_no_answer=True)
    assert [c.text for c in answer.n_best] == ["", "yes no", "yes", "no"]
    assert [c.score for c in answer.n_best] == [3.5, 2, 1, 1]
    assert sum(c.probability for c in answer.n_best) == pytest.approx(1)
    assert answer.best.text == "yes no" and answer.no_answer_score == 1.5
    assert answer.text() == "" and answer.text(1.5) == answer.text(2.0) == "yes no"
    (single,) = decode_answers(
        ["yes no"], [window], [starts], [ends], allow_no_answer=True, n_best_size=1
    )
    assert [c.text for c in single.n_best] == ["", "yes no"] and single.best.text == "yes no"


def test_padding_and_masked_tokens_are_never_chosen():
    windows = make_windows(CONTEXT, 9, 4)
    starts, ends = random_logits(windows, 3, padding=5), random_logits(windows, 4, padding=5)
    plain = decode_answers([CONTEXT], windows, starts, ends)
    for logits in (*starts, *ends):
        logits[-5:] = 100  # padding
        logits[1:4] = -np.inf  # the question, which a model may mask
    assert decode_answers([CONTEXT], windows, starts, ends) == plain


def test_answers_exclude_the_white_space_of_tokens():
    window = ContextWindow(
        example_index=0,
        offsets=np.array([[-1, -1], [0, 4], [4, 8]]),
        is_max_context=np.array([False, True, True]),
    )
    starts, ends = np.array([0.0, 1, 2]), np.array([2.0, 0.5, 0])
    (answer,) = decode_answers(["one two  "], [window], [starts], [ends])
    assert [(c.text, c.start, c.end) for c in answer.n_best] == [
        ("two", 4, 7),
        ("one", 0, 3),
        ("one two", 0, 7),
    ]


def test_invalid_inputs_are_rejected():
    windows = make_windows(CONTEXT, 9, 4)
    logits = random_logits(windows, 0)
    with pytest.raises(UserError, match="question 1 has no window with a part of its context"):
        decode_answers([CONTEXT, ""], windows, logits, logits)
    logits[1][2] = np.nan
    with pytest.raises(UserError, match="the logits of window 1 hold nan, first at 2"):
        decode_answers([CONTEXT], windows, logits, logits)
