"""From start and end logits over windows of a context to answers in its own characters.

The rules are those of BERT's release (Devlin et al. 2019, sections 4.2 and 4.3, `run_squad.py`): an
answer starts at a piece in the window where that piece has most context, ends in the same window,
scores the sum of its two logits, and competes with "no answer", which scores the sum at [CLS] in
the window where that is least. Different from the release, all spans are candidates, not those of
the best starts and ends only, so the answer is always the best span that is allowed.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from bert_jax.errors import UserError
from bert_jax.evals.checks import require_numbers

N_BEST_SIZE = 20
MAX_ANSWER_LENGTH = 30
"""The most pieces in an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One row of a question, L pieces long, as the host knows it."""

    example: int  # which question, and so which context
    offsets: np.ndarray  # int [L, 2]: characters [start, end) of the context; (-1, -1) outside it
    is_max_context: np.ndarray  # bool [L]: no other window gives this piece more context


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One entry of an n-best list; "no answer" has the text "" and -1 for both characters."""

    text: str
    start: int
    end: int
    score: float  # sum of a start and an end logit
    probability: float  # softmax of the scores of the n-best list


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedAnswer:
    """The best answer to a question, and what it stood against."""

    best: Candidate  # never "no answer"
    no_answer_score: float  # score of "no answer" less that of `best`: > 0 where it is the greater
    n_best: tuple[Candidate, ...]  # by falling score, with "no answer" where that was asked for

    def text(self, threshold: float = 0.0) -> str:
        """What is answered in SQuAD 2.0: "" where `no_answer_score` exceeds `threshold`."""
        return "" if self.no_answer_score > threshold else self.best.text


def decode_answers(
    contexts: Sequence[str],
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    may_be_unanswerable: bool = False,
    n_best_size: int = N_BEST_SIZE,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> list[PredictedAnswer]:
    """The answer to each question.

    Args:
      contexts: the context of each question.
      windows: all windows of all questions, in any order.
      start_logits: for each window float [L], or longer where its row was padded.
      end_logits: likewise.
      may_be_unanswerable: whether "no answer" is one of the n-best and so shares in probability
        (SQuAD 2.0).
      n_best_size: the most spans in each n-best list.
      max_answer_length: the most pieces in an answer.

    Raises:
      UserError: logits that are NaN, or a question of which no window holds context.
    """
    spans: dict[int, list[_Spans]] = defaultdict(list)
    no_answer: dict[int, float] = {}
    for row, (window, starts, ends) in enumerate(
        zip(windows, start_logits, end_logits, strict=True)
    ):
        starts = np.asarray(starts[: len(window.offsets)], np.float64)
        ends = np.asarray(ends[: len(window.offsets)], np.float64)
        require_numbers(f"the logits of window {row}", starts + ends, infinite=True)
        spans[window.example].append(
            _best_spans(window, starts, ends, n_best_size, max_answer_length)
        )
        least = no_answer.get(window.example, np.inf)
        no_answer[window.example] = min(least, float(starts[0] + ends[0]))
    return [
        _answer(
            number,
            context,
            spans[number],
            no_answer.get(number, 0.0),
            n_best_size,
            may_be_unanswerable,
        )
        for number, context in enumerate(contexts)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spans:
    """Candidates as arrays, by falling score."""

    scores: np.ndarray  # float64 [n]
    characters: np.ndarray  # int [n, 2]


def _best_spans(
    window: Window, starts: np.ndarray, ends: np.ndarray, most: int, longest: int
) -> _Spans:
    """The `most` best spans of a window, each of at most `longest` pieces."""
    length = len(window.offsets)
    inside = window.offsets[:, 0] >= 0
    may_start = inside & window.is_max_context
    # scores[i, d]: a span from piece i to piece i + d.
    last = np.arange(length)[:, None] + np.arange(min(longest, length))
    reaches = last < length
    last = np.minimum(last, length - 1)
    allowed = may_start[:, None] & reaches & inside[last]
    scores = np.where(allowed, starts[:, None] + ends[last], -np.inf).ravel()
    most = min(most, int((scores > -np.inf).sum()))
    kept = np.argpartition(-scores, most)[:most] if most < len(scores) else np.arange(most)
    kept = kept[np.lexsort([kept, -scores[kept]])]
    first, extra = np.divmod(kept, last.shape[1])
    characters = np.stack([window.offsets[first, 0], window.offsets[last[first, extra], 1]], axis=1)
    return _Spans(scores=scores[kept], characters=characters)


def _answer(
    number: int,
    context: str,
    spans: Sequence[_Spans],
    no_answer: float,
    n_best_size: int,
    may_be_unanswerable: bool,
) -> PredictedAnswer:
    scored = [
        (float(score), *_trimmed(context, int(start), int(end)))
        for found in spans
        for score, (start, end) in zip(found.scores, found.characters, strict=True)
    ]
    scored.sort(key=lambda candidate: -candidate[0])
    if not scored:
        raise UserError(
            f"question {number} has no window with some of its context, so nothing can be answered"
        )
    best_score = scored[0][0]
    scored = scored[:n_best_size]
    if may_be_unanswerable:
        scored = sorted([*scored, (no_answer, -1, -1)], key=lambda candidate: -candidate[0])
    shares = softmax([score for score, _, _ in scored])
    n_best = tuple(
        Candidate(
            text=context[start:end] if start >= 0 else "",
            start=start,
            end=end,
            score=score,
            probability=float(share),
        )
        for (score, start, end), share in zip(scored, shares, strict=True)
    )
    best = next(candidate for candidate in n_best if candidate.start >= 0)
    return PredictedAnswer(best=best, no_answer_score=no_answer - best_score, n_best=n_best)


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """Characters [start, end) without white space at their ends, which some tokenizers include."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
