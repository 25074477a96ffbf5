"""Computes metrics on the examples that were found in the pretraining corpus, and on the others."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data.corpus.contamination.found_items import ITEM_GROUPS, ItemGroup
from bert_jax.data.finetuning.example import Task
from bert_jax.errors import UserError
from bert_jax.tasks import compute_metrics, kind_of


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
            "interval": _interval(
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


def _interval(task: Task, split: str, predictions: Any) -> list[float] | None:
    """Returns the interval of the first metric; None if it is undefined for so few examples."""
    kind = kind_of(task)
    references = kind.get_references(task.splits[split], task.labels)
    try:
        bounds = kind.metric_interval(task.metrics[0], references, predictions, task.labels)
    except UserError:
        return None
    return [round(bound, 6) for bound in bounds]
