"""Trains GloVe (Pennington et al. 2014): word vectors by regression on co-occurrence counts.

The counts X are made by SciPy; the loss and AdaGrad are JAX. As in the authors' program, words
without a vector are removed before contexts are counted, a word at distance d counts 1/d, and the
result is the sum of the vectors of a word and of its context. Unlike there, an update has a batch
of counts, whose gradients are added, and a context does not cross the end of a sentence.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from tqdm import tqdm

from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.errors import UserError

Params = dict[str, jax.Array]

X_MAX, ALPHA = 100.0, 0.75
"""The constants of the weights f(x) = min(1, (x / X_MAX) ** ALPHA), as in the paper."""
LEARNING_RATE = 0.05
BATCH_SIZE = 4096
_TOKENS_AT_ONCE = 1_000_000


class CountBatch(NamedTuple):
    """Holds entries of the matrix of counts.

    Attributes:
      words, contexts: row and column of each entry, int32 [B].
      counts: float32 [B]; 0 for padding, which has no loss.
    """

    words: jax.Array
    contexts: jax.Array
    counts: jax.Array


def vocabulary(sentences: Sequence[Sequence[str]], min_count: int) -> list[str]:
    """Returns the words that occur at least `min_count` times, the most frequent first."""
    counts = Counter(word for sentence in sentences for word in sentence)
    return [word for word, count in counts.most_common() if count >= min_count]


def cooccurrences(
    sentences: Sequence[Sequence[str]], words: Sequence[str], window: int
) -> sparse.coo_array:
    """Counts how often words occur near each other, with the weight 1 / distance.

    Args:
      words: the vocabulary; other words are removed from the sentences first.
      window: the largest distance, to both sides, within a sentence.

    Returns:
      A symmetric sparse matrix, float64 [V, V].
    """
    index = {word: row for row, word in enumerate(words)}
    shape = (len(words), len(words))
    total = sparse.csr_array(shape)
    ids, numbers = list[int](), list[int]()
    for number, sentence in enumerate(sentences):
        known = [index[word] for word in sentence if word in index]
        ids += known
        numbers += [number] * len(known)
        if len(ids) >= _TOKENS_AT_ONCE or number == len(sentences) - 1:
            total += _cooccurrences_of_ids(
                np.array(ids, np.int32), np.array(numbers), window, shape
            )
            ids, numbers = [], []
    return sparse.coo_array(total + total.T)


def _cooccurrences_of_ids(
    ids: np.ndarray, sentence_numbers: np.ndarray, window: int, shape: tuple[int, int]
) -> sparse.csr_array:
    """Counts the pairs of a word and a later one of the same sentence."""
    rows, columns, weights = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for distance in range(1, min(window, len(ids) - 1) + 1):
        same = sentence_numbers[distance:] == sentence_numbers[:-distance]
        rows.append(ids[:-distance][same])
        columns.append(ids[distance:][same])
        weights.append(np.full(int(same.sum()), 1 / distance))
    if not rows:
        return sparse.csr_array(shape)
    entries = np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))
    return sparse.csr_array(sparse.coo_array(entries, shape=shape))


def init_params(key: jax.Array, num_words: int, dimensions: int) -> Params:
    """Returns vectors and biases of words and contexts, uniform in (-0.5, 0.5) / D."""
    shapes = {
        "words": (num_words, dimensions),
        "contexts": (num_words, dimensions),
        "word_biases": (num_words,),
        "context_biases": (num_words,),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.uniform(k, shape, jnp.float32, -0.5, 0.5) / dimensions
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def glove_loss(params: Params, batch: CountBatch) -> jax.Array:
    """Returns the sum of f(X) (w . c + b + b' - log X)^2 over a batch, equation 8 of the paper."""
    counts = jnp.maximum(batch.counts, 1e-30)
    products = (params["words"][batch.words] * params["contexts"][batch.contexts]).sum(axis=1)
    biases = params["word_biases"][batch.words] + params["context_biases"][batch.contexts]
    weights = jnp.minimum(1.0, (batch.counts / X_MAX) ** ALPHA)
    return jnp.sum(weights * jnp.square(products + biases - jnp.log(counts)))


def adagrad_update(params: Params, squares: Params, gradients: Params) -> tuple[Params, Params]:
    """Divides gradients by the root of the sum of squares of earlier ones, which starts at 1."""
    params = jax.tree.map(
        lambda p, s, g: p - LEARNING_RATE * g / jnp.sqrt(s), params, squares, gradients
    )
    return params, jax.tree.map(lambda s, g: s + jnp.square(g), squares, gradients)


@functools.partial(jax.jit, donate_argnums=(0,))
def train_epoch(
    state: tuple[Params, Params], batches: CountBatch
) -> tuple[tuple[Params, Params], jax.Array]:
    """Makes one update for each batch of [steps, B] entries; returns the loss of each, too."""

    def step(state: Any, batch: CountBatch) -> tuple[Any, jax.Array]:
        # Other rows have no gradient, so AdaGrad leaves them as they are.
        word_rows, words = _distinct(batch.words)
        context_rows, contexts = _distinct(batch.contexts)
        rows = {
            "words": word_rows,
            "word_biases": word_rows,
            "contexts": context_rows,
            "context_biases": context_rows,
        }
        old = tuple({name: tree[name][rows[name]] for name in tree} for tree in state)
        local = batch._replace(words=words, contexts=contexts)
        loss, gradients = jax.value_and_grad(glove_loss)(old[0], local)
        new = adagrad_update(old[0], old[1], gradients)
        state = tuple(
            {name: tree[name].at[rows[name]].set(values[name], mode="drop") for name in tree}
            for tree, values in zip(state, new, strict=True)
        )
        return state, loss

    return jax.lax.scan(step, state, batches)


def _distinct(ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the distinct ids, padded to [B], and the index of each id among them.

    The padding is an id that no row has.
    """
    padding = jnp.iinfo(ids.dtype).max
    return jnp.unique(ids, return_inverse=True, size=len(ids), fill_value=padding)


def train_glove(
    sentences: Sequence[Sequence[str]],
    *,
    dimensions: int,
    window: int,
    epochs: int,
    min_count: int,
    seed: int,
) -> tuple[WordVectors, list[float]]:
    """Trains GloVe vectors.

    Returns:
      The vectors, and the mean loss of a count in each epoch.

    Raises:
      UserError: no two frequent words occur near each other.
    """
    words = vocabulary(sentences, min_count)
    matrix = cooccurrences(sentences, words, window)
    if not matrix.nnz:
        raise UserError(
            "no two words of the vocabulary occur in a sentence; expected longer sentences or a "
            "smaller --min-count"
        )
    params = init_params(jax.random.key(seed), len(words), dimensions)
    state = params, jax.tree.map(jnp.ones_like, params)
    losses: list[float] = []
    size = min(BATCH_SIZE, matrix.nnz)
    bar = tqdm(range(epochs), desc="GloVe", unit=" epochs", disable=None)
    for epoch in bar:
        order = np.random.default_rng((seed, epoch)).permutation(matrix.nnz)
        columns = (
            matrix.row.astype(np.int32),
            matrix.col.astype(np.int32),
            matrix.data.astype(np.float32),
        )
        padded = (np.pad(column[order], (0, -len(order) % size)) for column in columns)
        batches = CountBatch(*(jnp.asarray(column.reshape(-1, size)) for column in padded))
        state, batch_losses = train_epoch(state, batches)
        losses.append(float(batch_losses.sum()) / matrix.nnz)
        bar.set_postfix_str(f"loss {losses[-1]:.4f}")
    params = state[0]
    return WordVectors(words, np.asarray(params["words"] + params["contexts"])), losses
