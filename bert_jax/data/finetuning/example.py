"""What a labelled example is, of each kind of task, before any vocabulary has seen it."""

from dataclasses import dataclass

from bert_jax.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample:
    """A text or a pair of texts: a class's name (str) or a number (float); None is unlabelled."""

    id: str
    text: str
    text_pair: str | None = None
    label: str | float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedExample:
    """Words with a tag each in IOB2: "B-PER" begins a span, "I-PER" goes on with it, "O" is none.

    Raises:
      UserError: another number of tags than of words.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.tags is not None and len(self.tags) != len(self.words):
            raise UserError(
                f"example {self.id!r} has {len(self.words)} words and {len(self.tags)} tags; "
                "expected a tag for each word"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as it stands in the context from character `start` on.

    A start of -1 says that the context does not hold it: predictions are still scored against it.
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionExample:
    """A question about a context; labelled if it has answers or `is_impossible`."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample:
    """A context and the texts that may follow it, each begun by `prompt`; `label` counts from 0."""

    id: str
    context: str
    choices: tuple[str, ...]
    prompt: str = ""
    label: int | None = None


Example = TextExample | TaggedExample | QuestionExample | ChoiceExample


def is_labeled(example: Example) -> bool:
    """Whether it is known what is to be predicted."""
    match example:
        case TextExample() | ChoiceExample():
            return example.label is not None
        case TaggedExample():
            return example.tags is not None
        case QuestionExample():
            return bool(example.answers) or example.is_impossible
