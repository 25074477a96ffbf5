"""Computes statistics of a task's data: label counts, lengths, overlap of train and dev."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.tasks import kind_of, make_features
from bert_jax.text.tokenizer import Tokenizer

# Longer than any text, so that nothing is truncated or cut into windows.
_UNLIMITED_LENGTH = 1 << 30


class LengthStats(NamedTuple):
    """Holds token counts of a split's examples with special tokens, and how many exceed a limit."""

    median: int
    percentile_95: int
    maximum: int
    num_over_limit: int


def count_labels(task: Task, split: str) -> dict[str, int]:
    """Counts each label of a split, in the order of the task's labels.

    For token classification it counts entities by type, for question answering questions with and
    without an answer, for regression examples with and without a score.
    """
    kind = kind_of(task)
    counts: Counter[str] = Counter()
    for example in task.splits[split]:
        counts.update(kind.count_keys(example))
    order = [*task.labels, *sorted(counts)]
    return {label: counts[label] for label in dict.fromkeys(order) if counts[label]}


def regression_labels(task: Task, split: str) -> np.ndarray:
    """Returns the scores of a regression's examples, float64; empty for another kind of task."""
    labels = [e.label for e in task.splits[split] if isinstance(e, TextExample)]
    return np.array([label for label in labels if isinstance(label, float)])


def length_stats(task: Task, split: str, tokenizer: Tokenizer, max_length: int) -> LengthStats:
    """Computes how long the examples of a split are and how many exceed `max_length` tokens."""
    lengths = make_features(task, split, tokenizer, _UNLIMITED_LENGTH).lengths
    if not len(lengths):
        return LengthStats(0, 0, 0, 0)
    median, percentile_95 = np.percentile(lengths, [50, 95], method="higher")
    num_over_limit = int((lengths > max_length).sum())
    return LengthStats(int(median), int(percentile_95), int(lengths.max()), num_over_limit)


def count_overlap(task: Task, split: str, train: str = "train") -> int:
    """Counts examples of `split` whose text occurs in `train`, ignoring case.

    For question answering the text is the context.
    """
    kind = kind_of(task)
    train_keys = {kind.overlap_key(example) for example in task.splits.get(train, ())}
    return sum(kind.overlap_key(example) in train_keys for example in task.splits[split])
