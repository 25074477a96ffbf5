"""Labelled examples -> rows of token ids with their targets, ragged: nothing is padded here.

An example gives one row, except where it is longer than a row: taggings and contexts of questions
then give overlapping windows, and each token is decided by the window in which it is most central
(Devlin et al.'s release, `run_squad.py`, "max context").
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.data.labelled.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
    is_labelled,
)
from bert_jax.data.labelled.rows import Features, pair_row
from bert_jax.data.labelled.task import Task
from bert_jax.data.labelled.windows import most_central, window_starts
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.vocabulary import Encoding, Vocabulary

MAX_QUERY_LENGTH = 64
"""Pieces of a question that are read; the rest is cut off, as in BERT's release."""
_LEAST_CONTEXT = 8


def make_features(
    task: Task, split: str, vocabulary: Vocabulary, max_length: int, stride: int = 128
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
            return _texts(examples, task, vocabulary, max_length)
        case "tagging":
            return _taggings(examples, task, vocabulary, max_length, stride)
        case "question_answering":
            return _questions(examples, vocabulary, max_length, stride)
        case "multiple_choice":
            return _choices(examples, vocabulary, max_length)


def _texts(
    examples: Sequence[TextExample], task: Task, vocabulary: Vocabulary, max_length: int
) -> Features:
    first = vocabulary.encode_ids([example.text for example in examples])
    pairs = [example.text_pair for example in examples]
    second = iter(vocabulary.encode_ids([text for text in pairs if text is not None]))
    features = Features(example=np.arange(len(examples)))
    for a, pair in zip(first, pairs, strict=True):
        b = None if pair is None else next(second)
        ids, types, cut = pair_row(a, b, vocabulary, max_length)
        features.input_ids.append(ids)
        features.token_type_ids.append(types)
        features.truncated += cut
    if _all_labelled(examples):
        if task.kind == "regression":
            features.targets["label_values"] = [float(e.label or 0) for e in examples]
        else:
            number = _numbers(task)
            features.targets["labels"] = [number(str(e.label), e.id) for e in examples]
    return features


def _taggings(
    examples: Sequence[TaggedExample],
    task: Task,
    vocabulary: Vocabulary,
    max_length: int,
    stride: int,
) -> Features:
    number, pieces = _numbers(task), _word_pieces(examples, vocabulary)
    room = max_length - 2
    stride = min(stride, room // 2)
    labelled = _all_labelled(examples)
    features, owners = Features(), []
    if labelled:
        features.targets = {"token_labels": [], "token_label_weights": []}
    for index, example in enumerate(examples):
        words = [pieces[word] for word in example.words]
        ids = np.concatenate([*words, np.zeros(0, np.int32)])
        word_of = np.repeat(np.arange(len(words)), [len(word) for word in words])
        first = np.diff(word_of, prepend=-1) != 0
        tags = [number(tag, example.id) for tag in example.tags or ()]
        starts = window_starts(len(ids), room, stride)
        central = most_central(len(ids), room, starts)
        for start, decides in zip(starts, central, strict=True):
            here = slice(start, start + room)
            row, types, _ = pair_row(ids[here], None, vocabulary, max_length)
            places = np.full(len(row), -1, np.int32)
            places[1:-1] = np.where(first[here] & decides, word_of[here], -1)
            features.input_ids.append(row)
            features.token_type_ids.append(types)
            features.words.append(places)
            owners.append(index)
            if labelled:
                decided = np.array([*tags, 0], np.int32)[places]
                features.targets["token_labels"].append(np.where(places >= 0, decided, 0))
                features.targets["token_label_weights"].append((places >= 0).astype(np.float32))
    features.example = np.array(owners, np.int64)
    return features


def _word_pieces(
    examples: Sequence[TaggedExample], vocabulary: Vocabulary
) -> dict[str, np.ndarray]:
    """The pieces of each word, at least one; BPE sees the space before it, as within a text."""
    words = list(dict.fromkeys(word for example in examples for word in example.words))
    space = " " if vocabulary.kind == "bpe" else ""
    unknown = np.array([vocabulary.unk_id], np.int32)
    encoded = vocabulary.encode_ids([space + word for word in words])
    return {w: ids if len(ids) else unknown for w, ids in zip(words, encoded, strict=True)}


def _questions(
    examples: Sequence[QuestionExample], vocabulary: Vocabulary, max_length: int, stride: int
) -> Features:
    questions = vocabulary.encode_ids([example.question for example in examples])
    contexts = {e.context: e.context for e in examples}
    encoded = dict(zip(contexts, vocabulary.encode_batch(list(contexts)), strict=True))
    labelled = _all_labelled(examples)
    features, owners = Features(), []
    if labelled:
        features.targets = {"start_positions": [], "end_positions": []}
    for index, (example, question) in enumerate(zip(examples, questions, strict=True)):
        question = question[:MAX_QUERY_LENGTH]
        room = max_length - len(question) - 3
        if room < _LEAST_CONTEXT:
            raise ConfigError(
                f"a length of {max_length} leaves {max(room, 0)} pieces of context beside the "
                f"question {example.id!r} of {len(question)} pieces; expected at least "
                f"{_LEAST_CONTEXT}: take a longer --max-length"
            )
        context = encoded[example.context]
        starts = window_starts(len(context.ids), room, min(stride, room // 2))
        central = most_central(len(context.ids), room, starts)
        for start, decides in zip(starts, central, strict=True):
            _add_window(
                features, question, context, slice(start, start + room), decides, vocabulary
            )
            owners.append(index)
            if labelled:
                begin, end = _answer_positions(example, features.offsets[-1])
                features.targets["start_positions"].append(begin)
                features.targets["end_positions"].append(end)
    features.example = np.array(owners, np.int64)
    return features


def _add_window(
    features: Features,
    question: np.ndarray,
    context: Encoding,
    here: slice,
    decides: np.ndarray,
    vocabulary: Vocabulary,
) -> None:
    ids = np.array(context.ids[here], np.int32)
    row, types, _ = pair_row(question, ids, vocabulary, len(question) + len(ids) + 3)
    offsets = np.full((len(row), 2), -1, np.int32)
    central = np.zeros(len(row), bool)
    place = slice(len(question) + 2, len(question) + 2 + len(ids))
    if len(ids):
        offsets[place] = context.offsets[here]
        central[place] = decides
    features.input_ids.append(row)
    features.token_type_ids.append(types)
    features.offsets.append(offsets)
    features.central.append(central)


def _answer_positions(example: QuestionExample, offsets: np.ndarray) -> tuple[int, int]:
    """First and last piece of the first answer; 0, 0 ([CLS]) where this window lacks a part."""
    if not example.answers:
        return 0, 0
    answer = example.answers[0]
    begin, end = answer.start, answer.start + len(answer.text)
    touching = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
    if not len(touching):
        return 0, 0
    first, last = int(touching[0]), int(touching[-1])
    # A window that ends within the answer cannot hold all of it.
    whole = offsets[first, 0] <= begin and offsets[last, 1] >= end
    return (first, last) if whole else (0, 0)


def _choices(
    examples: Sequence[ChoiceExample], vocabulary: Vocabulary, max_length: int
) -> Features:
    counts = {len(example.choices) for example in examples}
    if len(counts) > 1:
        raise UserError(f"examples have {sorted(counts)} choices; expected the same number in each")
    features = Features(example=np.arange(len(examples)), choices=max(counts, default=1))
    contexts = vocabulary.encode_ids([example.context for example in examples])
    endings = iter(
        vocabulary.encode_ids(
            [f"{e.prompt} {choice}".strip() for e in examples for choice in e.choices]
        )
    )
    for example, context in zip(examples, contexts, strict=True):
        cuts = []
        for _ in example.choices:
            ids, types, cut = pair_row(context, next(endings), vocabulary, max_length)
            features.input_ids.append(ids)
            features.token_type_ids.append(types)
            cuts.append(cut)
        features.truncated += any(cuts)
    if _all_labelled(examples):
        features.targets["labels"] = [int(example.label or 0) for example in examples]
    return features


def _all_labelled(examples: Sequence[Example]) -> bool:
    return bool(examples) and all(is_labelled(example) for example in examples)


def _numbers(task: Task) -> Callable[[str, str], int]:
    """Label -> its number; an unknown one is an error that names the example."""
    table = {label: number for number, label in enumerate(task.labels)}

    def number(label: str, example: str) -> int:
        if label not in table:
            raise UserError(
                f"{task.name}: the example {example!r} has the label {label!r}, which is none of "
                f"{', '.join(map(repr, task.labels))}; correct it, or train with it as well"
            )
        return table[label]

    return number
