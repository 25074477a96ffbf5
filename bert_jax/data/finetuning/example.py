"""Defines labeled examples of each form, and `Task`: the examples of a task in splits."""

from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample:
    """Holds a text or a pair of texts, and its label if it has been labeled.

    The label is a class name (str), a score (float), or the names of any number of labels (tuple).
    `label_logits` are soft labels, one number for each class; `label` is then the most likely one.
    """

    id: str
    text: str
    text_pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    label_logits: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedExample:
    """Holds words with one IOB2 tag each: "B-PER" begins an entity, "I-PER" continues it, "O".

    Raises:
      UserError: the numbers of words and tags differ.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.tags is not None and len(self.tags) != len(self.words):
            raise UserError(
                f"example {self.id!r} has {len(self.words)} words and {len(self.tags)} tags; "
                "expected one tag for each word"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Holds the text of an answer and the character of the context at which it starts.

    A start of -1 means that the context does not contain the text. Predictions are still scored
    against such an answer, but it cannot be trained on.
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionExample:
    """Holds a question about a context; it is labeled if it has answers or `is_impossible`."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample:
    """Holds a context and its possible continuations; `label` is the index of the right one.

    Each choice is preceded by `prompt`, the beginning that all continuations share.
    """

    id: str
    context: str
    choices: tuple[str, ...]
    prompt: str = ""
    label: int | None = None


Example = TextExample | TaggedExample | QuestionExample | ChoiceExample


@dataclass(frozen=True, kw_only=True)
class Task:
    """Holds everything that is read from the files of a task.

    Attributes:
      name: for example "glue/rte".
      kind: the name of the kind of task, as registered in `bert_jax.tasks`.
      labels: class names in the order of their ids. For token classification these are all IOB2
        tags, "O" first. Empty for regression, question answering and multiple choice.
      metrics: names of the metrics to report, the most important one first.
      splits: "train", "dev", "test" and others ("dev_mismatched", "ax"), as far as they exist.
        A split that exists has at least one example.
      notes: one sentence for each kind of repair or omission while reading, with counts.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: dict[str, tuple[Example, ...]]
    notes: tuple[str, ...] = ()


def is_labeled(example: Example) -> bool:
    """Returns whether the example has a label to train on or to compare with."""
    match example:
        case TextExample() | ChoiceExample():
            return example.label is not None
        case TaggedExample():
            return example.tags is not None
        case QuestionExample():
            return bool(example.answers) or example.is_impossible


def class_labels(example: Example) -> Sequence[str | None]:
    """Returns the class names of an example; none for other kinds of labels."""
    match example:
        case TextExample(label=str() | None as label):
            return (label,)
        case TextExample(label=tuple() as labels):
            return labels
        case TaggedExample(tags=tags):
            return tags or ()
        case _:
            return ()
