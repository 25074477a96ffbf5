"""Decodes answers from start and end logits over the windows of a context.

The rules are as in BERT's `run_squad.py` (Devlin et al. 2019, sections 4.2 and 4.3). An answer
starts at a token in the window that gives this token most context, and ends in the same window.
Its score is the sum of its start and end logits. "No answer" scores the sum at [CLS], in the window
with the lowest sum. Unlike `run_squad.py`, which combines the best starts with the best ends, this
module considers all spans, so the result is always the best allowed span.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.validate_inputs import require_finite

N_BEST_SIZE = 20
MAX_ANSWER_LENGTH = 30
"""Maximum number of tokens in an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextWindow:
    """Describes one sequence of a question, with L tokens."""

    example_index: int  # index of the question and its context
    offsets: np.ndarray  # int [L, 2]: characters [start, end) of the context; (-1, -1) outside it
    is_max_context: np.ndarray  # bool [L]: no other window gives this token more context


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Holds one entry of an n-best list; "no answer" has the text "" and the characters -1, -1."""

    text: str
    start: int
    end: int
    score: float  # sum of a start and an end logit
    probability: float  # softmax of the scores of the n-best list


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedAnswer:
    """Holds the best answer to a question, and the other candidates."""

    best: Candidate  # never "no answer"
    no_answer_score: float  # score of "no answer" minus the score of `best`
    n_best: tuple[Candidate, ...]  # by descending score, with "no answer" if it was allowed

    def text(self, threshold: float = 0.0) -> str:
        """Returns the answer for SQuAD 2.0: "" if `no_answer_score` exceeds `threshold`."""
        return "" if self.no_answer_score > threshold else self.best.text


def decode_answers(
    contexts: Sequence[str],
    windows: Sequence[ContextWindow],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    allow_no_answer: bool = False,
    n_best_size: int = N_BEST_SIZE,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> list[PredictedAnswer]:
    """Decodes the answer to each question.

    Args:
      contexts: the context of each question.
      windows: all windows of all questions, in any order.
      start_logits: for each window float [L], or longer if it was padded.
      end_logits: likewise.
      allow_no_answer: whether "no answer" is a candidate and has a probability (SQuAD 2.0).
      n_best_size: maximum number of spans in each n-best list.
      max_answer_length: maximum number of tokens in an answer.

    Raises:
      UserError: a logit is NaN, or no window of a question contains a part of its context.
    """
    spans_by_example: dict[int, list[_SpanCandidates]] = defaultdict(list)
    null_scores: dict[int, float] = {}
    for window_index, (window, window_start_logits, window_end_logits) in enumerate(
        zip(windows, start_logits, end_logits, strict=True)
    ):
        window_start_logits = np.asarray(window_start_logits[: len(window.offsets)], np.float64)
        window_end_logits = np.asarray(window_end_logits[: len(window.offsets)], np.float64)
        require_finite(
            f"the logits of window {window_index}",
            window_start_logits + window_end_logits,
            allow_infinite=True,
        )
        spans_by_example[window.example_index].append(
            _best_spans(
                window, window_start_logits, window_end_logits, n_best_size, max_answer_length
            )
        )
        # As in `run_squad.py`: "no answer" must be likely in every window, because an answer may be
        # in any.
        lowest_null_score = null_scores.get(window.example_index, np.inf)
        null_scores[window.example_index] = min(
            lowest_null_score, float(window_start_logits[0] + window_end_logits[0])
        )
    return [
        _predict_answer(
            example_index,
            context,
            spans_by_example[example_index],
            null_scores.get(example_index, 0.0),
            n_best_size,
            allow_no_answer,
        )
        for example_index, context in enumerate(contexts)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _SpanCandidates:
    """Holds candidates as arrays, by descending score."""

    scores: np.ndarray  # float64 [n]
    char_offsets: np.ndarray  # int [n, 2]


def _best_spans(
    window: ContextWindow,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best_size: int,
    max_answer_length: int,
) -> _SpanCandidates:
    """Returns the `n_best_size` best spans of a window."""
    length = len(window.offsets)
    in_context = window.offsets[:, 0] >= 0
    can_start = in_context & window.is_max_context
    # scores[i, d] is the score of the span from token i to token i + d.
    end_indices = np.arange(length)[:, None] + np.arange(min(max_answer_length, length))
    in_window = end_indices < length
    end_indices = np.minimum(end_indices, length - 1)
    allowed = can_start[:, None] & in_window & in_context[end_indices]
    scores = np.where(allowed, start_logits[:, None] + end_logits[end_indices], -np.inf).ravel()
    n_best_size = min(n_best_size, int((scores > -np.inf).sum()))
    top_indices = (
        # Only the best few are sorted, out of thousands of spans.
        np.argpartition(-scores, n_best_size)[:n_best_size]
        if n_best_size < len(scores)
        else np.arange(n_best_size)
    )
    # `argpartition` returns any order, so equal scores are ordered by place: the earlier span wins.
    top_indices = top_indices[np.lexsort([top_indices, -scores[top_indices]])]
    start_indices, extra_tokens = np.divmod(top_indices, end_indices.shape[1])
    char_offsets = np.stack(
        [
            window.offsets[start_indices, 0],
            window.offsets[end_indices[start_indices, extra_tokens], 1],
        ],
        axis=1,
    )
    return _SpanCandidates(scores=scores[top_indices], char_offsets=char_offsets)


def _predict_answer(
    example_index: int,
    context: str,
    spans_by_window: Sequence[_SpanCandidates],
    null_score: float,
    n_best_size: int,
    allow_no_answer: bool,
) -> PredictedAnswer:
    scored = [
        (float(score), *_trim(context, int(start), int(end)))
        for window_spans in spans_by_window
        for score, (start, end) in zip(window_spans.scores, window_spans.char_offsets, strict=True)
    ]
    scored.sort(key=lambda candidate: -candidate[0])
    if not scored:
        raise UserError(
            f"question {example_index} has no window with a part of its context; expected at "
            "least one token of context"
        )
    best_score = scored[0][0]
    scored = scored[:n_best_size]
    if allow_no_answer:
        scored = sorted([*scored, (null_score, -1, -1)], key=lambda candidate: -candidate[0])
    probabilities = softmax([score for score, _, _ in scored])
    n_best = tuple(
        Candidate(
            text=context[start:end] if start >= 0 else "",
            start=start,
            end=end,
            score=score,
            probability=float(probability),
        )
        for (score, start, end), probability in zip(scored, probabilities, strict=True)
    )
    best = next(candidate for candidate in n_best if candidate.start >= 0)
    return PredictedAnswer(best=best, no_answer_score=null_score - best_score, n_best=n_best)


def _trim(context: str, start: int, end: int) -> tuple[int, int]:
    """Removes white space from both ends of [start, end): some tokenizers include it in tokens."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
