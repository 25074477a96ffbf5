"""What to look at before training on a task: balance of labels, lengths, train among dev."""

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from bert_jax.data.finetuning.example import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from bert_jax.data.finetuning.features import make_features
from bert_jax.data.finetuning.task import Task
from bert_jax.text.tokenizer import Tokenizer

UNLABELED = "(no label)"
# Longer than any text: nothing is truncated at it, and nothing is cut into windows.
_UNLIMITED_LENGTH = 1 << 30


class LengthStats(NamedTuple):
    """Pieces of a split's examples with [CLS] and [SEP]; `too_long` have more than the limit."""

    median: int
    percentile_95: int
    maximum: int
    num_over_limit: int


def count_labels(task: Task, split: str) -> dict[str, int]:
    """How often each label occurs, in the order of the labels.

    Of taggings: spans of each type; of questions: those with and without an answer; of
    regressions: rows with and without a score.
    """
    counts: Counter[str] = Counter()
    for example in task.splits[split]:
        counts.update(_labels(example))
    order = [*task.labels, *sorted(counts)]
    return {label: counts[label] for label in dict.fromkeys(order) if counts[label]}


def regression_labels(task: Task, split: str) -> np.ndarray:
    """The numbers that a regression is to predict, float64."""
    labels = [e.label for e in task.splits[split] if isinstance(e, TextExample)]
    return np.array([label for label in labels if isinstance(label, float)])


def length_stats(task: Task, split: str, tokenizer: Tokenizer, max_length: int) -> LengthStats:
    """How long the examples of a split are, and how many of them do not fit into `max_length`."""
    lengths = make_features(task, split, tokenizer, _UNLIMITED_LENGTH).lengths
    if not len(lengths):
        return LengthStats(0, 0, 0, 0)
    median, percentile_95 = np.percentile(lengths, [50, 95], method="higher")
    num_over_limit = int((lengths > max_length).sum())
    return LengthStats(int(median), int(percentile_95), int(lengths.max()), num_over_limit)


def count_overlap(task: Task, split: str, train: str = "train") -> int:
    """Examples of `split` whose text (of questions: context) is in `train`, whatever its case."""
    train_keys = {_comparison_key(example) for example in task.splits.get(train, ())}
    return sum(_comparison_key(example) in train_keys for example in task.splits[split])


def format_label(example: Example) -> str:
    """The label of one example, as it was read."""
    match example:
        case TextExample(label=None) | ChoiceExample(label=None) | TaggedExample(tags=None):
            return UNLABELED
        case TaggedExample(tags=tags):
            return " ".join(tags or ())
        case QuestionExample(answers=()):
            return "no answer" if example.is_impossible else UNLABELED
        case QuestionExample(answers=answers):
            return repr(answers[0].text)
        case TextExample(label=label) | ChoiceExample(label=label):
            return str(label)


def _labels(example: Example) -> list[str]:
    match example:
        case TextExample(label=None) | ChoiceExample(label=None) | TaggedExample(tags=None):
            return [UNLABELED]
        case TextExample(label=label):
            return ["(score)" if isinstance(label, float) else str(label)]
        case TaggedExample(tags=tags):
            return [tag[2:] for tag in tags or () if tag.startswith("B-")]
        case QuestionExample(is_impossible=True):
            return ["no answer"]
        case QuestionExample(answers=answers):
            return ["answer" if answers else UNLABELED]
        case ChoiceExample(label=label):
            return [str(label)]


def _comparison_key(example: Example) -> Hashable:
    match example:
        case TextExample(text=text, text_pair=pair):
            return text.strip().casefold(), None if pair is None else pair.strip().casefold()
        case TaggedExample(words=words):
            return tuple(word.casefold() for word in words)
        case QuestionExample(context=context):
            return context.strip().casefold()
        case ChoiceExample(context=context, prompt=prompt, choices=choices):
            return context.casefold(), prompt.casefold(), choices
