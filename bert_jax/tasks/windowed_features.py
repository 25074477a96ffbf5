"""Makes the features of examples that are read in overlapping windows if they are too long.

These are questions about a context, and sentences with a tag for each word. Each token of a context
and each word is predicted in the window that gives it most context; see `max_context`.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.data.finetuning.example import QuestionExample, TaggedExample
from bert_jax.data.finetuning.features import (
    Features,
    all_labeled,
    build_inputs_with_special_tokens,
    make_label_lookup,
    max_context,
    window_starts,
)
from bert_jax.errors import ConfigError
from bert_jax.text.tokenizer import Encoding, Tokenizer

MAX_QUERY_LENGTH = 64
"""Limit for the tokens of a question; longer ones are truncated, as in BERT's `run_squad.py`."""
_MIN_CONTEXT_LENGTH = 8


def question_features(
    examples: Sequence[QuestionExample],
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int,
) -> Features:
    """Tokenizes each question as a pair with every window of its context.

    Raises:
      ConfigError: `max_length` leaves too few tokens for the context after a question.
    """
    questions = tokenizer.encode_ids([example.question for example in examples])
    # Contexts repeat in SQuAD: each is tokenized once.
    contexts = list(dict.fromkeys(example.context for example in examples))
    encoded = dict(zip(contexts, tokenizer.encode_batch(contexts), strict=True))
    features, example_indices = Features(), []
    start_positions: list[int] = []
    end_positions: list[int] = []
    for example_index, (example, question) in enumerate(zip(examples, questions, strict=True)):
        question = question[:MAX_QUERY_LENGTH]
        window_length = max_length - len(question) - tokenizer.template.num_pair_special_tokens
        if window_length < _MIN_CONTEXT_LENGTH:
            raise ConfigError(
                f"sequences of {max_length} tokens have room for {max(window_length, 0)} "
                f"tokens of context after the question {example.id!r} of {len(question)}; "
                f"expected at least {_MIN_CONTEXT_LENGTH}: increase --max-length"
            )
        context = encoded[example.context]
        starts = window_starts(
            len(context.ids), window_length, min(window_overlap, window_length // 2)
        )
        max_context_masks = max_context(len(context.ids), window_length, starts)
        for start, is_max_context in zip(starts, max_context_masks, strict=True):
            window = slice(start, start + window_length)
            _add_window(features, question, context, window, is_max_context, tokenizer)
            example_indices.append(example_index)
            begin, end = _answer_positions(example, features.offsets[-1])
            start_positions.append(begin)
            end_positions.append(end)
    features.example_index = np.array(example_indices, np.int64)
    if all_labeled(examples):
        features.targets = {"start_positions": start_positions, "end_positions": end_positions}
    return features


def tagged_word_features(
    examples: Sequence[TaggedExample],
    labels: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int,
) -> Features:
    """Tokenizes words; each word is predicted in the window that gives it most context."""
    label_to_id = make_label_lookup(labels)
    tokens_by_word = _tokenize_words(examples, tokenizer)
    window_length = max_length - tokenizer.template.num_single_special_tokens
    window_overlap = min(window_overlap, window_length // 2)
    features, example_indices = Features(), []
    token_labels: list[np.ndarray] = []
    token_label_weights: list[np.ndarray] = []
    for example_index, example in enumerate(examples):
        words = [tokens_by_word[word] for word in example.words]
        ids = np.concatenate([*words, np.zeros(0, np.int32)])
        word_of_token = np.repeat(np.arange(len(words)), [len(word) for word in words])
        is_first_token = np.diff(word_of_token, prepend=-1) != 0
        tag_ids = [label_to_id(tag, example.id) for tag in example.tags or ()]
        starts = window_starts(len(ids), window_length, window_overlap)
        max_context_masks = max_context(len(ids), window_length, starts)
        for start, is_max_context in zip(starts, max_context_masks, strict=True):
            window = slice(start, start + window_length)
            input_ids, token_type_ids, _ = build_inputs_with_special_tokens(
                ids[window], None, tokenizer, max_length
            )
            word_ids = np.full(len(input_ids), -1, np.int32)
            word_ids[1:-1] = np.where(
                is_first_token[window] & is_max_context, word_of_token[window], -1
            )
            features.input_ids.append(input_ids)
            features.token_type_ids.append(token_type_ids)
            features.word_ids.append(word_ids)
            example_indices.append(example_index)
            # The word id -1 selects the 0 that is appended to the tag ids.
            label_ids = np.array([*tag_ids, 0], np.int32)[word_ids] if tag_ids else word_ids
            token_labels.append(np.where(word_ids >= 0, label_ids, 0))
            token_label_weights.append((word_ids >= 0).astype(np.float32))
    features.example_index = np.array(example_indices, np.int64)
    if all_labeled(examples):
        features.targets = {
            "token_labels": token_labels,
            "token_label_weights": token_label_weights,
        }
    return features


def _add_window(
    features: Features,
    question: np.ndarray,
    context: Encoding,
    window: slice,
    window_max_context: np.ndarray,
    tokenizer: Tokenizer,
) -> None:
    """Appends one sequence: a question and a window of its context."""
    ids = np.array(context.ids[window], np.int32)
    total_length = len(question) + len(ids) + tokenizer.template.num_pair_special_tokens
    input_ids, token_type_ids, _ = build_inputs_with_special_tokens(
        question, ids, tokenizer, total_length
    )
    offsets = np.full((len(input_ids), 2), -1, np.int32)
    is_max_context = np.zeros(len(input_ids), bool)
    context_start = tokenizer.template.second_start(len(question))
    context_tokens = slice(context_start, context_start + len(ids))
    if len(ids):
        offsets[context_tokens] = context.offsets[window]
        is_max_context[context_tokens] = window_max_context
    features.input_ids.append(input_ids)
    features.token_type_ids.append(token_type_ids)
    features.offsets.append(offsets)
    features.is_max_context.append(is_max_context)


def _answer_positions(example: QuestionExample, offsets: np.ndarray) -> tuple[int, int]:
    """Returns the first and last token of the first answer; 0, 0 ([CLS]) if not all is here."""
    if not example.answers:
        return 0, 0
    answer = example.answers[0]
    begin, end = answer.start, answer.start + len(answer.text)
    overlapping = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
    if not len(overlapping):
        return 0, 0
    first_token, last_token = int(overlapping[0]), int(overlapping[-1])
    # A window that starts or ends within the answer does not contain all of it.
    is_complete = offsets[first_token, 0] <= begin and offsets[last_token, 1] >= end
    return (first_token, last_token) if is_complete else (0, 0)


def _tokenize_words(
    examples: Sequence[TaggedExample], tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """Returns the token ids of each word, at least one."""
    words = list(dict.fromkeys(word for example in examples for word in example.words))
    # Byte-level BPE encodes a word within a text with the space before it.
    space = " " if tokenizer.kind == "bpe" else ""
    unknown = np.array([tokenizer.unk_id], np.int32)
    encoded = tokenizer.encode_ids([space + word for word in words])
    return {w: ids if len(ids) else unknown for w, ids in zip(words, encoded, strict=True)}
