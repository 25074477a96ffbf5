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
from bert_jax.evals.validate_inputs import require_finite

N_BEST_SIZE = 20
MAX_ANSWER_LENGTH = 30
"""The most pieces in an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextWindow:
    """One row of a question, L pieces long, as the host knows it."""

    example_index: int  # which question, and so which context
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
    windows: Sequence[ContextWindow],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    allow_no_answer: bool = False,
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
    """Candidates as arrays, by falling score."""

    scores: np.ndarray  # float64 [n]
    char_offsets: np.ndarray  # int [n, 2]


def _best_spans(
    window: ContextWindow,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best_size: int,
    max_answer_length: int,
) -> _SpanCandidates:
    """The `most` best spans of a window, each of at most `longest` pieces."""
    length = len(window.offsets)
    in_context = window.offsets[:, 0] >= 0
    can_start = in_context & window.is_max_context
    # scores[i, d]: a span from piece i to piece i + d.
    end_indices = np.arange(length)[:, None] + np.arange(min(max_answer_length, length))
    in_window = end_indices < length
    end_indices = np.minimum(end_indices, length - 1)
    allowed = can_start[:, None] & in_window & in_context[end_indices]
    scores = np.where(allowed, start_logits[:, None] + end_logits[end_indices], -np.inf).ravel()
    n_best_size = min(n_best_size, int((scores > -np.inf).sum()))
    top_indices = (
        np.argpartition(-scores, n_best_size)[:n_best_size]
        if n_best_size < len(scores)
        else np.arange(n_best_size)
    )
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
            f"question {example_index} has no window with some of its context, so nothing can be "
            "answered"
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
    """Characters [start, end) without white space at their ends, which some tokenizers include."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
