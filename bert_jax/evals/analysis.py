"""What a report shows of a split beside its metrics: intervals, tables, and the worst errors."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from bert_jax.data.finetuning.task import Task
from bert_jax.evals import classification, decode_predictions, ner_metrics, squad_metrics
from bert_jax.evals.error_examples import top_errors
from bert_jax.evals.task_metrics import question_scores, task_interval

MAX_PAIRS = 500
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


def analyze(
    task: Task,
    examples: decode_predictions.Examples,
    predictions: Any,
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    """JSON values that describe how the labelled examples of a split were decided.

    Args:
      decided: what `verdicts.decide` gives for these examples.
      metrics: what `verdicts.metrics` gives for them.

    Returns:
      examples        their number
      metrics_with_intervals
                      for each metric that the task reports {"metric", "value", "low", "high"}: a
                      95 % bootstrap interval over the examples
      top_errors      see `top_errors`
      classes         classification: {"name", "precision", "recall", "f1", "support"} of each
                      class; tagging: of each type of entity
      confusion_matrix
                      classification: [reference class, predicted class, count], where there are any
      calibration     classification, choice: {"error", "bins": see `CalibrationBin`}
      entity_errors   tagging: see `EntityErrors`
      by_question_word
                      questions: see `QuestionWordScores`
      reference_vs_predicted
                      regression: [reference, predicted] of at most `MAX_PAIRS` examples

    Raises:
      UserError: as `task_interval`.
    """
    references = decode_predictions.get_references(task, examples)
    metrics_with_intervals = []
    for metric in task.metrics:
        if metric not in metrics:  # undefined on this split, such as the area under a curve
            continue
        low, high = task_interval(metric, task.kind, task.labels, references, predictions)
        metrics_with_intervals.append(
            {"metric": metric, "value": metrics[metric], "low": low, "high": high}
        )
    return {
        "examples": len(examples),
        "metrics_with_intervals": metrics_with_intervals,
        **_kind_specific_tables(task, examples, references, predictions),
        "top_errors": top_errors(task, examples, references, predictions),
    }


def _kind_specific_tables(
    task: Task, examples: Any, references: Any, predictions: Any
) -> dict[str, Any]:
    match task.kind:
        case "classification":
            matrix = classification.confusion_matrix(references, predictions, task.labels)
            nonzero_cells = np.argwhere(matrix)
            return {
                "classes": _as_dicts(
                    classification.per_class_table(references, predictions, task.labels)
                ),
                "confusion_matrix": [
                    [*cell, int(matrix[tuple(cell)])] for cell in nonzero_cells.tolist()
                ],
                "calibration": _calibration(references, predictions),
            }
        case "multiple_choice":
            return {"calibration": _calibration(references, predictions)}
        case "regression":
            step = -(-len(references) // MAX_PAIRS)
            pairs = np.stack([references, predictions], axis=1)[::step]
            return {"reference_vs_predicted": pairs.astype(np.float64).tolist()}
        case "token_classification":
            return {
                "classes": _as_dicts(ner_metrics.entity_table(references, predictions)),
                "entity_errors": _as_dicts(ner_metrics.entity_errors(references, predictions)),
            }
        case "question_answering":
            questions = [example.question for example in examples]
            table = squad_metrics.question_word_table(
                questions, question_scores(references, predictions)
            )
            return {"by_question_word": _as_dicts(table)}


def _calibration(references: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    bins = classification.calibration_bins(references, logits.astype(np.float64))
    error = sum(b.count * abs(b.accuracy - b.confidence) for b in bins) / len(references)
    return {"error": error, "bins": _as_dicts(bins)}


def _as_dicts(table: Any) -> list[dict[str, Any]]:
    return [asdict(row) for row in table]
