"""What a report shows of a split beside its metrics: intervals, tables, and the worst errors."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from bert_jax.data.labelled.task import Task
from bert_jax.evals import answers, classification, tags, verdicts
from bert_jax.evals.task_metrics import question_scores, task_interval
from bert_jax.evals.worst import worst_errors

MOST_PAIRS = 500
"""Of a regression's examples in an analysis, evenly spread."""


def describe_task(task: Task) -> dict[str, Any]:
    """JSON values: {"task", "kind", "labels", "examples": number in each split, "notes"}."""
    return {
        "task": task.name,
        "kind": task.kind,
        "labels": list(task.labels),
        "examples": {split: len(examples) for split, examples in task.splits.items()},
        "notes": list(task.notes),
    }


def analyse(
    task: Task, examples: verdicts.Examples, decided: Any, metrics: Mapping[str, float]
) -> dict[str, Any]:
    """JSON values that describe how the labelled examples of a split were decided.

    Args:
      decided: what `verdicts.decide` gives for these examples.
      metrics: what `verdicts.metrics` gives for them.

    Returns:
      examples        their number
      headline        for each metric that the task reports {"metric", "value", "low", "high"}: a
                      95 % bootstrap interval over the examples
      worst           see `worst_errors`
      classes         classification: {"name", "precision", "recall", "f1", "support"} of each
                      class; tagging: of each type of entity
      confusions      classification: [gold class, predicted class, count], where there are any
      calibration     classification, choice: {"error", "bins": see `CalibrationBin`}
      entity_errors   tagging: see `EntityErrors`
      question_words  questions: see `QuestionWordScores`
      pairs           regression: [gold, predicted] of at most `MOST_PAIRS` examples

    Raises:
      UserError: as `task_interval`.
    """
    gold = verdicts.gold(task, examples)
    headline = []
    for metric in task.metrics:
        if metric not in metrics:  # undefined on this split, such as the area under a curve
            continue
        low, high = task_interval(metric, task.kind, task.labels, gold, decided)
        headline.append({"metric": metric, "value": metrics[metric], "low": low, "high": high})
    return {
        "examples": len(examples),
        "headline": headline,
        **_tables(task, examples, gold, decided),
        "worst": worst_errors(task, examples, gold, decided),
    }


def _tables(task: Task, examples: Any, gold: Any, decided: Any) -> dict[str, Any]:
    match task.kind:
        case "classification":
            matrix = classification.confusion_matrix(gold, decided, task.labels)
            places = np.argwhere(matrix)
            return {
                "classes": _rows(classification.per_class_table(gold, decided, task.labels)),
                "confusions": [[*place, int(matrix[tuple(place)])] for place in places.tolist()],
                "calibration": _calibration(gold, decided),
            }
        case "multiple_choice":
            return {"calibration": _calibration(gold, decided)}
        case "regression":
            step = -(-len(gold) // MOST_PAIRS)
            pairs = np.stack([gold, decided], axis=1)[::step]
            return {"pairs": pairs.astype(np.float64).tolist()}
        case "tagging":
            return {
                "classes": _rows(tags.entity_table(gold, decided)),
                "entity_errors": _rows(tags.entity_errors(gold, decided)),
            }
        case "question_answering":
            questions = [example.question for example in examples]
            table = answers.question_word_table(questions, question_scores(gold, decided))
            return {"question_words": _rows(table)}


def _calibration(gold: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    bins = classification.calibration_bins(gold, logits.astype(np.float64))
    error = sum(b.count * abs(b.accuracy - b.confidence) for b in bins) / len(gold)
    return {"error": error, "bins": _rows(bins)}


def _rows(table: Any) -> list[dict[str, Any]]:
    return [asdict(row) for row in table]
