"""What a finished fine-tuning run of a classifier or regressor has left, read again."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.finetuning.task import Task
from bert_jax.errors import UserError
from bert_jax.evals.decode_predictions import get_references
from bert_jax.evals.task_metrics import task_interval
from bert_jax.train.sources.fine_tuning import PREDICTIONS


def read_predictions(run: Path, split: str) -> list[dict[str, Any]]:
    """The predictions of a split, a JSON object for each example.

    Raises:
      UserError: there are none.
    """
    file = run / PREDICTIONS / f"{split}.jsonl"
    if not file.is_file():
        raise UserError(f"{file} is not there; remove {run} to train it again")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def bootstrap_interval(run: Path, task: Task, split: str, metric: str) -> tuple[float, float]:
    """The 95 % bootstrap interval of a metric over the examples of a split.

    Args:
      task: of kind classification or regression, the one that the run was trained on.

    Raises:
      UserError: no predictions, or those of other examples.
    """
    predictions, examples = read_predictions(run, split), task.splits[split]
    if [row["id"] for row in predictions] != [example.id for example in examples]:
        raise UserError(
            f"{run / PREDICTIONS / split}.jsonl is not about the examples of {task.name} that are "
            "there now: the data has changed; choose another --output"
        )
    if task.kind == "classification":
        probabilities = np.array(
            [[row["probabilities"][n] for n in task.labels] for row in predictions]
        )
        outputs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    else:
        outputs = np.array([row["value"] for row in predictions], np.float64)
    return task_interval(metric, task.kind, task.labels, get_references(task, examples), outputs)
