"""Reads the items of evaluation sets: the texts of each example with their roles.

A text of an evaluation item has a role. An `input` is what a model is tested on, such as a sentence
of RTE or a question; a `context` is a passage that the test only refers to, such as a paragraph of
SQuAD, which is Wikipedia; an `answer` is a label or the text of an answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, get_args

from bert_jax.config.labeled_data import Glue, TaskConfig
from bert_jax.data.corpus.contamination.words import digest
from bert_jax.data.finetuning.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    Task,
    TextExample,
)
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tabular_files import TableRow, read_table
from bert_jax.errors import ConfigError, UserError, check_range, did_you_mean

Role = Literal["input", "context", "answer"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, kw_only=True)
class TaskItems:
    """Names the examples of a labeled task, such as a task of GLUE, SQuAD or CoNLL-2003.

    The passages of SQuAD and QNLI are contexts, the other texts are inputs.

    Attributes:
      task: the files of the task, as for fine-tuning.
      splits: the splits that are searched; None for all but "train".
      name: the name in reports; None for the name of the task, such as "glue/rte".
    """

    task: TaskConfig
    splits: tuple[str, ...] | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileItems:
    """Names the rows of a CSV, TSV, JSON lines or Parquet file, with the role of each column.

    Attributes:
      file: the file; the text formats may end in .gz.
      fields: the columns to read and their roles, such as {"question": "input"}.
      name: the name in reports.
      id: the column of the ids; None numbers the rows from 0.
    """

    name: str
    file: str
    fields: Mapping[str, Role]
    id: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for field, role in self.fields.items():
            if role not in ROLES:
                raise ConfigError(
                    f"evaluation set {self.name!r}: the role of the field {field!r} is {role!r}; "
                    f"{did_you_mean(role, ROLES)}expected one of {', '.join(ROLES)}"
                )
        if not {"input", "context"} & set(self.fields.values()):
            raise ConfigError(
                f"evaluation set {self.name!r}: no field is an input or a context; expected at "
                "least one, such as fields={'question': 'input'}"
            )


EvaluationSet = TaskItems | FileItems


@dataclass(frozen=True, kw_only=True)
class ReportOnly:
    """Records what is found and changes no document."""


@dataclass(frozen=True, kw_only=True)
class RemoveParagraphs:
    """Removes the paragraphs in which an input was found."""


@dataclass(frozen=True, kw_only=True)
class DropDocuments:
    """Drops documents in which an input was found; long ones lose the paragraphs only.

    `max_words` is the length up to which a whole document is dropped: a book is more than the page
    that quotes a test.
    """

    max_words: int = 2000

    def __post_init__(self) -> None:
        check_range("max_words", self.max_words, at_least=0)


Action = ReportOnly | RemoveParagraphs | DropDocuments


_ROWS = "test"
"""The split of the rows of a `FileItems`."""
_QNLI = "glue/qnli"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemText:
    """Holds one text of an item; `field` is its name, such as "question"."""

    field: str
    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Holds the texts of one example of an evaluation set."""

    set_name: str
    split: str
    id: str
    texts: tuple[ItemText, ...]

    @property
    def digest(self) -> int:
        """Returns a number that identifies the item by the words of its inputs and contexts."""
        return digest(each.text for each in self.texts if each.role != "answer")


def read_items(sets: Sequence[EvaluationSet]) -> list[Item]:
    """Reads the items of all sets.

    Raises:
      UserError: a file cannot be read or does not have a column that is named.
      ConfigError: two sets have one name, or a task does not have a split that is named.
    """
    items: list[Item] = []
    names: set[str] = set()
    for evaluation_set in sets:
        match evaluation_set:
            case TaskItems():
                task = load_task(evaluation_set.task)
                name = evaluation_set.name or task.name
                found = list(_items_of_task(evaluation_set, task, name))
            case FileItems():
                name = evaluation_set.name
                found = list(_items_of_file(evaluation_set))
            case _:
                assert_never(evaluation_set)
        if name in names:
            raise ConfigError(
                f"decontamination: two evaluation sets have the name {name!r}; expected different "
                "names"
            )
        names.add(name)
        items += found
    return items


def item_of_example(example: Example, task_name: str, split: str = _ROWS) -> Item:
    """Returns the item for an example of a task.

    Args:
      task_name: the name of the task, because the second text of QNLI is a context.
    """
    return Item(
        set_name=task_name,
        split=split,
        id=example.id,
        texts=tuple(_example_texts(example, task_name)),
    )


def _items_of_task(config: TaskItems, task: Task, name: str) -> Iterator[Item]:
    splits = config.splits or tuple(split for split in task.splits if split != "train")
    if missing := [split for split in splits if split not in task.splits]:
        raise ConfigError(
            f"evaluation set {name!r}: there is no split {missing[0]!r}; {task.name} has "
            f"{', '.join(task.splits)}"
        )
    if not splits:
        raise ConfigError(
            f"evaluation set {name!r}: it has the split train only, which is no test; add a file "
            "of another split, or set splits=('train',)"
        )
    aliases = _label_aliases(config.task)
    for split in splits:
        for example in task.splits[split]:
            texts = [*_example_texts(example, task.name)]
            if isinstance(example, TextExample) and example.label in aliases:
                alias = aliases[str(example.label)]
                texts.append(ItemText(field="label", role="answer", text=alias))
            yield Item(set_name=name, split=split, id=example.id, texts=tuple(texts))


def _label_aliases(task: TaskConfig) -> dict[str, str]:
    """Returns class name -> how the files of the task write it, where they differ."""
    if not isinstance(task, Glue):
        return {}
    by_alias = GLUE_TASKS[task.task].labels_by_alias()
    return {label: alias for alias, label in by_alias.items() if label != alias}


def _example_texts(example: Example, task_name: str) -> Iterator[ItemText]:
    match example:
        case TextExample():
            yield ItemText(field="text", role="input", text=example.text)
            if example.text_pair is not None:
                role: Role = "context" if task_name == _QNLI else "input"
                yield ItemText(field="text_pair", role=role, text=example.text_pair)
            if isinstance(example.label, str):
                yield ItemText(field="label", role="answer", text=example.label)
        case TaggedExample():
            yield ItemText(field="words", role="input", text=" ".join(example.words))
        case QuestionExample():
            yield ItemText(field="question", role="input", text=example.question)
            yield ItemText(field="context", role="context", text=example.context)
            for text in dict.fromkeys(answer.text for answer in example.answers):
                yield ItemText(field="answer", role="answer", text=text)
        case ChoiceExample():
            yield ItemText(field="context", role="input", text=example.context)
            for choice in example.choices:
                text = f"{example.prompt} {choice}".strip()
                yield ItemText(field="choice", role="input", text=text)


def _items_of_file(config: FileItems) -> Iterator[Item]:
    table = read_table(config.file, config.encoding)
    require_columns(table, config.file, [*config.fields, config.id])
    for number, row in enumerate(table.rows):
        texts = [
            ItemText(field=field, role=role, text=text)
            for field, role in config.fields.items()
            for text in _cell_texts(row, field)
        ]
        item_id = str(number) if config.id is None else str(row.cells.get(config.id))
        yield Item(set_name=config.name, split=_ROWS, id=item_id, texts=tuple(texts))


def _cell_texts(row: TableRow, field: str) -> list[str]:
    """Returns the texts of a cell, which may be a list of texts, or missing in JSON lines.

    Raises:
      UserError: the cell is neither a text, a number nor a list of these.
    """
    cell: Any = row.cells.get(field)
    values = cell if isinstance(cell, list) else [] if cell is None else [cell]
    for value in values:
        if not isinstance(value, str | int | float):
            raise UserError(
                f"{row.location}: the field {field!r} is a {type(value).__name__}; expected a "
                "text or a list of texts"
            )
    return [str(value) for value in values]
