"""Words with tags in columns, as of CoNLL-2003 (Tjong Kim Sang and De Meulder 2003).

Three ways to write spans as tags are read, and one comes out (IOB2):

    IOB1   I-PER I-PER O  I-LOC B-LOC     B- only where a span touches another of its type
    IOB2   B-PER I-PER O  B-LOC B-LOC     B- at the beginning of every span
    BIOES  B-PER E-PER O  S-LOC S-LOC     E- at the end, S- for one word (also written L- and U-)
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from bert_jax.data.labelled.config import Conll
from bert_jax.data.labelled.example import TaggedExample
from bert_jax.data.labelled.task import Task
from bert_jax.errors import UserError
from bert_jax.text.files import read_text

Scheme = Literal["IOB1", "IOB2", "BIOES"]
DOCUMENT_START = "-DOCSTART-"
_BEGINS, _GOES_ON, _ENDS = "BSU", "IMEL", "ESLU"
_TAG = re.compile(r"([BIESLUM])-(.+)")


class Sentence(NamedTuple):
    """Words and tags as they stand in a file, from the line `line` on."""

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


def read_conll(config: Conll) -> Task:
    """The task from its files; a file with a single column has words without tags.

    Raises:
      UserError: a line with another number of columns than the first; a tag of no known scheme; a
        type of span that train lacks; with `strict`, tags that do not follow their scheme.
    """
    paths = {"train": config.train, "dev": config.dev, "test": config.test}
    sentences = {
        split: (path, _read_sentences(path, config)) for split, path in paths.items() if path
    }
    scheme = detect_scheme(
        sentence.tags for _, found in sentences.values() for sentence in found if sentence.tags
    )
    labels = _labels(sentences)
    splits: dict[str, tuple[TaggedExample, ...]] = {}
    notes = []
    for split, (path, found) in sentences.items():
        splits[split], mended = _examples(found, path, scheme, labels, config.strict)
        if mended:
            tags, count = sum(mended), len(mended)
            notes.append(f"{path}: {tags:,} tags of {count:,} sentences did not follow {scheme}.")
    return Task(
        name="conll",
        kind="tagging",
        labels=labels,
        metrics=("f1", "token_accuracy"),
        splits={**splits},
        notes=tuple(notes),
    )


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that most spans follow."""
    without_b = needless_b = 0
    for tags in sequences:
        previous = ""
        for tag in tags:
            prefix, kind = _parts(tag)
            if prefix in "ESLUM" and prefix:
                return "BIOES"
            if kind != previous:
                without_b += prefix == "I"  # never in IOB2
                needless_b += prefix == "B"  # never in IOB1
            previous = kind
    return "IOB1" if without_b > needless_b else "IOB2"


def to_iob2(tags: Sequence[str], scheme: Scheme) -> tuple[tuple[str, ...], list[int]]:
    """The tags in IOB2, and the places where they do not follow their scheme.

    Every tag is kept for what it says of its word: a span that nothing begins, begins there.
    """
    converted, wrong = [], []
    open_kind, closed = "", True  # the span before this word, and whether it may not go on
    for place, tag in enumerate(tags):
        prefix, kind = _parts(tag)
        touches = bool(kind) and kind == open_kind
        goes_on = touches and not closed and prefix in _GOES_ON
        converted.append(tag if not kind else f"{'I' if goes_on else 'B'}-{kind}")
        if scheme == "BIOES":
            unfinished = not closed and not goes_on
            follows = (goes_on or not kind or prefix in _BEGINS) and not unfinished
        elif scheme == "IOB2":
            follows = prefix != "I" or goes_on
        else:
            follows = prefix != "B" or touches
        if not follows:
            wrong.append(place)
        open_kind = kind
        closed = not kind or (scheme == "BIOES" and prefix in _ENDS)
    if scheme == "BIOES" and not closed and (len(tags) - 1) not in wrong:
        wrong.append(len(tags) - 1)
    return tuple(converted), wrong


def _parts(tag: str) -> tuple[str, str]:
    """("B", "PER") of "B-PER"; two empty strings of "O"."""
    match = _TAG.fullmatch(tag)
    return (match[1], match[2]) if match else ("", "")


def _read_sentences(path: str, config: Conll) -> list[Sentence]:
    sentences: list[Sentence] = []
    lines: list[tuple[int, list[str]]] = []
    width = 0
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        line = line.removesuffix("\r")
        # Only tabs or blanks part columns: words may hold other kinds of space, such as U+00A0.
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        cells = [cell.strip(" ") for cell in cells]
        if not any(cells) or cells[0] == DOCUMENT_START:
            if lines:
                sentences.append(_sentence(lines, path, width, config))
            lines = []
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise UserError(
                f"{path}, line {number}: {len(cells)} columns; expected {width}, as in the lines "
                "before: each word has its tag"
            )
        lines.append((number, cells))
    if not sentences:
        raise UserError(f"{path}: no sentences; expected a word and its tag on each line")
    return sentences


def _sentence(lines: list[tuple[int, list[str]]], path: str, width: int, config: Conll) -> Sentence:
    for name in ("word_column", "tag_column"):
        column = getattr(config, name)
        if not -width <= column < width:
            raise UserError(f"{path}: {width} columns, but {name} is {column} (they count from 0)")
    words = tuple(cells[config.word_column] for _, cells in lines)
    if config.word_column % width == config.tag_column % width:
        return Sentence(lines[0][0], words, None)
    tags = tuple(cells[config.tag_column] for _, cells in lines)
    for (number, _), word, tag in zip(lines, words, tags, strict=True):
        if not word:
            raise UserError(f"{path}, line {number}: the word is empty")
        if tag != "O" and not _TAG.fullmatch(tag):
            raise UserError(
                f"{path}, line {number}: the tag {tag!r}; expected O, or B-, I-, E-, S- with a "
                "type, as B-PER"
            )
    return Sentence(lines[0][0], words, tags)


def _labels(sentences: dict[str, tuple[str, list[Sentence]]]) -> tuple[str, ...]:
    """ "O" and both tags of every type in train, or in all files where train is not there."""
    known = [sentences["train"]] if "train" in sentences else list(sentences.values())
    kinds = {
        _parts(tag)[1] for _, found in known for s in found for tag in s.tags or () if tag != "O"
    }
    return ("O", *(f"{prefix}-{kind}" for kind in sorted(kinds) for prefix in "BI"))


def _examples(
    sentences: list[Sentence], path: str, scheme: Scheme, labels: tuple[str, ...], strict: bool
) -> tuple[tuple[TaggedExample, ...], list[int]]:
    """The examples, and how many tags were mended in each sentence that needed it."""
    examples, mended = [], []
    for number, (line, words, tags) in enumerate(sentences):
        if tags is not None:
            tags, wrong = to_iob2(tags, scheme)
            for place, tag in enumerate(tags):
                if tag not in labels:
                    raise UserError(
                        f"{path}, line {line + place}: the type {tag[2:]!r} does not occur in "
                        f"train; its tags: {', '.join(labels)}"
                    )
            if wrong and strict:
                raise UserError(
                    f"{path}, line {line + wrong[0]}: the tags do not follow {scheme} here "
                    f"(word {words[wrong[0]]!r}); correct them, or leave out --strict to mend them"
                )
            if wrong:
                mended.append(len(wrong))
        examples.append(TaggedExample(id=str(number), words=words, tags=tags))
    return tuple(examples), mended
