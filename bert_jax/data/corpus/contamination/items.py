"""Reads evaluation items, and splits texts into words that are compared by keys.

A word is a run of letters and digits with their marks, or one Chinese, Japanese or Thai character,
since these scripts put no space between words. Case, punctuation, quotation marks, compatible and
invisible characters and line breaks do not matter, also not a line break after a hyphen inside a
word.

A text of an evaluation item has a role. An `input` is what a model is tested on, such as a sentence
of RTE or a question; a `context` is a passage that the test only refers to, such as a paragraph of
SQuAD, which is Wikipedia; an `answer` is a label or the text of an answer.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, get_args

import numpy as np

from bert_jax.config.labeled_data import Glue, TaskConfig
from bert_jax.data.finetuning.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    Task,
    TextExample,
    class_labels,
)
from bert_jax.data.finetuning.readers.columns import require_columns
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tabular_files import TableRow, read_table
from bert_jax.errors import ConfigError, UserError, check_range, did_you_mean
from bert_jax.text.cleaning import UNSPACED_SCRIPTS, normalize_text

_JOINERS = "\u200c\u200d"


def _mark_ranges() -> str:
    """Returns the ranges of the marks for a character class: accents, vowel signs (Mn, Mc, Me).

    `\\w` of Python's `re` does not contain them, so it splits a Hindi word at each vowel sign.
    """
    unspaced = re.compile(f"[{UNSPACED_SCRIPTS}]")
    ranges: list[list[int]] = []
    # Below U+0300 there are no marks, and those above U+1FFFF are variation selectors.
    for code in range(0x300, 0x20000):
        if unicodedata.category(chr(code))[0] == "M" and not unspaced.match(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Marks and the zero-width joiners of Persian and Indic scripts belong to the word before them.
_MARKS = _mark_ranges() + _JOINERS
_ANY_MARK = re.compile(f"[{_MARKS}]")
_LETTERS = rf"[^\W_{UNSPACED_SCRIPTS}]+"
_LETTERS_AND_MARKS = rf"{_LETTERS}(?:[{_MARKS}]+[^\W_{UNSPACED_SCRIPTS}]*)*"
# A word that is broken at the end of a line goes on with a letter that is not a capital.
_BREAK = r"[-\u2010]\n[ \t]*(?=[^\W\d_A-Z])"


def _compile(letters: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compiles the patterns of words, and of words and marks that may end a sentence."""
    word = rf"[{UNSPACED_SCRIPTS}]|{letters}(?:{_BREAK}{letters})*"
    # Marks that may end a sentence, a cell of a table or a quotation.
    tokens = rf"{word}|[.!?\u2026\u3002\uff01\uff1f\t|\"\u201c\u201d]|\n"
    return re.compile(word), re.compile(tokens)


_WORDS, _TOKENS = _compile(_LETTERS_AND_MARKS)
_WORDS_WITHOUT_MARKS, _TOKENS_WITHOUT_MARKS = _compile(_LETTERS)  # much faster
_NO_PART_OF_KEYS = re.compile(rf"{_BREAK}|[{_JOINERS}]")

# Keys of tokens that are no words; a hash of 64 bits has these values in 1 of 10^19 words.
_MARK, _NEWLINE = 0, 1
_MAX_CACHED_WORDS = 1 << 20
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _has_marks(text: str) -> bool:
    return not text.isascii() and _ANY_MARK.search(text) is not None


class _TokenKeys(dict[str, int]):
    """Caches the key of each token, which depends on the token only."""

    def __missing__(self, token: str) -> int:
        if len(self) >= _MAX_CACHED_WORDS:
            # Clearing all is cheaper than counting uses: frequent words come back at once.
            self.clear()
        self[token] = key = _token_key(token)
        return key


def _token_key(token: str) -> int:
    if token == "\n":
        return _NEWLINE
    if not token[0].isalnum() and not _WORDS.match(token):
        return _MARK
    # Case folding can undo the normalization, so it is applied again afterwards.
    folded = unicodedata.normalize("NFKC", _NO_PART_OF_KEYS.sub("", token)).casefold()
    data = unicodedata.normalize("NFKC", folded).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


_token_keys = _TokenKeys()


@dataclass(frozen=True, eq=False)
class Words:
    """Holds the words of a text.

    Attributes:
      text: the text after `normalize_text`, to which `span` refers.
      keys: uint64 [N], equal for equal words.
      boundaries: bool [N + 1], whether a sentence may begin before word i (or end, for N).
      lines: int32 [N], the number of the line in which each word begins.
    """

    text: str
    keys: np.ndarray
    boundaries: np.ndarray
    lines: np.ndarray

    @classmethod
    def of(cls, text: str) -> "Words":
        """Splits a text."""
        text = normalize_text(text)
        tokens = (_TOKENS if _has_marks(text) else _TOKENS_WITHOUT_MARKS).findall(text)
        keys = np.fromiter(map(_token_keys.__getitem__, tokens), np.uint64, len(tokens))
        is_word = keys > _NEWLINE
        # The number of words before each mark is the position of a boundary.
        num_words = np.cumsum(is_word)
        total = int(num_words[-1]) if len(tokens) else 0
        boundaries = np.zeros(total + 1, np.bool_)
        boundaries[num_words[~is_word]] = True
        boundaries[[0, total]] = True
        lines = np.cumsum(keys == _NEWLINE, dtype=np.int32)[is_word]
        return cls(text, keys[is_word], boundaries, lines)

    @functools.cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Returns the first character of each word and the one behind its last."""
        pattern = _WORDS if _has_marks(self.text) else _WORDS_WITHOUT_MARKS
        return [match.span() for match in pattern.finditer(self.text)]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns the characters of the words from `start` up to `end`, which is excluded."""
        return self.spans[start][0], self.spans[end - 1][1]


def word_keys(text: str) -> np.ndarray:
    """Returns the keys of the words of a text, uint64 [N], as `Words.of(text).keys`, but faster."""
    text = normalize_text(text)
    words = (_WORDS if _has_marks(text) else _WORDS_WITHOUT_MARKS).findall(text)
    return np.fromiter(map(_token_keys.__getitem__, words), np.uint64, len(words))


def ngram_keys(keys: np.ndarray, max_n: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (n, keys of the n-grams, uint64 [N - n + 1]) for n = 1 to `max_n`."""
    grams = keys
    for n in range(1, min(max_n, len(keys)) + 1):
        if n > 1:
            grams = grams[:-1] * _MULTIPLIER + keys[n - 1 :]
        yield n, grams


def digest(texts: Iterable[str]) -> int:
    """Returns 63 bits that identify a list of texts by their words."""
    content = hashlib.blake2b(digest_size=8)
    for text in texts:
        keys = word_keys(text)
        # With the lengths, so that moving a word from one text to the next gives another number.
        content.update(len(keys).to_bytes(8, "little") + keys.astype("<u8").tobytes())
    # 63 bits, because Parquet's integers have a sign.
    return int.from_bytes(content.digest(), "little") >> 1


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
    encoding: str = "utf-8"  # of the text formats

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

    max_words: int = 2000  # words up to which a whole document is dropped

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
            for name in class_labels(example):
                if name is not None:
                    yield ItemText(field="label", role="answer", text=name)
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
