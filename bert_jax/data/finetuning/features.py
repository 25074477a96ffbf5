"""Labelled examples -> rows of token ids with their targets, ragged: nothing is padded here.

An example gives one row, except where it is longer than a row: taggings and contexts of questions
then give overlapping windows, and each token is decided by the window in which it is most central
(Devlin et al.'s release, `run_squad.py`, "max context").
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.data.finetuning.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
    is_labeled,
)
from bert_jax.data.finetuning.rows import Features, build_inputs_with_special_tokens
from bert_jax.data.finetuning.task import Task
from bert_jax.data.finetuning.text_windows import max_context, window_starts
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.tokenizer import Encoding, Tokenizer

MAX_QUERY_LENGTH = 64
"""Pieces of a question that are read; the rest is cut off, as in BERT's release."""
_MIN_CONTEXT_LENGTH = 8


def make_features(
    task: Task, split: str, tokenizer: Tokenizer, max_length: int, window_overlap: int = 128
) -> Features:
    """The rows of a split; [CLS] a [SEP] or [CLS] a [SEP] b [SEP], at most `max_length` long.

    Args:
      stride: pieces that two windows of one long example share.

    Raises:
      ConfigError: `max_length` leaves no room for text.
      UserError: an example has a label that the task does not name.
    """
    examples: Any = task.splits[split]
    if max_length < 4:
        raise ConfigError(f"a length of {max_length} leaves no room between [CLS] and [SEP]")
    match task.kind:
        case "classification" | "regression":
            return _text_features(examples, task, tokenizer, max_length)
        case "token_classification":
            return _token_classification_features(
                examples, task, tokenizer, max_length, window_overlap
            )
        case "question_answering":
            return _question_answering_features(examples, tokenizer, max_length, window_overlap)
        case "multiple_choice":
            return _multiple_choice_features(examples, tokenizer, max_length)


def _text_features(
    examples: Sequence[TextExample], task: Task, tokenizer: Tokenizer, max_length: int
) -> Features:
    first_ids = tokenizer.encode_ids([example.text for example in examples])
    pairs = [example.text_pair for example in examples]
    second_ids = iter(tokenizer.encode_ids([text for text in pairs if text is not None]))
    features = Features(example_index=np.arange(len(examples)))
    for a, pair in zip(first_ids, pairs, strict=True):
        b = None if pair is None else next(second_ids)
        ids, token_type_ids, is_truncated = build_inputs_with_special_tokens(
            a, b, tokenizer, max_length
        )
        features.input_ids.append(ids)
        features.token_type_ids.append(token_type_ids)
        features.num_truncated += is_truncated
    if _all_labeled(examples):
        if task.kind == "regression":
            features.targets["label_values"] = [float(e.label or 0) for e in examples]
        else:
            label_to_id = _make_label_lookup(task)
            features.targets["labels"] = [label_to_id(str(e.label), e.id) for e in examples]
    return features


def _token_classification_features(
    examples: Sequence[TaggedExample],
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    window_overlap: int,
) -> Features:
    label_to_id, tokens_by_word = _make_label_lookup(task), _tokenize_words(examples, tokenizer)
    window_length = max_length - tokenizer.template.num_single_special_tokens
    window_overlap = min(window_overlap, window_length // 2)
    is_labeled_split = _all_labeled(examples)
    features, example_indices = Features(), []
    if is_labeled_split:
        features.targets = {"token_labels": [], "token_label_weights": []}
    for example_index, example in enumerate(examples):
        words = [tokens_by_word[word] for word in example.words]
        ids = np.concatenate([*words, np.zeros(0, np.int32)])
        word_of_token = np.repeat(np.arange(len(words)), [len(word) for word in words])
        is_first_token = np.diff(word_of_token, prepend=-1) != 0
        tags = [label_to_id(tag, example.id) for tag in example.tags or ()]
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
            if is_labeled_split:
                label_ids = np.array([*tags, 0], np.int32)[word_ids]
                features.targets["token_labels"].append(np.where(word_ids >= 0, label_ids, 0))
                features.targets["token_label_weights"].append((word_ids >= 0).astype(np.float32))
    features.example_index = np.array(example_indices, np.int64)
    return features


def _tokenize_words(
    examples: Sequence[TaggedExample], tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """The pieces of each word, at least one; BPE sees the space before it, as within a text."""
    words = list(dict.fromkeys(word for example in examples for word in example.words))
    space = " " if tokenizer.kind == "bpe" else ""
    unknown = np.array([tokenizer.unk_id], np.int32)
    encoded = tokenizer.encode_ids([space + word for word in words])
    return {w: ids if len(ids) else unknown for w, ids in zip(words, encoded, strict=True)}


def _question_answering_features(
    examples: Sequence[QuestionExample], tokenizer: Tokenizer, max_length: int, window_overlap: int
) -> Features:
    questions = tokenizer.encode_ids([example.question for example in examples])
    contexts = {e.context: e.context for e in examples}
    encoded = dict(zip(contexts, tokenizer.encode_batch(list(contexts)), strict=True))
    is_labeled_split = _all_labeled(examples)
    features, example_indices = Features(), []
    if is_labeled_split:
        features.targets = {"start_positions": [], "end_positions": []}
    for example_index, (example, question) in enumerate(zip(examples, questions, strict=True)):
        question = question[:MAX_QUERY_LENGTH]
        window_length = max_length - len(question) - tokenizer.template.num_pair_special_tokens
        if window_length < _MIN_CONTEXT_LENGTH:
            raise ConfigError(
                f"a length of {max_length} leaves {max(window_length, 0)} pieces of context beside "
                f"the question {example.id!r} of {len(question)} pieces; expected at least "
                f"{_MIN_CONTEXT_LENGTH}: take a longer --max-length"
            )
        context = encoded[example.context]
        starts = window_starts(
            len(context.ids), window_length, min(window_overlap, window_length // 2)
        )
        max_context_masks = max_context(len(context.ids), window_length, starts)
        for start, is_max_context in zip(starts, max_context_masks, strict=True):
            _add_window(
                features,
                question,
                context,
                slice(start, start + window_length),
                is_max_context,
                tokenizer,
            )
            example_indices.append(example_index)
            if is_labeled_split:
                begin, end = _answer_positions(example, features.offsets[-1])
                features.targets["start_positions"].append(begin)
                features.targets["end_positions"].append(end)
    features.example_index = np.array(example_indices, np.int64)
    return features


def _add_window(
    features: Features,
    question: np.ndarray,
    context: Encoding,
    window: slice,
    window_max_context: np.ndarray,
    tokenizer: Tokenizer,
) -> None:
    ids = np.array(context.ids[window], np.int32)
    input_ids, token_type_ids, _ = build_inputs_with_special_tokens(
        question,
        ids,
        tokenizer,
        len(question) + len(ids) + tokenizer.template.num_pair_special_tokens,
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
    """First and last piece of the first answer; 0, 0 ([CLS]) where this window lacks a part."""
    if not example.answers:
        return 0, 0
    answer = example.answers[0]
    begin, end = answer.start, answer.start + len(answer.text)
    overlapping = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
    if not len(overlapping):
        return 0, 0
    first_token, last_token = int(overlapping[0]), int(overlapping[-1])
    # A window that ends within the answer cannot hold all of it.
    is_complete = offsets[first_token, 0] <= begin and offsets[last_token, 1] >= end
    return (first_token, last_token) if is_complete else (0, 0)


def _multiple_choice_features(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int
) -> Features:
    counts = {len(example.choices) for example in examples}
    if len(counts) > 1:
        raise UserError(f"examples have {sorted(counts)} choices; expected the same number in each")
    features = Features(example_index=np.arange(len(examples)), num_choices=max(counts, default=1))
    contexts = tokenizer.encode_ids([example.context for example in examples])
    endings = iter(
        tokenizer.encode_ids(
            [f"{e.prompt} {choice}".strip() for e in examples for choice in e.choices]
        )
    )
    for example, context in zip(examples, contexts, strict=True):
        truncated_flags = []
        for _ in example.choices:
            ids, token_type_ids, is_truncated = build_inputs_with_special_tokens(
                context, next(endings), tokenizer, max_length
            )
            features.input_ids.append(ids)
            features.token_type_ids.append(token_type_ids)
            truncated_flags.append(is_truncated)
        features.num_truncated += any(truncated_flags)
    if _all_labeled(examples):
        features.targets["labels"] = [int(example.label or 0) for example in examples]
    return features


def _all_labeled(examples: Sequence[Example]) -> bool:
    return bool(examples) and all(is_labeled(example) for example in examples)


def _make_label_lookup(task: Task) -> Callable[[str, str], int]:
    """Label -> its number; an unknown one is an error that names the example."""
    ids_by_label = {label: number for number, label in enumerate(task.labels)}

    def label_to_id(label: str, example_id: str) -> int:
        if label not in ids_by_label:
            raise UserError(
                f"{task.name}: the example {example_id!r} has the label {label!r}, which is none "
                f"of {', '.join(map(repr, task.labels))}; correct it, or train with it as well"
            )
        return ids_by_label[label]

    return label_to_id
