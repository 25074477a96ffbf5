"""Reads words and tags in columns, as in CoNLL-2003 (Tjong Kim Sang and De Meulder 2003).

Three tag schemes are read and converted to IOB2:

    IOB1   I-PER I-PER O  I-LOC B-LOC     B- only where a span touches another of its type
    IOB2   B-PER I-PER O  B-LOC B-LOC     B- at the beginning of every span
    BIOES  B-PER E-PER O  S-LOC S-LOC     E- at the end, S- for one word (also written L- and U-)
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from bert_jax.config.labeled_data import Conll
from bert_jax.data.finetuning.example import TaggedExample, Task
from bert_jax.errors import UserError
from bert_jax.text.files import read_text

TagScheme = Literal["IOB1", "IOB2", "BIOES"]
DOCUMENT_START = "-DOCSTART-"
_BEGIN_PREFIXES, _INSIDE_PREFIXES, _END_PREFIXES = "BSU", "IMEL", "ESLU"
_TAG = re.compile(r"([BIESLUM])-(.+)")


class Sentence(NamedTuple):
    """Holds words and tags as in the file, and the number of the sentence's first line."""

    first_line: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


def read_conll(config: Conll) -> Task:
    """Reads a token classification task; a file with a single column has words without tags.

    Raises:
      UserError: a line has another number of columns than the first; a tag belongs to no known
        scheme; an entity type does not occur in train; with `strict`, tags violate their scheme.
    """
    paths = {"train": config.train, "dev": config.dev, "test": config.test}
    sentences = {
        split: (path, _read_sentences(path, config)) for split, path in paths.items() if path
    }
    scheme = detect_scheme(
        sentence.tags
        for _, split_sentences in sentences.values()
        for sentence in split_sentences
        if sentence.tags
    )
    labels = _labels(sentences)
    splits: dict[str, tuple[TaggedExample, ...]] = {}
    notes = []
    for split, (path, split_sentences) in sentences.items():
        splits[split], repaired = _examples(split_sentences, path, scheme, labels, config.strict)
        if repaired:
            tags, count = sum(repaired), len(repaired)
            notes.append(f"{path}: {tags:,} tags of {count:,} sentences did not follow {scheme}.")
    return Task(
        name="conll",
        kind="token_classification",
        labels=labels,
        metrics=("f1", "token_accuracy"),
        splits={**splits},
        notes=tuple(notes),
    )


def detect_scheme(sequences: Iterable[Sequence[str]]) -> TagScheme:
    """Detects the tag scheme that most entities follow."""
    spans_without_b = redundant_b = 0
    for tags in sequences:
        previous_type = ""
        for tag in tags:
            prefix, entity_type = _split_tag(tag)
            # One such tag decides, because IOB1 and IOB2 have neither an end nor a tag for single
            # words. The empty string is in every string, hence the second test.
            if prefix in "ESLUM" and prefix:
                return "BIOES"
            if entity_type != previous_type:
                spans_without_b += prefix == "I"  # never in IOB2
                redundant_b += prefix == "B"  # never in IOB1
            previous_type = entity_type
    return "IOB1" if spans_without_b > redundant_b else "IOB2"


def to_iob2(tags: Sequence[str], scheme: TagScheme) -> tuple[tuple[str, ...], list[int]]:
    """Converts tags to IOB2; also returns the positions at which they violate their scheme.

    The entity type of every tag is kept: an entity without a beginning tag begins at its first tag.
    """
    converted, invalid_positions = [], []
    open_type, is_closed = "", True  # the entity before this word, and whether it has ended
    for position, tag in enumerate(tags):
        prefix, entity_type = _split_tag(tag)
        same_type = bool(entity_type) and entity_type == open_type
        is_continuation = same_type and not is_closed and prefix in _INSIDE_PREFIXES
        converted.append(
            tag if not entity_type else f"{'I' if is_continuation else 'B'}-{entity_type}"
        )
        if scheme == "BIOES":
            is_unfinished = not is_closed and not is_continuation
            is_valid = (
                is_continuation or not entity_type or prefix in _BEGIN_PREFIXES
            ) and not is_unfinished
        elif scheme == "IOB2":
            is_valid = prefix != "I" or is_continuation
        else:
            is_valid = prefix != "B" or same_type
        if not is_valid:
            invalid_positions.append(position)
        open_type = entity_type
        is_closed = not entity_type or (scheme == "BIOES" and prefix in _END_PREFIXES)
    if scheme == "BIOES" and not is_closed and (len(tags) - 1) not in invalid_positions:
        invalid_positions.append(len(tags) - 1)
    return tuple(converted), invalid_positions


def _is_tag(text: str) -> bool:
    return text == "O" or _TAG.fullmatch(text) is not None


def _split_tag(tag: str) -> tuple[str, str]:
    """Splits "B-PER" into ("B", "PER"); gives two empty strings for "O"."""
    match = _TAG.fullmatch(tag)
    return (match[1], match[2]) if match else ("", "")


def _read_sentences(path: str, config: Conll) -> list[Sentence]:
    sentences: list[Sentence] = []
    lines: list[tuple[int, list[str]]] = []
    num_columns = 0
    text = read_text(path, encoding=config.encoding)
    # The empty line at the end closes the last sentence of a file that does not end in one.
    for line_number, line in enumerate([*text.split("\n"), ""], start=1):
        # Joined files have a byte-order mark at the beginning of each.
        line = line.removesuffix("\r").removeprefix("\ufeff")
        # Only tabs and spaces separate columns: words may contain other white space (U+00A0).
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        cells = [cell.strip(" ") for cell in cells]
        # A comment, as in GermEval; "#" with a tag is a word.
        if cells[0] == "#" and len(cells) != num_columns and not _is_tag(cells[-1]):
            continue
        if not line.strip() or cells[0] == DOCUMENT_START:
            if lines:
                sentences.append(_sentence(lines, path, num_columns, config))
            lines = []
            continue
        num_columns = num_columns or len(cells)
        if len(cells) != num_columns:
            raise UserError(
                f"{path}, line {line_number}: {len(cells)} columns; expected {num_columns}, as in "
                f"the lines before: each word has its tag{_invisible_characters(line)}"
            )
        lines.append((line_number, cells))
    if not sentences:
        raise UserError(f"{path} has no sentences; expected a word and its tag on each line")
    return sentences


def _invisible_characters(text: str) -> str:
    """Returns the end of a message, with the names of what cannot be seen in a line; "" if none."""
    found = dict.fromkeys(
        f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
        for char in text
        if char not in "\t " and not char.isprintable()
    )
    return f"; the line contains {', '.join(found)}, which separates no columns" if found else ""


def _sentence(
    lines: list[tuple[int, list[str]]], path: str, num_columns: int, config: Conll
) -> Sentence:
    for name in ("word_column", "tag_column"):
        column = getattr(config, name)
        if not -num_columns <= column < num_columns:
            raise UserError(
                f"{path} has {num_columns} columns, but {name} is {column}; columns count from 0"
            )
    words = tuple(cells[config.word_column] for _, cells in lines)
    # Columns may count from the end, as -1 for the tag, so a file of one column has both in the
    # same.
    if config.word_column % num_columns == config.tag_column % num_columns:
        return Sentence(lines[0][0], words, None)
    # White space of any kind around a tag is an accident; in a word it may be meant.
    tags = tuple(cells[config.tag_column].strip() for _, cells in lines)
    for (line_number, _), word, tag in zip(lines, words, tags, strict=True):
        if not word:
            raise UserError(f"{path}, line {line_number}: the word is empty")
        if not _is_tag(tag):
            raise UserError(
                f"{path}, line {line_number}: the tag is {tag!r}; expected O, or B-, I-, E- or S- "
                f"with an entity type, such as B-PER{_invisible_characters(tag)}"
            )
    return Sentence(lines[0][0], words, tags)


def _labels(sentences: dict[str, tuple[str, list[Sentence]]]) -> tuple[str, ...]:
    """Returns "O" and both IOB2 tags of every type in train, or in all files without train."""
    # A type that only occurs in dev or test could never be predicted and is an error, not a label.
    label_sources = [sentences["train"]] if "train" in sentences else list(sentences.values())
    entity_types = {
        _split_tag(tag)[1]
        for _, split_sentences in label_sources
        for s in split_sentences
        for tag in s.tags or ()
        if tag != "O"
    }
    return (
        "O",
        *(f"{prefix}-{entity_type}" for entity_type in sorted(entity_types) for prefix in "BI"),
    )


def _examples(
    sentences: list[Sentence], path: str, scheme: TagScheme, labels: tuple[str, ...], strict: bool
) -> tuple[tuple[TaggedExample, ...], list[int]]:
    """Returns the examples, and the number of repaired tags of each sentence that had any."""
    examples, repaired = [], []
    for sentence_index, (line, words, tags) in enumerate(sentences):
        if tags is not None:
            tags, invalid_positions = to_iob2(tags, scheme)
            for position, tag in enumerate(tags):
                if tag not in labels:
                    raise UserError(
                        f"{path}, line {line + position}: the type {tag[2:]!r} does not occur in "
                        f"train; its tags: {', '.join(labels)}"
                    )
            if invalid_positions and strict:
                raise UserError(
                    f"{path}, line {line + invalid_positions[0]}: the tags do not follow {scheme} "
                    f"here (word {words[invalid_positions[0]]!r}); correct them, or leave out "
                    "--strict to repair them"
                )
            if invalid_positions:
                repaired.append(len(invalid_positions))
        examples.append(TaggedExample(id=str(sentence_index), words=words, tags=tags))
    return tuple(examples), repaired
