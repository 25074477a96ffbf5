"""Reads the predictions of a finished classification or regression run and computes intervals."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.finetuning.example import Task
from bert_jax.errors import UserError
from bert_jax.runs.run_folder import PREDICTIONS
from bert_jax.tasks.registry import kind_of


def read_predictions(run: Path, split: str) -> list[dict[str, Any]]:
    """Reads the predictions of a split, a JSON object for each example.

    Raises:
      UserError: the run has no predictions for the split.
    """
    file = run / PREDICTIONS / f"{split}.jsonl"
    if not file.is_file():
        raise UserError(
            f"{file} does not exist; delete {run} and run the same command to train again"
        )
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def bootstrap_interval(run: Path, task: Task, split: str, metric: str) -> tuple[float, float]:
    """Computes the 95 % bootstrap interval of a metric over the examples of a split.

    Args:
      run: the run folder.
      task: the classification or regression task that the run was trained on.
      split: the split whose predictions are read.
      metric: the name of the metric.

    Raises:
      UserError: as `read_outputs`.
    """
    outputs, kind = read_outputs(run, task, split), kind_of(task)
    references = kind.get_references(task.splits[split], task.labels)
    return kind.metric_interval(metric, references, outputs, task.labels)


def read_outputs(run: Path, task: Task, split: str) -> np.ndarray:
    """Reads the predictions of a split as the metrics take them: logits [n, C] or values [n].

    Raises:
      UserError: the predictions are missing or belong to other examples.
    """
    predictions, examples = read_predictions(run, split), task.splits[split]
    if [row["id"] for row in predictions] != [example.id for example in examples]:
        raise UserError(
            f"{run / PREDICTIONS / split}.jsonl was made for other examples than {task.name} has "
            "now: the data has changed; choose another --output"
        )
    if task.kind == "classification":
        probabilities = np.array(
            [[row["probabilities"][n] for n in task.labels] for row in predictions]
        )
        return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return np.array([row["value"] for row in predictions], np.float64)
