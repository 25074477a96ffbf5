"""Reads the task that a config describes, with the reader of its format.

Two configs change the training examples of another task: `FewShot` samples K examples of each class
for training and K for dev, as LM-BFF does (Gao et al. 2021); `TrainingFile` replaces them by
examples with labels or soft labels that a model gave them.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.config.labeled_data import (
    MULTI_LABEL,
    Columns,
    Conll,
    FewShot,
    Glue,
    Snli,
    Squad,
    Swag,
    TaskConfig,
    TrainingFile,
)
from bert_jax.data.finetuning.example import Example, Task, TextExample, class_labels
from bert_jax.data.finetuning.readers.columns import read_columns, read_swag
from bert_jax.data.finetuning.readers.conll import read_conll
from bert_jax.data.finetuning.readers.glue import read_glue, read_snli
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.errors import ConfigError, UserError
from bert_jax.io.json_io import parse_json_line


def sample_few_shot(config: FewShot, task: Task) -> Task:
    """Returns a task with K training and K dev examples of each class, and dev as its test split.

    The training examples are shuffled by `numpy.random.seed(config.seed)` as in
    `tools/generate_k_shot_data.py` of LM-BFF: of each class, the first K are the training split and
    the next K the dev split. The labeled dev split of the task becomes the test split.

    Raises:
      ConfigError: the task is not a classification.
      UserError: a class has fewer than 2 K training examples, or there is no labeled dev split.
    """
    if task.kind != "classification":
        raise ConfigError(
            f"{config.shots} examples of each class are to be sampled, but the kind of task of "
            f"{task.name} is {task.kind}; expected a classification"
        )
    if "dev" not in task.splits:
        raise UserError(
            f"{task.name} has no dev split, which few-shot learning uses as its test set; add a "
            "file for it"
        )
    train = [each for each in task.splits.get("train", ()) if isinstance(each, TextExample)]
    counts = Counter(example.label for example in train)
    for label in task.labels:
        if counts[label] < 2 * config.shots:
            raise UserError(
                f"{task.name} has {counts[label]} training examples with the label {label!r}; "
                f"expected at least {2 * config.shots}, {config.shots} to train on and "
                f"{config.shots} for dev: choose a smaller number of shots"
            )
    # The generator and the list type of LM-BFF's script, whose order they reproduce.
    np.random.RandomState(config.seed).shuffle(train)  # type: ignore[arg-type]
    splits: dict[str, list[TextExample]] = {"train": [], "dev": []}
    for label in task.labels:
        examples = [example for example in train if example.label == label]
        splits["train"] += examples[: config.shots]
        splits["dev"] += examples[config.shots : 2 * config.shots]
    return Task(
        name=task.name,
        kind=task.kind,
        labels=task.labels,
        metrics=task.metrics,
        splits={
            **{name: tuple(examples) for name, examples in splits.items()},
            "test": task.splits["dev"],
        },
        notes=task.notes,
    )


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


def load_task(config: TaskConfig) -> Task:
    """Reads the files of a task, or its dataset from TFDS, which imports TensorFlow.

    Raises:
      UserError: files are missing or damaged, or an example is invalid; the message names file and
        line.
    """
    task = _load(config)
    for split, examples in task.splits.items():
        if not examples:
            raise UserError(
                f"{task.name}: the split {split} has no examples; expected at least one"
            )
    _require_two_labels(task)
    return task


def _load(config: TaskConfig) -> Task:
    match config:
        case Glue(folder=None):
            from bert_jax.data.finetuning.readers.tfds_glue import read_tfds_glue

            return read_tfds_glue(config)
        case Glue():
            return read_glue(config)
        case Snli():
            return read_snli(config)
        case Squad():
            return read_squad(config)
        case Conll():
            return read_conll(config)
        case Swag():
            return read_swag(config)
        case Columns():
            return read_columns(config)
        case FewShot():
            return sample_few_shot(config, _load(config.task))
        case TrainingFile():
            return read_training_file(config, _load(config.task))


def _require_two_labels(task: Task) -> None:
    """Refuses a training set with a single class or no label: nothing can be learned from it."""
    train = task.splits.get("train", ())
    if train and task.kind == MULTI_LABEL and len(task.labels) < 2:
        raise UserError(
            f"{task.name}: the {len(train):,} training examples have the labels "
            f"{list(task.labels)}; expected at least two different labels: check the column of the "
            "labels, or choose --kind classification for one yes-or-no question"
        )
    labels = {label for example in train for label in class_labels(example)}
    if len(labels) == 1 and not has_soft_labels(task):
        (only,) = labels
        raise UserError(
            f"{task.name}: all {len(train):,} training examples have the label {only!r}; expected "
            "at least two classes: check the column of the labels, or add examples of other classes"
        )
