"""Trains structural probes: linear maps under which distances are those of trees.

As in Hewitt and Manning 2019: a matrix B maps vectors h of words so that |B h_i - B h_j|^2 is the
number of edges between the words i and j in the tree, or |B h_i|^2 the depth of i. The loss of a
sentence is the sum of absolute errors, divided by the number of pairs or words. The probes of all
layers and seeds are trained in one program.

Shapes: K layers, S seeds, N sentences, L words of the longest sentence, R the rank of B.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from bert_jax.apps.probes.early_stopping import train_with_early_stopping
from bert_jax.apps.treebanks.conllu import TreebankSentence
from bert_jax.errors import UserError, check_range

Target = Literal["distance", "depth"]
MAX_WORDS = 50
"""Longer sentences are left out of training and of correlations."""
MIN_WORDS = 5
"""Shorter sentences are left out of correlations."""
PUNCTUATION = "PUNCT"


@dataclass(frozen=True, kw_only=True)
class StructuralProbeConfig:
    """Configures structural probes; stopping is that of `StoppingConfig`."""

    rank: int = 64  # of B
    learning_rate: float = 1e-3
    batch_size: int = 20  # sentences
    max_epochs: int = 30
    patience: int = 3

    def __post_init__(self) -> None:
        check_range("learning_rate", self.learning_rate, above=0)
        for name in ("rank", "batch_size", "max_epochs", "patience"):
            check_range(name, getattr(self, name), at_least=1)


class Trees(NamedTuple):
    """Holds sentences of at most L words, padded.

    Attributes:
      words: int32 [N, L], the index of each word in the features; 0 for padding.
      mask: bool [N, L], False for padding.
      distances: float32 [N, L, L], edges between words.
      depths: float32 [N, L], edges to the root.
    """

    words: np.ndarray
    mask: np.ndarray
    distances: np.ndarray
    depths: np.ndarray


class Scores(NamedTuple):
    """Holds the scores of a probe, from 0 to 1, or correlations.

    Attributes:
      uuas: the fraction of edges, without direction and punctuation, that are in the minimum
        spanning tree of the predicted distances.
      distance_spearman: Spearman's correlation of the distances to each word, as a mean over words
        of sentences of one length, then over lengths 5 to 50.
      root_accuracy: how often the word of the smallest predicted depth is the root.
      depth_spearman: the correlation of depths in a sentence, as a mean in the same way.
    """

    uuas: float
    distance_spearman: float
    root_accuracy: float
    depth_spearman: float


def tree_distances(sentence: TreebankSentence) -> np.ndarray:
    """Returns the number of edges between each two words, float32 [n, n]."""
    size = len(sentence.heads)
    distances = np.full((size, size), np.inf, np.float32)
    order = np.argsort(sentence.depths(), kind="stable")
    distances[order[0], order[0]] = 0
    # A word is one edge further from all words above it than its head is.
    for count, word in enumerate(order[1:], 1):
        before = order[:count]
        distances[word, before] = distances[before, word] = (
            distances[sentence.heads[word], before] + 1
        )
        distances[word, word] = 0
    return distances


def make_trees(sentences: Sequence[TreebankSentence]) -> Trees:
    """Makes padded trees of sentences of at most `MAX_WORDS` words.

    Raises:
      UserError: no sentence has at most that many.
    """
    starts = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    usable = [i for i, sentence in enumerate(sentences) if len(sentence.words) <= MAX_WORDS]
    if not usable:
        raise UserError(f"no sentence has at most {MAX_WORDS} words; expected shorter sentences")
    length = max(len(sentences[index].words) for index in usable)
    shape = (len(usable), length)
    trees = Trees(
        np.zeros(shape, np.int32),
        np.zeros(shape, bool),
        np.zeros((*shape, length), np.float32),
        np.zeros(shape, np.float32),
    )
    for row, index in enumerate(usable):
        size = len(sentences[index].words)
        trees.words[row, :size] = np.arange(starts[index], starts[index] + size)
        trees.mask[row, :size] = True
        trees.distances[row, :size, :size] = tree_distances(sentences[index])
        trees.depths[row, :size] = sentences[index].depths()
    return trees


def train_structural_probes(
    features: jax.Array,
    trees: Trees,
    dev_features: jax.Array,
    dev_trees: Trees,
    seeds: Sequence[int],
    target: Target,
    config: StructuralProbeConfig,
) -> np.ndarray:
    """Trains a probe for each seed and layer, and returns B, float32 [S, K, R, D].

    Args:
      features: float32 [K, W, D], standardized.
    """
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    return np.asarray(_train(features, trees, dev_features, dev_trees, keys, target, config))


def score_probes(
    distance: np.ndarray,
    depth: np.ndarray,
    features: np.ndarray,
    sentences: Sequence[TreebankSentence],
) -> list[list[Scores]]:
    """Computes the scores of probes on sentences: a list over seeds of lists over layers.

    Args:
      distance, depth: the matrices B of both kinds of probes, float32 [S, K, R, D].
      features: float32 [K, W, D] of the words of the sentences.
    """
    by_probe: list[list[Scores]] = []
    starts = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    for distance_K, depth_K in zip(distance, depth, strict=True):
        by_layer: list[Scores] = []
        for layer, values in enumerate(features):
            mapped = values @ distance_K[layer].T
            squared_norms = np.square(values @ depth_K[layer].T).sum(-1)
            predicted = [
                (
                    squared_distances(mapped[starts[i] : starts[i + 1]]),
                    squared_norms[starts[i] : starts[i + 1]],
                )
                for i in range(len(sentences))
            ]
            by_layer.append(score_trees(predicted, sentences))
        by_probe.append(by_layer)
    return by_probe


def linear_baseline(sentences: Sequence[TreebankSentence]) -> Scores:
    """Computes the scores of the tree that links neighbors: distance and depth by position."""
    predicted = []
    for sentence in sentences:
        position = np.arange(len(sentence.words), dtype=np.float32)
        predicted.append((np.abs(position[:, None] - position), position))
    return score_trees(predicted, sentences)


def squared_distances(vectors: np.ndarray) -> np.ndarray:
    """Returns the squared distances between n vectors, [n, n]."""
    return np.square(vectors[:, None] - vectors[None]).sum(-1)


def score_trees(
    predicted: Sequence[tuple[np.ndarray, np.ndarray]], sentences: Sequence[TreebankSentence]
) -> Scores:
    """Computes the scores of predicted (distances [n, n], depths [n]) of each sentence."""
    num_correct = num_edges = num_roots = num_right_roots = 0
    distance_correlations: dict[int, list[float]] = {}
    depth_correlations: dict[int, list[float]] = {}
    for (distances, depths), sentence in zip(predicted, sentences, strict=True):
        labels = tree_distances(sentence)
        words = np.array([i for i, each in enumerate(sentence.upos) if each != PUNCTUATION], int)
        if len(words) > 1:
            true_edges = minimum_spanning_tree(labels[np.ix_(words, words)])
            edges = minimum_spanning_tree(distances[np.ix_(words, words)])
            num_correct += len(true_edges & edges)
            num_edges += len(true_edges)
        if sentence.root in words:
            num_roots += 1
            num_right_roots += int(words[np.argmin(depths[words])] == sentence.root)
        size = len(sentence.words)
        if MIN_WORDS <= size <= MAX_WORDS:
            distance_correlations.setdefault(size, []).extend(_spearman(distances, labels))
            true_depths = np.array(sentence.depths())
            depth_correlations.setdefault(size, []).extend(
                _spearman(depths[None], true_depths[None])
            )
    return Scores(
        num_correct / max(num_edges, 1),
        _mean_over_lengths(distance_correlations),
        num_right_roots / max(num_roots, 1),
        _mean_over_lengths(depth_correlations),
    )


def minimum_spanning_tree(distances: np.ndarray) -> set[tuple[int, int]]:
    """Returns the edges (i, j), i < j, of the tree with the smallest sum of distances (Prim)."""
    size = len(distances)
    nearest, cost = np.zeros(size, int), distances[0].astype(np.float64)
    cost[0] = np.inf
    outside = np.arange(size) > 0
    edges: set[tuple[int, int]] = set()
    while outside.any():
        word = int(np.argmin(np.where(outside, cost, np.inf)))
        edges.add((min(word, int(nearest[word])), max(word, int(nearest[word]))))
        outside[word] = False
        closer = outside & (distances[word] < cost)
        cost[closer], nearest[closer] = distances[word][closer], word
    return edges


def _spearman(predicted: np.ndarray, labels: np.ndarray) -> list[float]:
    """Returns Spearman's correlation of each row; 0 for a constant row, which orders nothing."""
    ranks, label_ranks = (rankdata(each, axis=1) for each in (predicted, labels))
    ranks -= ranks.mean(1, keepdims=True)
    label_ranks -= label_ranks.mean(1, keepdims=True)
    norms = np.linalg.norm(ranks, axis=1) * np.linalg.norm(label_ranks, axis=1)
    return ((ranks * label_ranks).sum(1) / np.maximum(norms, 1e-12)).tolist()


def _mean_over_lengths(by_length: Mapping[int, Sequence[float]]) -> float:
    if not by_length:
        return 0.0
    return float(np.mean([np.mean(values) for values in by_length.values()]))


def _predicted(matrices: jax.Array, features: jax.Array, target: Target) -> jax.Array:
    """Returns squared distances [B, L, L] or norms [B, L] of one probe."""
    mapped = jnp.einsum("rd,bld->blr", matrices, features)
    norms = jnp.square(mapped).sum(-1)
    if target == "depth":
        return norms
    products = jnp.einsum("blr,bmr->blm", mapped, mapped)
    return norms[:, :, None] + norms[:, None] - 2 * products


def _loss(matrix: jax.Array, features: jax.Array, trees: Trees, target: Target) -> jax.Array:
    """Returns the sum of absolute errors divided by their number, [B], of one probe."""
    mask = jnp.asarray(trees.mask)
    labels = jnp.asarray(trees.depths)
    if target == "distance":
        labels, mask = trees.distances, mask[:, :, None] & mask[:, None]
    errors = jnp.where(mask, jnp.abs(_predicted(matrix, features, target) - labels), 0)
    axes = tuple(range(1, errors.ndim))
    return errors.sum(axes) / jnp.maximum(mask.sum(axes).astype(jnp.float32), 1)


def _losses(
    matrices: jax.Array, features: jax.Array, trees: Trees, target: Target, *, by_seed: bool
) -> jax.Array:
    """Returns the losses of all probes, [S, K, B]; the trees may differ by seed."""

    def of_seed(matrices_K: jax.Array, trees: Trees) -> jax.Array:
        def of_layer(matrix: jax.Array, values: jax.Array) -> jax.Array:
            return _loss(matrix, values[trees.words], trees, target)

        return jax.vmap(of_layer)(matrices_K, features)

    return jax.vmap(of_seed, (0, 0 if by_seed else None))(matrices, trees)


@functools.partial(jax.jit, static_argnames=("target", "config"))
def _train(
    features: jax.Array,
    trees: Trees,
    dev_features: jax.Array,
    dev_trees: Trees,
    keys: jax.Array,
    target: Target,
    config: StructuralProbeConfig,
) -> jax.Array:
    num_layers, _, size = features.shape
    num_sentences, num_dev = len(trees.words), len(dev_trees.words)
    init_keys, batch_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    # Uniform, as in Hewitt's code; the layers of a seed begin equally.
    matrices = jax.vmap(
        lambda key: jax.random.uniform(key, (config.rank, size), minval=-0.05, maxval=0.05)
    )(init_keys)
    matrices = jnp.broadcast_to(matrices[:, None], (len(keys), num_layers, *matrices.shape[1:]))
    updates = -(-num_sentences // config.batch_size)

    def batch_loss(matrices: jax.Array, step_keys: jax.Array) -> jax.Array:
        def sample(key: jax.Array) -> Trees:
            indices = jax.random.randint(key, (config.batch_size,), 0, num_sentences)
            return jax.tree.map(lambda each: each[indices], trees)

        batch = jax.vmap(sample)(step_keys)
        return _losses(matrices, features, batch, target, by_seed=True).mean(-1).sum()

    def dev_losses(matrices: jax.Array) -> jax.Array:
        def one_batch(start: jax.Array) -> jax.Array:
            indices = start + jnp.arange(config.batch_size)
            rows = jax.tree.map(lambda each: each[indices % num_dev], dev_trees)
            losses = _losses(matrices, dev_features, rows, target, by_seed=False)
            return jnp.where(indices < num_dev, losses, 0).sum(-1)

        return jax.lax.map(one_batch, jnp.arange(0, num_dev, config.batch_size)).sum(0) / num_dev

    return train_with_early_stopping(matrices, batch_loss, dev_losses, batch_keys, updates, config)
