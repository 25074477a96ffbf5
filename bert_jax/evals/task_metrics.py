"""The metrics of a task by its kind: all of them on a whole split, and one with its interval.

Metrics are made from all rows of a split at once, after they have been gathered from batches and
hosts and rows that only filled up a batch are gone, so they are exact however the rows were cut.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.data.labelled.task import Kind
from bert_jax.errors import UserError
from bert_jax.evals import answers, classification, regression, tags
from bert_jax.evals.answer_decoding import PredictedAnswer
from bert_jax.evals.bootstrap import bootstrap_interval

FROM_COUNTS = ("precision", "recall", "f1", "f1_macro")


def task_metrics(
    kind: Kind,
    labels: Sequence[str],
    gold: Any,
    outputs: Any,
    *,
    no_answer_threshold: float = 0.0,
) -> dict[str, float]:
    """All metrics of one split.

    Args:
      kind: decides what the next ones are, with n examples:
      labels: the task's classes in the order of their numbers; of taggings all tags; else empty.
      gold, outputs:
        classification       class numbers int [n]; logits float [n, C]
        regression           float [n]; values float [n]
        tagging              n lists of tags; n lists of as many tags (`tags.decode_tags`)
        question_answering   n lists of answer texts, empty where there is no answer; n
                             `PredictedAnswer` (`answer_decoding.decode_answers`)
        multiple_choice      numbers of the right choices int [n]; logits float [n, A]
      no_answer_threshold: where "no answer" is preferred, for questions that may have none.

    Returns:
      What `classification_metrics`, `regression_metrics`, `entity_metrics`, `squad1_metrics` or
      `choice_metrics` give. If a question has no answer, what `squad2_metrics` gives, and its
      "exact" as "exact_match" too.

    Raises:
      UserError: no rows, outputs that are not numbers, labels that the model does not know.
    """
    match kind:
        case "classification":
            return classification.classification_metrics(gold, outputs, labels)
        case "regression":
            return regression.regression_metrics(gold, outputs)
        case "tagging":
            _require_tags(labels, gold)
            return tags.entity_metrics(gold, outputs)
        case "question_answering":
            return _answer_metrics(gold, outputs, no_answer_threshold)
        case "multiple_choice":
            return classification.choice_metrics(gold, outputs)


def task_interval(
    metric: str,
    kind: Kind,
    labels: Sequence[str],
    gold: Any,
    outputs: Any,
    *,
    no_answer_threshold: float = 0.0,
    samples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95 % bootstrap interval (low, high) of one metric over the examples of a split.

    Args:
      metric: a key of what `task_metrics` gives; of questions "exact_match" or "f1".
      The others: as for `task_metrics` and `bootstrap_interval`.

    Raises:
      UserError: as `task_metrics`, or for a metric that has no interval.
    """
    # Refuses whatever cannot be measured, before anything is resampled.
    known = task_metrics(kind, labels, gold, outputs, no_answer_threshold=no_answer_threshold)
    score: Callable[..., float]
    match kind:
        case "classification" | "multiple_choice" if metric in known:
            rows, score = classification.for_resampling(
                metric, np.asarray(gold), np.asarray(outputs, np.float64)
            )
        case "regression" if metric in known:
            score = regression.SCORES[metric]
            rows = [np.asarray(gold, np.float64), np.asarray(outputs, np.float64)]
        case "tagging" if metric == "token_accuracy":
            score, rows = tags.token_accuracy, [tags.token_counts(gold, outputs)]
        case "tagging" if metric in FROM_COUNTS:
            types = tags.entity_types(gold, outputs)
            score = _entity_score(metric)
            rows = [tags.entity_counts(gold, outputs, types)]
        case "question_answering" if metric in ("exact_match", "f1"):
            scores = question_scores(gold, outputs, no_answer_threshold)
            score = np.mean
            rows = [100 * (scores.f1 if metric == "f1" else scores.exact)]
        case _:
            raise UserError(
                f"no interval can be made for {metric!r} of a task of kind {kind}; its metrics "
                f"are {', '.join(known)}"
            )
    return bootstrap_interval(score, *rows, samples=samples, seed=seed)


def question_scores(
    gold: Sequence[answers.GoldAnswers],
    outputs: Sequence[PredictedAnswer],
    no_answer_threshold: float = 0.0,
) -> answers.AnswerScores:
    """Exact match and F1 of each question, by SQuAD 2.0 if one of them has no answer, else 1.1."""
    texts = [answer.best.text for answer in outputs]
    if all(gold):
        return answers.scores_v1(gold, texts)
    return answers.apply_threshold(
        answers.scores_v2(gold, texts),
        np.array([bool(texts) for texts in gold]),
        _no_answer_scores(outputs),
        no_answer_threshold,
    )


def _answer_metrics(
    gold: Sequence[answers.GoldAnswers], outputs: Sequence[PredictedAnswer], threshold: float
) -> dict[str, float]:
    texts = [answer.best.text for answer in outputs]
    if all(gold):
        return answers.squad1_metrics(gold, texts)
    metrics = answers.squad2_metrics(gold, texts, _no_answer_scores(outputs), threshold)
    return {"exact_match": metrics["exact"], **metrics}


def _entity_score(metric: str) -> Callable[[np.ndarray], float]:
    return lambda counts: tags.entity_scores(counts)[metric]


def _no_answer_scores(outputs: Sequence[PredictedAnswer]) -> np.ndarray:
    return np.array([answer.no_answer_score for answer in outputs], np.float64)


def _require_tags(labels: Sequence[str], gold: Sequence[tags.Tags]) -> None:
    unknown = sorted({tag for sentence in gold for tag in sentence} - set(labels))
    if unknown:
        raise UserError(
            f"the gold tags hold {', '.join(unknown)}, but the model chooses among "
            f"{', '.join(labels)}: its labels and those of the data differ"
        )
