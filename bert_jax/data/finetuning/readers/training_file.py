"""Reads training examples with labels or soft labels that a model gave them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bert_jax.config.labeled_data import TrainingFile
from bert_jax.data.finetuning.example import Example, Task, TextExample
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.json_io import parse_json_line


def read_training_file(config: TrainingFile, task: Task) -> Task:
    """Returns a task with the training examples of a file instead of its own.

    Raises:
      ConfigError: the task is not a classification.
      UserError: the file does not exist, or a line is invalid; the message names it.
    """
    if task.kind != "classification":
        raise ConfigError(
            f"{config.file} has training examples with classes, but the kind of task of "
            f"{task.name} is {task.kind}; expected a classification"
        )
    try:
        with open(config.file, encoding="utf-8", newline="\n") as stream:
            lines = [line.rstrip("\n") for line in stream]
    except OSError as error:
        raise UserError(
            f"{config.file} cannot be read: {error.strerror}; expected a file of JSON lines"
        ) from None
    examples = [
        _parse(parse_json_line(config.file, number, line), f"{config.file}, line {number}", task)
        for number, line in enumerate(lines, start=1)
    ]
    if len({example.label_logits is None for example in examples}) > 1:
        raise UserError(
            f"{config.file}: some lines have a label and others logits; expected the same in all"
        )
    splits: dict[str, tuple[Example, ...]] = {**task.splits, "train": tuple(examples)}
    return dataclasses.replace(task, splits=splits)


def has_soft_labels(task: Task) -> bool:
    """Returns whether the training examples of a task have logits instead of labels."""
    train = task.splits.get("train", ())
    return bool(train) and isinstance(train[0], TextExample) and train[0].label_logits is not None


def _parse(record: Any, location: str, task: Task) -> TextExample:
    match record:
        case {"id": str() as example_id, "text": str() as text, "label": str() as label}:
            logits = None
        case {"id": str() as example_id, "text": str() as text, "logits": [*values]}:
            logits = _parse_logits(values, location, task)
            label = task.labels[logits.index(max(logits))]
        case _:
            raise UserError(
                f'{location}: expected a JSON object with "id", "text" and "label" or "logits", '
                "all of them strings except the logits"
            )
    pair = record.get("text_pair")
    if not isinstance(pair, str | None):
        raise UserError(f'{location}: "text_pair" is {pair!r}; expected a string')
    return TextExample(id=example_id, text=text, text_pair=pair, label=label, label_logits=logits)


def _parse_logits(values: Sequence[Any], location: str, task: Task) -> tuple[float, ...]:
    numbers = tuple(float(v) for v in values if isinstance(v, int | float) and math.isfinite(v))
    if len(numbers) < len(values) or len(values) != len(task.labels):
        raise UserError(
            f'{location}: "logits" is {list(values)}; expected {len(task.labels)} finite numbers, '
            f"one for each of the labels {', '.join(task.labels)}"
        )
    return numbers
