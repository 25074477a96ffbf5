"""Defines `Features`, the token ids and targets of examples, and what all kinds of tasks share.

`bert_jax.tasks` makes features from examples. Nothing is padded here: the loader pads when it
makes batches.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from bert_jax.config.labeled_data import WindowPooling
from bert_jax.data.finetuning.example import Example, is_labeled
from bert_jax.errors import UserError
from bert_jax.text.tokenizer import Tokenizer

TargetValues = list[int] | list[float] | list[np.ndarray]


class AppendedTokens(Protocol):
    """Draws tokens that are appended to each sequence, other ones in every epoch."""

    @property
    def longest(self) -> int:
        """Returns the largest number of tokens that can be appended."""
        ...

    @property
    def max_length(self) -> int:
        """Returns the number of tokens after which a sequence is cut."""
        ...

    def __call__(
        self, input_ids: np.ndarray, token_type_ids: np.ndarray, index: int, seed: int, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns input_ids and token_type_ids of a sequence with the tokens of an epoch."""
        ...


@dataclass(kw_only=True)
class Features:
    """Holds the model inputs of one split; a sequence is one row of a future batch.

    An example gives one sequence, except when it is too long for one and is read in overlapping
    windows: then it gives a sequence for each window.

    Attributes:
      input_ids: int32 [length] for each text of each sequence; a sequence has `num_choices` texts,
        listed one after another, and one text if the task has no choices. With `JointWindows`
        its windows take the place of choices, and missing windows are empty.
      token_type_ids: int32 [length], in the same order.
      targets: batch field -> one value or one array [length] for each sequence. Empty if any
        example has no label.
      example_index: int64 [sequences], the index of the example of each sequence, ascending.
      num_choices: number of texts in a sequence: its choices or its windows.
      window_mask: int32 [sequences, windows] with `JointWindows`: 1 = a window, 0 = padding.
      window_pooling: how the outputs for several sequences of an example are combined into one
        prediction, in classification, regression and ranking; "mean_logits" is for classification
        only.
      num_truncated: number of examples that have a part that no sequence contains.
      word_ids: for token classification, int32 [length] for each sequence: the index of the word
        at the first token of each word that this sequence predicts, -1 at all other tokens.
      offsets: for question answering, int32 [length, 2] for each sequence: the characters
        [start, end) of the context that a token covers, (-1, -1) outside the context.
      is_max_context: for question answering, bool [length] for each sequence: whether no other
        window gives this token more context.
      encoder_features: batch field -> float32 array for each sequence, the cached output of a
        frozen encoder. Empty if the encoder runs at every step.
      appended: what is appended to each training sequence, drawn for every epoch, if anything.
    """

    input_ids: list[np.ndarray] = field(default_factory=list)
    token_type_ids: list[np.ndarray] = field(default_factory=list)
    targets: dict[str, TargetValues] = field(default_factory=dict)
    example_index: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    num_choices: int = 1
    window_mask: np.ndarray | None = None
    window_pooling: WindowPooling | Literal["mean_logits"] = "mean"
    num_truncated: int = 0
    word_ids: list[np.ndarray] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)
    is_max_context: list[np.ndarray] = field(default_factory=list)
    encoder_features: dict[str, Sequence[np.ndarray] | np.ndarray] = field(default_factory=dict)
    appended: AppendedTokens | None = None

    def __len__(self) -> int:
        return len(self.example_index)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Returns the length of each sequence, int64 [n]: of its longest choice.

        With `appended`, it is the largest length that the sequence can have in any epoch.
        """
        text_lengths = np.array([len(input_ids) for input_ids in self.input_ids], np.int64)
        lengths = text_lengths.reshape(-1, self.num_choices).max(axis=1, initial=0)
        if self.appended is None:
            return lengths
        return np.minimum(lengths + self.appended.longest, self.appended.max_length)

    def of_epoch(self, indices: Sequence[int], seed: int, epoch: int) -> "Features":
        """Returns features in which the sequences at `indices` belong to one epoch."""
        if self.appended is None:
            return self
        input_ids, token_type_ids = list(self.input_ids), list(self.token_type_ids)
        for index in indices:
            input_ids[index], token_type_ids[index] = self.appended(
                input_ids[index], token_type_ids[index], index, seed, epoch
            )
        # The lists were copied, because the features of the next epoch begin with the same
        # sequences.
        return dataclasses.replace(
            self, input_ids=input_ids, token_type_ids=token_type_ids, appended=None
        )


def build_inputs_with_special_tokens(
    first_ids: Sequence[int] | np.ndarray,
    second_ids: Sequence[int] | np.ndarray | None,
    tokenizer: Tokenizer,
    max_length: int,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns (input_ids, token_type_ids, is_truncated) of a text or a pair of texts.

    The layout is the template of the tokenizer, for example [CLS] first [SEP] second [SEP]. Texts
    that are too long lose tokens at their ends, see `longest_first_lengths`.
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
    """Returns the lengths of both texts of a pair after truncation to a total length.

    This is the "longest_first" truncation of Hugging Face's fast tokenizers: the longer text is
    cut first. If both are too long, each keeps half, and the longer one the odd token.
    """
    shorter, longer = min(first_length, second_length), max(first_length, second_length)
    if shorter + longer > max_total_length:
        longer = (
            max(shorter, max_total_length - shorter) if shorter <= max_total_length else shorter
        )
        if shorter + longer > max_total_length:
            shorter, longer = max_total_length // 2, max_total_length - max_total_length // 2
    return (longer, shorter) if first_length > second_length else (shorter, longer)


def window_starts(num_tokens: int, window_length: int, window_overlap: int) -> list[int]:
    """Returns the start of each window over `num_tokens` tokens; neighbors share the overlap.

    The last window may be shorter, as with `return_overflowing_tokens` in Hugging Face's
    tokenizers. Even zero tokens give one window, so that every example has a sequence.
    """
    starts = [0]
    while starts[-1] + window_length < num_tokens:
        starts.append(starts[-1] + window_length - window_overlap)
    return starts


def max_context(num_tokens: int, window_length: int, starts: list[int]) -> list[np.ndarray]:
    """Returns for each window a bool mask of the tokens that have most context in this window.

    The context of a token is the smaller of its numbers of neighbors to the left and to the right
    within the window. Among equals the longer window wins, then the earlier one, as in
    `_check_is_max_context` of BERT's `run_squad.py`. Exactly one window has each token.
    """
    best_score, best_window = np.full(num_tokens, -1.0), np.zeros(num_tokens, np.int64)
    for window_index, start in enumerate(starts):
        current_length = min(window_length, num_tokens - start)
        positions = np.arange(current_length)
        # The factor 0.01 is in `run_squad.py` of BERT.
        score = np.minimum(positions, current_length - 1 - positions) + 0.01 * current_length
        window = slice(start, start + current_length)
        # Not >=: of equal scores the earlier window wins.
        is_better = score > best_score[window]
        best_score[window][is_better] = score[is_better]
        best_window[window][is_better] = window_index
    return [
        best_window[start : start + window_length] == window_index
        if num_tokens
        else np.zeros(0, bool)
        for window_index, start in enumerate(starts)
    ]


def all_labeled(examples: Sequence[Example]) -> bool:
    """Returns whether there are examples and all of them have a label."""
    return bool(examples) and all(is_labeled(example) for example in examples)


def make_label_lookup(labels: Sequence[str]) -> Callable[[str, str], int]:
    """Returns a function (label, example id) -> class id.

    The function raises a UserError that names the example if the label is unknown.
    """
    label2id = {label: class_id for class_id, label in enumerate(labels)}

    def label_to_id(label: str, example_id: str) -> int:
        if label not in label2id:
            raise UserError(
                f"the example {example_id!r} has the label {label!r}; expected one of the labels "
                f"of the training data: {', '.join(map(repr, labels))}"
            )
        return label2id[label]

    return label_to_id
