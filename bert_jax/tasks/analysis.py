"""Analyzes the predictions for a split: confidence intervals, tables and the worst errors.

The result goes into a run's analysis.json, from which reports and model cards are written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.data.finetuning.example import Example, Task
from bert_jax.tasks import kind_of
from bert_jax.tasks.descriptions import Json

MAX_ERRORS = 20


def describe_task(task: Task) -> Json:
    """Describes a task: {"task", "kind", "labels", "examples": count by split, "notes"}."""
    return {
        "task": task.name,
        "kind": task.kind,
        "labels": list(task.labels),
        "examples": {split: len(examples) for split, examples in task.splits.items()},
        "notes": list(task.notes),
    }


def analyze(
    task: Task, examples: Sequence[Example], predictions: Any, metrics: Mapping[str, float]
) -> Json:
    """Analyzes the predictions for the labeled examples of a split.

    Args:
      predictions: the result of `TaskKind.decode` for these examples.
      metrics: the result of `TaskKind.compute_metrics` for them.

    Returns:
      JSON values:
      examples                 number of examples
      metrics_with_intervals   {"metric", "value", "low", "high"} of each metric of the task: a 95 %
                               bootstrap interval over the examples
      top_errors               see `top_errors`
      classes                  classification: {"name", "precision", "recall", "f1", "support"} of
                               each class; token classification: of each entity type
      confusion_matrix         classification: [reference class, predicted class, count] of each
                               cell that is not empty
      calibration              classification, multiple choice: {"error", "bins": see
                               `CalibrationBin`}
      entity_errors            token classification: see `EntityErrors`
      by_question_word         question answering: see `QuestionWordScores`
      reference_vs_predicted   regression: [reference, predicted] of at most 500 examples

    Raises:
      UserError: as `TaskKind.metric_interval`.
    """
    kind, labels = kind_of(task), task.labels
    references = kind.get_references(examples, labels)
    metrics_with_intervals = []
    for metric in task.metrics:
        if metric not in metrics:  # undefined on this split, such as the area under a curve
            continue
        low, high = kind.metric_interval(metric, references, predictions, labels)
        metrics_with_intervals.append(
            {"metric": metric, "value": metrics[metric], "low": low, "high": high}
        )
    return {
        "examples": len(examples),
        "metrics_with_intervals": metrics_with_intervals,
        **kind.analysis_tables(examples, references, predictions, labels),
        "top_errors": top_errors(task, examples, predictions),
    }


def top_errors(task: Task, examples: Sequence[Example], predictions: Any) -> list[Json]:
    """Returns the errors with the highest loss, at most 20, as JSON values for a reader.

    Each is {"id", "loss", "texts": {name: text}, "reference", "predicted"}, and "probability" if
    the head gives one. The loss is that of `TaskKind.error_losses`: the cross-entropy in nats
    (classification, multiple choice), the distance from the label (regression), the number of wrong
    entities (token classification), or 1 - F1 times the probability of the answer (questions).
    Among equal losses the earlier example comes first.
    """
    kind, labels = kind_of(task), task.labels
    references = kind.get_references(examples, labels)
    losses = kind.error_losses(references, predictions)
    ranking = np.argsort(-losses, kind="stable")[:MAX_ERRORS].tolist()
    return [
        {
            "id": examples[index].id,
            "loss": float(losses[index]),
            **kind.error_to_json(examples[index], predictions[index], references, labels),
        }
        for index in ranking
        if losses[index] > 0
    ]
