"""The metrics of a task by its kind: all of them on a whole split, and one with its interval.

Metrics are made from all rows of a split at once, after they have been gathered from batches and
hosts and rows that only filled up a batch are gone, so they are exact however the rows were cut.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.data.finetuning.task import TaskKind
from bert_jax.errors import UserError
from bert_jax.evals import classification, ner_metrics, regression, squad_metrics
from bert_jax.evals.bootstrap import bootstrap_interval
from bert_jax.evals.squad_decoding import PredictedAnswer

ENTITY_COUNT_METRICS = ("precision", "recall", "f1", "f1_macro")


def task_metrics(
    kind: TaskKind,
    labels: Sequence[str],
    references: Any,
    predictions: Any,
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
            return classification.classification_metrics(references, predictions, labels)
        case "regression":
            return regression.regression_metrics(references, predictions)
        case "token_classification":
            _require_known_tags(labels, references)
            return ner_metrics.entity_metrics(references, predictions)
        case "question_answering":
            return _answer_metrics(references, predictions, no_answer_threshold)
        case "multiple_choice":
            return classification.multiple_choice_metrics(references, predictions)


def task_interval(
    metric: str,
    kind: TaskKind,
    labels: Sequence[str],
    references: Any,
    predictions: Any,
    *,
    no_answer_threshold: float = 0.0,
    n_resamples: int = 1000,
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
    metrics = task_metrics(
        kind, labels, references, predictions, no_answer_threshold=no_answer_threshold
    )
    score: Callable[..., float]
    match kind:
        case "classification" | "multiple_choice" if metric in metrics:
            arrays, score = classification.metric_for_resampling(
                metric, np.asarray(references), np.asarray(predictions, np.float64)
            )
        case "regression" if metric in metrics:
            score = regression.REGRESSION_METRICS[metric]
            arrays = [np.asarray(references, np.float64), np.asarray(predictions, np.float64)]
        case "token_classification" if metric == "token_accuracy":
            score, arrays = (
                ner_metrics.token_accuracy,
                [ner_metrics.token_counts(references, predictions)],
            )
        case "token_classification" if metric in ENTITY_COUNT_METRICS:
            types = ner_metrics.entity_types(references, predictions)
            score = _entity_metric(metric)
            arrays = [ner_metrics.entity_counts(references, predictions, types)]
        case "question_answering" if metric in ("exact_match", "f1"):
            scores = question_scores(references, predictions, no_answer_threshold)
            score = np.mean
            arrays = [100 * (scores.f1 if metric == "f1" else scores.exact)]
        case _:
            raise UserError(
                f"no interval can be made for {metric!r} of a task of kind {kind}; its metrics "
                f"are {', '.join(metrics)}"
            )
    return bootstrap_interval(score, *arrays, n_resamples=n_resamples, seed=seed)


def question_scores(
    references: Sequence[squad_metrics.ReferenceAnswers],
    predictions: Sequence[PredictedAnswer],
    no_answer_threshold: float = 0.0,
) -> squad_metrics.AnswerScores:
    """Exact match and F1 of each question, by SQuAD 2.0 if one of them has no answer, else 1.1."""
    texts = [answer.best.text for answer in predictions]
    if all(references):
        return squad_metrics.squad1_scores(references, texts)
    return squad_metrics.apply_threshold(
        squad_metrics.squad2_scores(references, texts),
        np.array([bool(answers) for answers in references]),
        _no_answer_scores(predictions),
        no_answer_threshold,
    )


def _answer_metrics(
    references: Sequence[squad_metrics.ReferenceAnswers],
    predictions: Sequence[PredictedAnswer],
    threshold: float,
) -> dict[str, float]:
    texts = [answer.best.text for answer in predictions]
    if all(references):
        return squad_metrics.squad1_metrics(references, texts)
    metrics = squad_metrics.squad2_metrics(
        references, texts, _no_answer_scores(predictions), threshold
    )
    return {"exact_match": metrics["exact"], **metrics}


def _entity_metric(metric: str) -> Callable[[np.ndarray], float]:
    return lambda counts: ner_metrics.entity_scores(counts)[metric]


def _no_answer_scores(predictions: Sequence[PredictedAnswer]) -> np.ndarray:
    return np.array([answer.no_answer_score for answer in predictions], np.float64)


def _require_known_tags(labels: Sequence[str], references: Sequence[ner_metrics.Tags]) -> None:
    unknown = sorted({tag for sentence in references for tag in sentence} - set(labels))
    if unknown:
        raise UserError(
            f"the reference tags hold {', '.join(unknown)}, but the model chooses among "
            f"{', '.join(labels)}: its labels and those of the data differ"
        )
