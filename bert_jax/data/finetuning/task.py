"""A task: labelled examples in splits, with the names of their classes and what is reported."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.data.finetuning.example import Example

TaskKind = Literal[
    "classification", "regression", "token_classification", "question_answering", "multiple_choice"
]


@dataclass(frozen=True, kw_only=True)
class Task:
    """All of a task that is read from files.

    Attributes:
      name: such as "glue/rte".
      kind: what is predicted.
      labels: names of the classes in the order of their numbers; for taggings all IOB2 tags with
        "O" first; empty for regression, questions and choices.
      metrics: what is reported, the headline first.
      splits: "train", "dev", "test" and further ones ("dev_mismatched", "ax"), those that there
        are; never empty.
      notes: what was mended or left out, with counts, a sentence each.
    """

    name: str
    kind: TaskKind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: dict[str, tuple[Example, ...]]
    notes: tuple[str, ...] = ()
