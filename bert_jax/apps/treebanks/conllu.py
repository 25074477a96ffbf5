"""Reads treebanks in the CoNLL-U format of Universal Dependencies.

A sentence consists of its syntactic words, which have an integer as id. As UD defines it, a line of
a multiword token ("1-2  don't", the surface form of words 1 and 2) and of an empty node ("8.1", for
enhanced dependencies) is no word, and is skipped.
"""

import re
from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.text.files import read_text

_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_SKIPPED_ID = re.compile(r"\d+(-\d+|\.\d+)")


class TreebankSentence(NamedTuple):
    """Holds a sentence of n words and its tree.

    Attributes:
      words: the forms.
      upos, xpos: universal and language-specific parts of speech; "_" where there is none.
      feats: morphological features, such as {"Number": "Sing"}.
      heads: for each word the index of its head from 0, and -1 for the root.
      deprels: relations to the head, with subtypes: "nsubj:pass".
      first_line: the number of the line of the first word in the file.
    """

    words: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    feats: tuple[dict[str, str], ...]
    heads: tuple[int, ...]
    deprels: tuple[str, ...]
    first_line: int

    @property
    def root(self) -> int:
        """Returns the index of the root."""
        return self.heads.index(-1)

    def depths(self) -> list[int]:
        """Returns the number of edges from the root to each word."""
        depths = [-1] * len(self.heads)
        for word in range(len(self.heads)):
            path = []
            while word >= 0 and depths[word] < 0:
                path.append(word)
                word = self.heads[word]
            start = depths[word] if word >= 0 else -1
            for distance, each in enumerate(reversed(path), 1):
                depths[each] = start + distance
        return depths


def read_treebank(path: str, *, limit: int | None = None) -> list[TreebankSentence]:
    """Reads the sentences of a CoNLL-U file, compressed or not.

    Args:
      limit: the number of sentences to read from the beginning; None for all.

    Raises:
      UserError: a line has not ten columns, ids do not count 1, 2, 3, ..., a head is no word of its
        sentence, or the heads are not a tree: no root, several, or a cycle.
    """
    sentences: list[TreebankSentence] = []
    rows: list[tuple[int, list[str]]] = []
    # The empty line at the end closes the last sentence of a file that does not end in one.
    for line_number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        line = line.removesuffix("\r")
        if line.startswith("#"):
            continue
        if line.strip():
            cells = line.split("\t")
            if len(cells) != len(_COLUMNS):
                raise UserError(
                    f"{path}, line {line_number}: {len(cells)} columns; expected the "
                    f"{len(_COLUMNS)} columns of CoNLL-U, separated by tabs: {' '.join(_COLUMNS)}"
                )
            if not _SKIPPED_ID.fullmatch(cells[0]):
                rows.append((line_number, cells))
        elif rows:
            sentences.append(_sentence(path, rows))
            rows = []
            if len(sentences) == limit:
                break
    if not sentences:
        raise UserError(f"{path} has no sentences; expected a treebank in the CoNLL-U format")
    return sentences


def _sentence(path: str, rows: list[tuple[int, list[str]]]) -> TreebankSentence:
    heads: list[int] = []
    for expected_id, (line_number, cells) in enumerate(rows, start=1):
        location = f"{path}, line {line_number}"
        if cells[0] != str(expected_id):
            raise UserError(
                f"{location}: the id of the word is {cells[0]!r}; expected {expected_id}, as "
                "words count from 1 in each sentence, and an empty line ends it"
            )
        if not cells[1]:
            raise UserError(f"{location}: the FORM is empty; expected a word")
        head = cells[6]
        if not (head.isascii() and head.isdecimal() and int(head) <= len(rows)):
            raise UserError(
                f"{location}: the HEAD is {head!r}; expected 0 for the root, or the id of one "
                f"of the {len(rows)} words of the sentence"
            )
        heads.append(int(head) - 1)
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    sentence = TreebankSentence(
        words=columns[1],
        upos=columns[3],
        xpos=columns[4],
        feats=tuple(map(_features, columns[5])),
        heads=tuple(heads),
        deprels=columns[7],
        first_line=rows[0][0],
    )
    _check_tree(path, sentence, [line_number for line_number, _ in rows])
    return sentence


def _features(cell: str) -> dict[str, str]:
    """Parses "Number=Sing|Person=3"; "_" is no features."""
    return dict(pair.split("=", 1) for pair in cell.split("|") if "=" in pair)


def _check_tree(path: str, sentence: TreebankSentence, lines: list[int]) -> None:
    roots = [index for index, head in enumerate(sentence.heads) if head < 0]
    if len(roots) > 1:
        raise UserError(
            f"{path}, line {lines[roots[1]]}: a second word with HEAD 0 (the first is in line "
            f"{lines[roots[0]]}); expected one root in a sentence"
        )
    if not roots:
        raise UserError(
            f"{path}, line {lines[0]}: no word of this sentence has HEAD 0; expected one root"
        )
    # Every word leads to the root, or into a cycle.
    for start, form in enumerate(sentence.words):
        word, num_steps = start, 0
        while word >= 0 and num_steps <= len(lines):
            word, num_steps = sentence.heads[word], num_steps + 1
        if word >= 0:
            raise UserError(
                f"{path}, line {lines[start]}: the heads of {form!r} run in a cycle and reach no "
                "root; expected a tree, so correct the column HEAD"
            )
