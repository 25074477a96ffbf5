"""Samples pairs of labeled texts for contrastive tuning, as SetFit does (Tunstall et al. 2022).

A positive pair has two texts of one class, or the same text twice; a negative pair has texts of two
classes. Each unordered pair exists once. The number of pairs grows with the square of the number of
texts, so only the pairs of an epoch are stored: pair k of a kind is computed from k, and a
permutation without a table decides which pairs are taken. The numbers of pairs are those of
`ContrastiveDataset` in setfit 1.2.
"""

import numpy as np

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.pretraining.rng import epoch_key, permute
from bert_jax.data.sentence_embeddings.config import PairSampling
from bert_jax.errors import UserError

MAX_PAIRS = 2**24
"""More pairs than this would take too much memory; small training sets need far fewer."""
_POSITIVE, _NEGATIVE = 0, 1


def sample_pairs(
    class_ids: np.ndarray, sampling: PairSampling, *, num_iterations: int | None = None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Samples the pairs of one epoch.

    A kind of pair of which more are needed than exist is gone through again from its beginning.

    Args:
      class_ids: int [n], the class of each text.
      num_iterations: n times this number of pairs of each kind, instead of `sampling`.
      seed: of the order of the pairs.

    Returns:
      (indices of the texts of each pair, int64 [pairs, 2]; float32 [pairs], 1 for positive pairs).

    Raises:
      UserError: there are fewer than two classes, so there is no negative pair; or more than
        `MAX_PAIRS` pairs would be sampled.
    """
    totals = num_positive, num_negative = count_pairs(class_ids)
    if not num_negative:
        raise UserError(
            "all training examples have the same label; expected at least two classes, because "
            "contrastive tuning needs pairs of different classes"
        )
    if num_iterations is not None:
        sizes = (num_iterations * len(class_ids),) * 2
    elif sampling == "unique":
        sizes = num_positive, num_negative
    else:
        choose = max if sampling == "oversampling" else min
        sizes = (choose(num_positive, num_negative),) * 2
    if sum(sizes) > MAX_PAIRS:
        raise UserError(
            f"contrastive tuning would take {sum(sizes):,} pairs of {len(class_ids):,} training "
            f"examples; expected at most {MAX_PAIRS:,}: set --num-iterations "
            "(ContrastivePairs.num_iterations), such as to 20, or use fewer examples"
        )
    sampled = [np.arange(size) % total for size, total in zip(sizes, totals, strict=True)]
    positive = permute(sampled[0], num_positive, epoch_key(seed, _POSITIVE))
    negative = permute(sampled[1], num_negative, epoch_key(seed, _NEGATIVE))
    pairs = [positive_pairs(class_ids, positive), negative_pairs(class_ids, negative)]
    scores = np.repeat(np.array([1, 0], np.float32), sizes)
    return np.concatenate(pairs), scores


def joined_text(example: TextExample) -> str:
    """Returns the text of an example, or both texts of a pair, joined with a space."""
    return example.text if example.text_pair is None else f"{example.text} {example.text_pair}"


def count_pairs(class_ids: np.ndarray) -> tuple[int, int]:
    """Returns the number of positive and of negative pairs that exist."""
    counts = np.unique(class_ids, return_counts=True)[1].astype(np.int64)
    num_positive = int((counts * (counts + 1) // 2).sum())
    return num_positive, len(class_ids) * (len(class_ids) + 1) // 2 - num_positive


def positive_pairs(class_ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the positive pairs with these numbers, int64 [n, 2].

    They are numbered by class and, within a class of m texts, row by row in the upper triangle of
    an m x m matrix with its diagonal.
    """
    order, starts, counts = _classes(class_ids)
    sizes = counts * (counts + 1) // 2
    ends = np.cumsum(sizes)
    classes = np.searchsorted(ends, numbers, side="right")
    within = numbers - (ends - sizes)[classes]
    size = counts[classes]
    # Row i starts at i (2 m - i + 1) / 2; the root may be off by one in floating point.
    root = np.sqrt((2.0 * size + 1) ** 2 - 8.0 * within)
    rows = np.clip(((2 * size + 1 - root) / 2).astype(np.int64), 0, size - 1)
    rows -= within < _row_start(rows, size)
    rows += within >= _row_start(rows + 1, size)
    columns = rows + within - _row_start(rows, size)
    return np.stack([order[starts[classes] + rows], order[starts[classes] + columns]], axis=1)


def negative_pairs(class_ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the negative pairs with these numbers, int64 [n, 2].

    They are numbered by their pair of classes, and then row by row in the matrix of both.
    """
    order, starts, counts = _classes(class_ids)
    first, second = np.triu_indices(len(counts), 1)
    sizes = counts[first] * counts[second]
    ends = np.cumsum(sizes)
    blocks = np.searchsorted(ends, numbers, side="right")
    within = numbers - (ends - sizes)[blocks]
    rows, columns = np.divmod(within, counts[second[blocks]])
    pairs = starts[first[blocks]] + rows, starts[second[blocks]] + columns
    return np.stack([order[pairs[0]], order[pairs[1]]], axis=1)


def _classes(class_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the texts sorted by class, and where each class starts and how many texts it has."""
    order = np.argsort(class_ids, kind="stable")
    _, starts, counts = np.unique(class_ids[order], return_index=True, return_counts=True)
    return order, starts, counts.astype(np.int64)


def _row_start(rows: np.ndarray, size: np.ndarray) -> np.ndarray:
    return rows * (2 * size - rows + 1) // 2
