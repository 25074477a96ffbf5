"""Configures decontamination: which evaluation sets are searched in a corpus, and what is done.

A text of an evaluation item has a role. An `input` is what a model is tested on, such as a sentence
of RTE or a question; a `context` is a passage that the test only refers to, such as a paragraph of
SQuAD, which is Wikipedia; an `answer` is a label or the text of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.data.finetuning.config import TaskConfig
from bert_jax.errors import ConfigError, check_range, did_you_mean

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
