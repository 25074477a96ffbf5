"""Rows of token ids with their targets, ragged: what examples become before they are padded."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_jax.text.tokenizer import Tokenizer


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
    example_index: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    num_choices: int = 1
    num_truncated: int = 0
    word_ids: list[np.ndarray] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)
    is_max_context: list[np.ndarray] = field(default_factory=list)
    encoder_features: dict[str, Sequence[np.ndarray] | np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.example_index)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int64 [rows]: the length of each row, its longest text's."""
        text_lengths = np.array([len(input_ids) for input_ids in self.input_ids], np.int64)
        return text_lengths.reshape(-1, self.num_choices).max(axis=1, initial=0)


def build_inputs_with_special_tokens(
    first_ids: Sequence[int] | np.ndarray,
    second_ids: Sequence[int] | np.ndarray | None,
    tokenizer: Tokenizer,
    max_length: int,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns (input_ids, token_type_ids, truncated) of a text or a pair with special tokens.

    What is too long loses its end, of a pair the longer text first ("longest first" as Hugging
    Face's tokenizers do it: when both are too long, each keeps half, the longer one the odd piece).
    """
    template = tokenizer.template
    if second_ids is None:
        truncated_ids = first_ids[: max_length - template.num_single_special_tokens]
        input_ids = tokenizer.build_inputs_with_special_tokens(truncated_ids)
        return input_ids, np.zeros_like(input_ids), len(truncated_ids) < len(first_ids)
    num_first, num_second = longest_first_lengths(
        len(first_ids), len(second_ids), max_length - template.num_pair_special_tokens
    )
    input_ids = tokenizer.build_inputs_with_special_tokens(
        first_ids[:num_first], second_ids[:num_second]
    )
    token_type_ids = template.token_type_ids(num_first, num_second)
    return input_ids, token_type_ids, num_first < len(first_ids) or num_second < len(second_ids)


def longest_first_lengths(
    first_length: int, second_length: int, max_total_length: int
) -> tuple[int, int]:
    shorter, longer = min(first_length, second_length), max(first_length, second_length)
    if shorter + longer > max_total_length:
        longer = (
            max(shorter, max_total_length - shorter) if shorter <= max_total_length else shorter
        )
        if shorter + longer > max_total_length:
            shorter, longer = max_total_length // 2, max_total_length - max_total_length // 2
    return (longer, shorter) if first_length > second_length else (shorter, longer)
