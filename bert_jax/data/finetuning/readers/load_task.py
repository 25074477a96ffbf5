"""From a task's config to the task: finds the reader of its format.

Apart from `task.py`, so that what only looks at a task does not reach TensorFlow through TFDS.
"""

from bert_jax.data.finetuning.config import Columns, Conll, Glue, Snli, Squad, Swag, TaskConfig
from bert_jax.data.finetuning.example import TaggedExample, TextExample
from bert_jax.data.finetuning.readers.columns import read_columns
from bert_jax.data.finetuning.readers.conll import read_conll
from bert_jax.data.finetuning.readers.glue import read_glue
from bert_jax.data.finetuning.readers.snli import read_snli
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.data.finetuning.readers.swag import read_swag
from bert_jax.data.finetuning.task import Task
from bert_jax.errors import UserError


def load_task(config: TaskConfig) -> Task:
    """Reads a task's files, or its dataset from TFDS (then TensorFlow is imported).

    Raises:
      UserError: files that are missing or damaged, or examples that cannot be right; the message
        names file and line.
    """
    task = _load(config)
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


def _require_two_labels(task: Task) -> None:
    """Nothing can be learned, and most metrics are undefined, where all rows have one class."""
    train = task.splits.get("train", ())
    if task.kind == "classification":
        labels = {example.label for example in train if isinstance(example, TextExample)}
    elif task.kind == "token_classification":
        labels = {tag for e in train if isinstance(e, TaggedExample) for tag in e.tags or ()}
    else:
        return
    if len(labels) == 1:
        (only,) = labels
        raise UserError(
            f"{task.name}: all {len(train):,} examples of train have the label {only!r}; expected "
            "two classes or more: check the column of the labels, or add examples of the others"
        )
