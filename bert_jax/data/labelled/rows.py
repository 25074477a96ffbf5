"""Rows of token ids with their targets, ragged: what examples become before they are padded."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_jax.text.vocabulary import Vocabulary


@dataclass(kw_only=True)
class Features:
    """The rows of one split.

    Attributes:
      input_ids: int32 [length] for each text of each row; a row has `choices` texts, one after
        another, and 1 where the task has no choices.
      token_type_ids: int32 [length], likewise.
      targets: batch field -> one value for each row, or one array [length] for each row. Empty
        when an example has no label.
      example: int64 [rows], the number of the example that a row comes from, ascending.
      choices: texts in a row.
      truncated: examples of which something is in no row.
      words: for taggings, int32 [length] for each row: at the first piece of each word that this
        row decides, the word's number within the example; elsewhere -1.
      offsets: for questions, int32 [length, 2] for each row: the characters [start, end) of the
        context that a piece stands for; (-1, -1) outside the context.
      central: for questions, bool [length] for each row: this row decides the piece.
      states: batch field -> float32, what a frozen encoder that has read the rows beforehand says
        of each of them. Empty where the encoder reads each batch.
    """

    input_ids: list[np.ndarray] = field(default_factory=list)
    token_type_ids: list[np.ndarray] = field(default_factory=list)
    targets: dict[str, list[Any]] = field(default_factory=dict)
    example: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    choices: int = 1
    truncated: int = 0
    words: list[np.ndarray] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)
    central: list[np.ndarray] = field(default_factory=list)
    states: dict[str, Sequence[np.ndarray] | np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.example)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int64 [rows]: the length of each row, its longest text's."""
        each = np.array([len(ids) for ids in self.input_ids], np.int64)
        return each.reshape(-1, self.choices).max(axis=1, initial=0)


def pair_row(
    first: Sequence[int] | np.ndarray,
    second: Sequence[int] | np.ndarray | None,
    vocabulary: Vocabulary,
    max_length: int,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """(input_ids, token_type_ids, truncated) of [CLS] first [SEP], or of that and second [SEP].

    What is too long loses its end, of a pair the longer text first ("longest first" as Hugging
    Face's tokenizers do it: when both are too long, each keeps half, the longer one the odd piece).
    """
    if second is None:
        kept = first[: max_length - 2]
        ids = np.concatenate([[vocabulary.cls_id], kept, [vocabulary.sep_id]]).astype(np.int32)
        return ids, np.zeros_like(ids), len(kept) < len(first)
    a, b = longest_first(len(first), len(second), max_length - 3)
    sep = [vocabulary.sep_id]
    ids = np.concatenate([[vocabulary.cls_id], first[:a], sep, second[:b], sep]).astype(np.int32)
    types = np.zeros_like(ids)
    types[a + 2 :] = 1
    return ids, types, a < len(first) or b < len(second)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    short, long = min(first, second), max(first, second)
    if short + long > room:
        long = max(short, room - short) if short <= room else short
        if short + long > room:
            short, long = room // 2, room - room // 2
    return (long, short) if first > second else (short, long)
