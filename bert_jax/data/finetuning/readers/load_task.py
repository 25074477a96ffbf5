"""Reads the task that a config describes, with the reader of its format."""

from bert_jax.config.labeled_data import (
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
from bert_jax.data.finetuning.example import Task, class_labels
from bert_jax.data.finetuning.readers.columns import read_columns
from bert_jax.data.finetuning.readers.conll import read_conll
from bert_jax.data.finetuning.readers.few_shot import sample_few_shot
from bert_jax.data.finetuning.readers.glue import read_glue
from bert_jax.data.finetuning.readers.snli import read_snli
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.data.finetuning.readers.swag import read_swag
from bert_jax.data.finetuning.readers.training_file import has_soft_labels, read_training_file
from bert_jax.errors import UserError


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
    """Refuses a training set with a single class: nothing can be learned from it."""
    train = task.splits.get("train", ())
    labels = {label for example in train for label in class_labels(example)}
    if len(labels) == 1 and not has_soft_labels(task):
        (only,) = labels
        raise UserError(
            f"{task.name}: all {len(train):,} training examples have the label {only!r}; expected "
            "at least two classes: check the column of the labels, or add examples of other classes"
        )
