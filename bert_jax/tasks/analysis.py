"""Analyzes tasks: errors and intervals of predictions, statistics of data, found examples.

`analyze` writes a run's analysis.json, from which reports and model cards are made. `count_labels`,
`length_stats` and `count_overlap` are what `bert-jax inspect-data` prints. `metrics_by_group`
compares examples that were found in the pretraining corpus with the others.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus.contamination.found_items import ITEM_GROUPS, ItemGroup
from bert_jax.data.finetuning.example import Example, Task, TextExample
from bert_jax.errors import UserError
from bert_jax.tasks.base import AnyTaskKind, Json, ScoredExamples
from bert_jax.tasks.features import make_features
from bert_jax.tasks.registry import compute_metrics, kind_of
from bert_jax.text.tokenizer import Tokenizer

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
    task: Task,
    examples: Sequence[Example],
    predictions: Any,
    metrics: Mapping[str, float],
    uncalibrated: Any = None,
) -> Json:
    """Analyzes the predictions for the labeled examples of a split.

    Args:
      predictions: the result of `TaskKind.decode` for these examples.
      metrics: the result of `TaskKind.compute_metrics` for them.
      uncalibrated: the predictions without the temperature; None if there is none.

    Returns:
      JSON values:
      examples                 number of examples
      metrics_with_intervals   {"metric", "value", "low", "high"} of each metric of the task: a 95 %
                               bootstrap interval over the examples
      top_errors               see `top_errors`
      classes                  classification: {"name", "precision", "recall", "f1", "support"} of
                               each class; token classification: of each entity type; multi-label:
                               of each label, with its "threshold"
      thresholds               multi-label: {"metric", "with_the_thresholds", "with_0.5", "gain"} of
                               F1, if thresholds were chosen
      confusion_matrix         classification: [reference class, predicted class, count] of each
                               cell that is not empty
      calibration              classification, multiple choice: {"error", "bins": see
                               `CalibrationBin`}, and "uncalibrated" with the same fields
      entity_errors            token classification: see `EntityErrors`
      by_question_word         question answering: see `QuestionWordScores`
      reference_vs_predicted   regression: [reference, predicted] of at most 500 examples

    Raises:
      UserError: as `TaskKind.metric_interval`.
    """
    kind, scored = kind_of(task), _score(task, examples, predictions)
    metrics_with_intervals = []
    for metric in task.metrics:
        if metric not in metrics:  # undefined on this split, such as the area under a curve
            continue
        low, high = kind.metric_interval(metric, scored.references, predictions, task.labels)
        metrics_with_intervals.append(
            {"metric": metric, "value": metrics[metric], "low": low, "high": high}
        )
    tables = kind.analysis_tables(scored)
    if uncalibrated is not None and "calibration" in tables:
        before = kind.analysis_tables(dataclasses.replace(scored, predictions=uncalibrated))
        tables["calibration"]["uncalibrated"] = before["calibration"]
    return {
        "examples": len(examples),
        "metrics_with_intervals": metrics_with_intervals,
        **tables,
        "top_errors": top_errors(kind, scored),
    }


def _score(task: Task, examples: Sequence[Example], predictions: Any) -> ScoredExamples:
    references = kind_of(task).get_references(examples, task.labels)
    return ScoredExamples(
        examples=examples, references=references, predictions=predictions, labels=task.labels
    )


def top_errors(kind: AnyTaskKind, scored: ScoredExamples) -> list[Json]:
    """Returns the errors with the highest loss, at most 20, as JSON values for a reader.

    Each is {"id", "loss", "texts": {name: text}, "reference", "predicted"}, and "probability" if
    the head gives one. The loss is as in `TaskKind.error_losses`: the cross-entropy in nats
    (classification, multiple choice), the distance from the label (regression), the number of wrong
    entities (token classification), or 1 - F1 times the probability of the answer (questions).
    Among equal losses the earlier example comes first.
    """
    losses = kind.error_losses(scored.references, scored.predictions)
    ranking = np.argsort(-losses, kind="stable")[:MAX_ERRORS].tolist()
    return [
        {
            "id": scored.examples[index].id,
            "loss": float(losses[index]),
            **kind.error_to_json(scored, index),
        }
        for index in ranking
        if losses[index] > 0
    ]


# Longer than any text, so that nothing is truncated or cut into windows.
_UNLIMITED_LENGTH = 1 << 30


class LengthStats(NamedTuple):
    """Holds token counts of a split's examples with special tokens, and how many exceed a limit."""

    median: int
    percentile_95: int
    maximum: int
    num_over_limit: int


def count_labels(task: Task, split: str) -> dict[str, int]:
    """Counts each label of a split, in the order of the task's labels.

    For token classification it counts entities by type, for question answering questions with and
    without an answer, for regression examples with and without a score.
    """
    kind = kind_of(task)
    counts: Counter[str] = Counter()
    for example in task.splits[split]:
        counts.update(kind.count_keys(example))
    order = [*task.labels, *sorted(counts)]
    return {label: counts[label] for label in dict.fromkeys(order) if counts[label]}


def regression_labels(task: Task, split: str) -> np.ndarray:
    """Returns the scores of a regression's examples, float64; empty for another kind of task."""
    labels = [e.label for e in task.splits[split] if isinstance(e, TextExample)]
    return np.array([label for label in labels if isinstance(label, float)])


def length_stats(task: Task, split: str, tokenizer: Tokenizer, max_length: int) -> LengthStats:
    """Computes how long the examples of a split are and how many exceed `max_length` tokens."""
    lengths = make_features(task, split, tokenizer, _UNLIMITED_LENGTH).lengths
    if not len(lengths):
        return LengthStats(0, 0, 0, 0)
    # "higher" returns a length that occurs, not a fraction of a token.
    median, percentile_95 = np.percentile(lengths, [50, 95], method="higher")
    num_over_limit = int((lengths > max_length).sum())
    return LengthStats(int(median), int(percentile_95), int(lengths.max()), num_over_limit)


def count_overlap(task: Task, split: str, train: str = "train") -> int:
    """Counts examples of `split` whose text occurs in `train`, ignoring case.

    For question answering the text is the context.
    """
    kind = kind_of(task)
    train_keys = {kind.overlap_key(example) for example in task.splits.get(train, ())}
    return sum(kind.overlap_key(example) in train_keys for example in task.splits[split])


def evaluation_warnings(task: Task, split: str, predictions: Any) -> list[str]:
    """Returns what a reader of the metrics of a split should know, as sentences.

    Args:
      task: with the labels in the order of the predictions.
      predictions: the result of `TaskKind.decode` for the split.
    """
    examples = task.splits[split]
    found = kind_of(task).weaknesses(_score(task, examples, predictions))
    if split != "train" and (count := count_overlap(task, split)):
        found.insert(
            0, f"{count:,} of {len(examples):,} examples have a text that is also in train"
        )
    return found


def metrics_by_group(
    task: Task, split: str, predictions: Any, groups: Sequence[ItemGroup]
) -> dict[str, dict[str, Any]]:
    """Computes the metrics of each group of examples, as JSON values.

    Args:
      task: with the labels in the order of the predictions.
      predictions: the result of `TaskKind.decode` for the split.
      groups: the group of each example.

    Returns:
      group -> {"examples": number, metric: value (None if undefined), "interval": the 95 %
      bootstrap interval of the first metric of the task, or None}. Groups without examples are left
      out.
    """
    examples = task.splits[split]
    results: dict[str, dict[str, Any]] = {}
    for group in ITEM_GROUPS:
        chosen = [i for i, each in enumerate(groups) if each == group]
        if not chosen:
            continue
        examples_of_group = tuple(examples[i] for i in chosen)
        predictions_of_group = (
            predictions[np.array(chosen)]
            if isinstance(predictions, np.ndarray)
            else [predictions[i] for i in chosen]
        )
        try:
            metrics = compute_metrics(task, examples_of_group, predictions_of_group)
        except UserError:  # such as a correlation of one example
            metrics = {}
        results[group] = {
            "examples": len(chosen),
            **{name: round(x, 6) if math.isfinite(x) else None for name, x in metrics.items()},
            "interval": _first_interval(
                dataclasses.replace(task, splits={split: examples_of_group}),
                split,
                predictions_of_group,
            ),
        }
    return results


def format_groups(results: dict[str, dict[str, Any]], metric: str) -> str:
    """Formats one metric of the groups: "clean: 0.91 (250 examples), found: 0.96 (27 examples)"."""
    parts = []
    for group, result in results.items():
        value = result.get(metric)
        number = "undefined" if value is None else f"{value:.4f}"
        interval = result["interval"]
        bounds = f", {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
        parts.append(f"{group.replace('_', ' ')}: {number} ({result['examples']:,}{bounds})")
    return "; ".join(parts)


def _first_interval(task: Task, split: str, predictions: Any) -> list[float] | None:
    """Returns the interval of the first metric; None if it is undefined for so few examples."""
    kind = kind_of(task)
    references = kind.get_references(task.splits[split], task.labels)
    try:
        bounds = kind.metric_interval(task.metrics[0], references, predictions, task.labels)
    except UserError:
        return None
    return [round(bound, 6) for bound in bounds]
