"""Computes exact match and F1 of answers like the official SQuAD scripts, versions 1.1 and 2.0.

Rajpurkar et al. 2016 (section 6.1) and Rajpurkar, Jia and Liang 2018. Both scripts ignore case,
punctuation, articles and extra white space, use the best of several reference answers, and give
percentages. They differ in details, see `squad1_scores` and `squad2_scores`.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.validate_inputs import require_finite, require_matching_counts

ReferenceAnswers = Sequence[str]
"""Texts of the right answers; empty if the question has no answer."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WORD_PATTERN = re.compile(r"[a-z]+")
_QUESTION_WORDS = {
    **{word: word for word in ("what", "who", "when", "where", "which", "why", "how")},
    "whom": "who",
    "whose": "who",
}


@dataclass(frozen=True, kw_only=True)
class AnswerScores:
    """Holds the scores of each question, between 0 and 1."""

    exact: np.ndarray  # float64 [n]
    f1: np.ndarray  # float64 [n]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionWordScores:
    """Holds the scores of the questions with one question word, in percent."""

    word: str
    count: int
    exact_match: float
    f1: float


def normalize_answer(text: str) -> str:
    """Lowercases, removes ASCII punctuation and English articles, and joins words by spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad1_scores(
    references: Sequence[ReferenceAnswers], predictions: Sequence[str]
) -> AnswerScores:
    """Scores answers as the 1.1 script: an answer without words has F1 0 even if it matches.

    Raises:
      UserError: there are no questions, or one has no reference answer.
    """
    require_matching_counts("questions", len(references), len(predictions))
    for question_index, answers in enumerate(references):
        if not answers:
            raise UserError(
                f"question {question_index} has no reference answer; expected at least one in "
                "SQuAD 1.1 (use the metrics of 2.0 for questions without an answer)"
            )
    return _score_answers(references, predictions, both_empty=0.0)


def squad2_scores(
    references: Sequence[ReferenceAnswers], predictions: Sequence[str]
) -> AnswerScores:
    """Scores answers as the 2.0 script before any threshold; "" answers a question without answer.

    Reference answers without words do not count. Two answers without words have F1 1.

    Raises:
      UserError: there are no questions.
    """
    require_matching_counts("questions", len(references), len(predictions))
    references_with_words = [
        [text for text in answers if normalize_answer(text)] or [""] for answers in references
    ]
    return _score_answers(references_with_words, predictions, both_empty=1.0)


def squad1_metrics(
    references: Sequence[ReferenceAnswers], predictions: Sequence[str]
) -> dict[str, float]:
    """Computes {"exact_match", "f1"} of SQuAD 1.1, in percent.

    Args:
      references: the texts of the right answers to each question, at least one.
      predictions: one answer to each question.

    Raises:
      UserError: there are no questions, or one has no reference answer.
    """
    scores = squad1_scores(references, predictions)
    return {"exact_match": _percent(scores.exact), "f1": _percent(scores.f1)}


def squad2_metrics(
    references: Sequence[ReferenceAnswers],
    predictions: Sequence[str],
    no_answer_scores: np.ndarray,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Computes the metrics of SQuAD 2.0, in percent, with the names of the official script.

    Args:
      references: the texts of the right answers to each question; none if it has no answer.
      predictions: the best answer to each question that is not "no answer".
      no_answer_scores: float [n], higher if "no answer" is more likely: a probability, or
        `PredictedAnswer.no_answer_score`.
      threshold: a question with a higher score counts as unanswered.

    Returns:
      exact, f1, total                       over all questions, at `threshold`
      HasAns_exact, HasAns_f1, HasAns_total  over questions with an answer, if there are any
      NoAns_exact, NoAns_f1, NoAns_total     over questions without an answer, if any
      best_exact, best_exact_thresh          the best value over all thresholds on these
      best_f1, best_f1_thresh                questions, and its threshold

      Two details of the script are kept so that numbers can be compared: if it is best to answer
      nothing, the threshold is 0.0; and a threshold may lie among questions with equal scores.

    Raises:
      UserError: there are no questions, or a score is NaN.
    """
    raw = squad2_scores(references, predictions)
    no_answer_scores = np.asarray(no_answer_scores, np.float64)
    require_matching_counts("questions", len(references), len(no_answer_scores))
    require_finite("the no-answer scores", no_answer_scores, allow_infinite=True)
    answerable = np.array([bool(answers) for answers in references])
    scores = apply_threshold(raw, answerable, no_answer_scores, threshold)
    metrics = _summarize_scores(scores, np.ones_like(answerable), "")
    for prefix, selected in (("HasAns_", answerable), ("NoAns_", ~answerable)):
        if selected.any():
            metrics |= _summarize_scores(scores, selected, prefix)
    answered = np.array([bool(text) for text in predictions])
    for name, values in (("exact", raw.exact), ("f1", raw.f1)):
        best = _best_threshold(values, answerable, answered, no_answer_scores)
        metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best
    return metrics


def apply_threshold(
    scores: AnswerScores, answerable: np.ndarray, no_answer_scores: np.ndarray, threshold: float
) -> AnswerScores:
    """Returns the scores if questions with a high no-answer score are left unanswered.

    An unanswered question gets exact match and F1 1.0 if it has no answer, and 0.0 otherwise. The
    other questions keep their scores.

    Args:
      scores: the scores if every question gets its predicted answer, n questions.
      answerable: bool [n], whether the question has an answer.
      no_answer_scores: float [n], higher if "no answer" is more likely.
      threshold: a question with a higher no-answer score is left unanswered.
    """
    unanswered = no_answer_scores > threshold
    no_answer_credit = (~answerable).astype(np.float64)
    return AnswerScores(
        exact=np.where(unanswered, no_answer_credit, scores.exact),
        f1=np.where(unanswered, no_answer_credit, scores.f1),
    )


def question_word(question: str) -> str:
    """Returns the first question word of an English question, or "other".

    "whom" and "whose" become "who". "how many" and "how much" both ask for a number and become
    "how many".
    """
    words = _WORD_PATTERN.findall(question.lower())
    for index, word in enumerate(words):
        if word == "how" and words[index + 1 : index + 2] in (["many"], ["much"]):
            return "how many"
        if word in _QUESTION_WORDS:
            return _QUESTION_WORDS[word]
    return "other"


def question_word_table(
    questions: Sequence[str], scores: AnswerScores
) -> tuple[QuestionWordScores, ...]:
    """Computes exact match and F1 by question word, the most frequent first."""
    words = np.array([question_word(question) for question in questions])
    return tuple(
        QuestionWordScores(
            word=word,
            count=count,
            exact_match=_percent(scores.exact[words == word]),
            f1=_percent(scores.f1[words == word]),
        )
        for word, count in Counter(words.tolist()).most_common()
    )


def _score_answers(
    references: Sequence[ReferenceAnswers], predictions: Sequence[str], both_empty: float
) -> AnswerScores:
    exact, f1 = [], []
    for answers, prediction in zip(references, predictions, strict=True):
        normalized_references, normalized_prediction = (
            [normalize_answer(text) for text in answers],
            normalize_answer(prediction),
        )
        exact.append(normalized_prediction in normalized_references)
        f1.append(
            max(
                _word_f1(text.split(), normalized_prediction.split(), both_empty)
                for text in normalized_references
            )
        )
    return AnswerScores(exact=np.array(exact, np.float64), f1=np.array(f1, np.float64))


def _word_f1(reference_words: list[str], predicted_words: list[str], both_empty: float) -> float:
    if not reference_words and not predicted_words:
        return both_empty
    common = (Counter(reference_words) & Counter(predicted_words)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(reference_words)
    return 2 * precision * recall / (precision + recall)


def _summarize_scores(scores: AnswerScores, selected: np.ndarray, prefix: str) -> dict[str, float]:
    return {
        f"{prefix}exact": _percent(scores.exact[selected]),
        f"{prefix}f1": _percent(scores.f1[selected]),
        f"{prefix}total": int(selected.sum()),
    }


def _best_threshold(
    scores: np.ndarray, answerable: np.ndarray, answered: np.ndarray, no_answer_scores: np.ndarray
) -> tuple[float, float]:
    """Returns (best percentage, its threshold): answers more and more questions, surest first."""
    order = np.argsort(no_answer_scores, kind="stable")
    gains = np.where(answerable, scores, -answered.astype(np.float64))[order]
    totals = np.cumsum(np.concatenate([[np.sum(~answerable)], gains]))
    best = int(np.argmax(totals))
    threshold = float(no_answer_scores[order[best - 1]]) if best else 0.0
    return 100 * float(totals[best]) / len(scores), threshold


def _percent(scores: np.ndarray) -> float:
    return 100 * float(scores.mean())
