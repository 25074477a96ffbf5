"""Computes BigBird's block-sparse attention, at a cost that grows linearly with the length L.

The sequence is split into blocks (Zaheer et al. 2020, section 2). The first and the last block
attend to all blocks. Every other block attends to the first and the last one, to itself and its two
neighbors, and to some random ones. Random blocks are used in training only; in evaluation Hugging
Face's plan of random blocks is all zeros, so the first block is attended to several times, which
adds a logarithm to its scores.

The draws of the random blocks with `numpy.random` are those of the original code
(`bigbird/core/attention.py`), with the index of the layer as seed: layers and heads have different
blocks, training steps the same.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.layers.matmul import attention_context, attention_scores

_NO_KEY = -1
"""The segment id of keys that no query attends to; real ids are not negative."""


def block_sparse_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    *,
    block_size: int,
    num_random_blocks: int,
    plan: np.ndarray | None,
) -> jax.Array:
    """Computes the context of queries that attend to the blocks above, within their own segment.

    There is no dropout of attention weights: neither Google's code nor Hugging Face's has one.

    Args:
      q, k, v: [B, L, H, K]; queries are not scaled yet. L has at least 5 blocks.
      segment_ids: int32 [B, L], 1 for real tokens and 0 for padding.
      plan: int32 [H, N - 2, num_random_blocks] for N blocks, the random key blocks of the query
        blocks 1 to N - 2; None in evaluation, where all of them are block 0.

    Returns:
      The context [B, L, H, K] in the dtype of `v`. The softmax is computed in float32.
    """
    batch, length, heads, width = q.shape
    num_blocks = -(-length // block_size)
    end = num_blocks * block_size - length
    q, k, v = (jnp.pad(x, ((0, 0), (0, end), (0, 0), (0, 0))) for x in (q, k, v))
    ids = jnp.pad(segment_ids, ((0, 0), (0, end)))  # HF: the last block is filled with padding
    q = q * jnp.asarray(width**-0.5, q.dtype)
    q, k_blocks, v_blocks = (
        x.reshape(batch, num_blocks, block_size, heads, width) for x in (q, k, v)
    )
    id_blocks = ids.reshape(batch, num_blocks, block_size)

    first, last = _context_of_ends(q, id_blocks, k, v, ids)
    keys, values = _visible_blocks(k_blocks), _visible_blocks(v_blocks)
    key_ids = _without_duplicates(_visible_blocks(id_blocks))[:, :, None]  # all heads see the same
    if plan is not None:
        keys, values = (
            jnp.concatenate([x, _random_blocks(blocks, plan)], axis=2)
            for x, blocks in ((keys, k_blocks), (values, v_blocks))
        )
        random_ids = id_blocks[:, plan].transpose(0, 2, 1, 3, 4)  # [B, N - 2, H, R, block]
        random_ids = random_ids.reshape(batch, num_blocks - 2, heads, -1)
        shape = (*random_ids.shape[:3], key_ids.shape[-1])
        key_ids = jnp.concatenate([jnp.broadcast_to(key_ids, shape), random_ids], axis=-1)

    def merge(x: jax.Array) -> jax.Array:
        """Makes the blocks of all sequences one batch: [B, N - 2, ...] to [B x (N - 2), ...]."""
        return x.reshape(batch * (num_blocks - 2), *x.shape[2:])

    scores = attention_scores(merge(q[:, 1:-1]), merge(keys))
    if plan is None:
        copies = jnp.arange(scores.shape[-1]) < block_size
        scores += jnp.where(copies, jnp.float32(math.log(1 + num_random_blocks)), 0.0)
    mask = merge(id_blocks[:, 1:-1])[:, None, :, None] == merge(key_ids)[:, :, None]
    middle = _attend(scores, mask, merge(values))
    middle = middle.reshape(batch, num_blocks - 2, block_size, heads, width)
    context = jnp.concatenate([first, middle, last], axis=1)
    return context.reshape(batch, num_blocks * block_size, heads, width)[:, :length]


def _context_of_ends(
    q_blocks: jax.Array, id_blocks: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array
) -> list[jax.Array]:
    """Returns the context of the first and the last block, which attend to all keys.

    Each is [B, 1, block, H, K]; queries and their ids are [B, N, block, ...].
    """
    q, q_ids = (
        jnp.concatenate([blocks[:, 0], blocks[:, -1]], axis=1) for blocks in (q_blocks, id_blocks)
    )
    mask = q_ids[:, None, :, None] == ids[:, None, None, :]
    return jnp.split(_attend(attention_scores(q, k), mask, v)[:, None], 2, axis=2)


def _attend(scores: jax.Array, mask: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    return attention_context(jax.nn.softmax(scores, axis=-1), v).astype(v.dtype)


def _visible_blocks(blocks: jax.Array) -> jax.Array:
    """Returns the blocks that are visible to each query block but the first and last.

    Maps [B, N, block, ...] to [B, N - 2, 5 x block, ...]: the first block, the one before, the same
    one, the one after, the last block.
    """
    middle = blocks[:, 1:-1]
    ends = (jnp.broadcast_to(x, middle.shape) for x in (blocks[:, :1], blocks[:, -1:]))
    first, last = ends
    return jnp.concatenate([first, blocks[:, :-2], middle, blocks[:, 2:], last], axis=2)


def _without_duplicates(ids: jax.Array) -> jax.Array:
    """Hides the second copy of a block that is both global and a neighbor; [B, N - 2, 5 x block].

    These are the block before query block 1 and the block after query block N - 2.
    """
    rows, columns = ids.shape[1:]
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    slot = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1) // (columns // 5)
    is_duplicate = ((row == 0) & (slot == 1)) | ((row == rows - 1) & (slot == 3))
    return jnp.where(is_duplicate, _NO_KEY, ids)


def _random_blocks(blocks: jax.Array, plan: np.ndarray) -> jax.Array:
    """Gathers the random blocks: [B, N, block, H, K] to [B, N - 2, R x block, H, K]."""
    gathered = jax.vmap(lambda of_head, index: of_head[:, index], in_axes=(3, 0), out_axes=4)(
        blocks, jnp.asarray(plan)
    )
    return gathered.reshape(gathered.shape[0], plan.shape[1], -1, *gathered.shape[4:])


# As in Hugging Face, evaluation has a plan of zeros, so that the first block is attended to 1 + 3
# times. Google's code uses the random blocks in evaluation, too.
def block_counts(num_blocks: int, num_random_blocks: int, plan: np.ndarray | None) -> np.ndarray:
    """Returns how many times a query block attends to a key block, int32 [H or 1, N, N].

    The scores of a key that is attended to c times are larger by log c. This is the definition of
    the pattern, from which attention weights are computed densely.
    """
    if plan is None:
        plan = np.zeros((1, num_blocks - 2, num_random_blocks), np.int32)
    counts = np.zeros((len(plan), num_blocks, num_blocks), np.int32)
    counts[:, 0] = counts[:, -1] = 1
    for row in range(1, num_blocks - 1):
        counts[:, row, [0, row - 1, row, row + 1, num_blocks - 1]] = 1
        for head, of_head in enumerate(plan):
            np.add.at(counts[head, row], of_head[row - 1], 1)
    return counts


_LENGTHS_OF_THE_PAPER = (1024, 3072, 4096)
"""Lengths for which the original code draws blocks in another way, as in the paper."""


# NumPy's generator with the layer as seed, because Hugging Face draws the blocks so: a model that
# was trained with these blocks has to keep them.
def random_blocks(
    *,
    num_blocks: int,
    block_size: int,
    num_heads: int,
    num_random_blocks: int,
    max_position_embeddings: int,
    seed: int,
) -> np.ndarray:
    """Returns the key blocks that each query block but the first and last attends to at random.

    Args:
      num_blocks: the number of blocks of the sequence, padded to whole blocks.

    Returns:
      int32 [H, num_blocks - 2, num_random_blocks].
    """
    generator = np.random.RandomState(seed)
    if num_blocks * block_size in _LENGTHS_OF_THE_PAPER:
        per_head = [
            _blocks_of_the_paper(
                generator, max_position_embeddings // block_size, block_size, num_random_blocks
            )[: num_blocks - 2]
            for _ in range(num_heads)
        ]
        return np.stack(per_head)
    blocks = np.zeros((num_heads, num_blocks, num_random_blocks), np.int32)
    # One more row than needed, as in the original; the order of the draws decides on the result.
    for row in range(1, num_blocks):
        for head in range(num_heads):
            blocks[head, row] = _blocks_of_one_row(generator, row, num_random_blocks)
    return blocks[:, 1:-1]


def _blocks_of_one_row(
    generator: np.random.RandomState, row: int, num_random_blocks: int
) -> np.ndarray:
    """Draws from the first blocks, 5 + 2 for each random block, without window and global ones."""
    end = 2 * num_random_blocks + 5
    illegal = {row - 1, row, row + 1, 0, end - 1}
    if row == 1:
        illegal.add(end - 2)
    if row == end - 2:
        illegal.add(1)
    permuted = generator.permutation(np.arange(end, dtype=np.int32))
    return np.array([block for block in permuted if block not in illegal][:num_random_blocks])


def _blocks_of_the_paper(
    generator: np.random.RandomState, num_blocks: int, block_size: int, num_random_blocks: int
) -> np.ndarray:
    """Draws the blocks of one head for the longest sequence; shorter ones use the first rows."""
    middle = np.arange(1, num_blocks - 1, dtype=np.int32)
    last = 1024 // block_size - 1 if 2 * block_size < 1024 else num_blocks - 1
    rows: list[np.ndarray] = []
    for row in range(1, num_blocks - 1):
        if row in (1, 2):
            allowed = middle[row + 1 : last]
        elif row in (num_blocks - 3, num_blocks - 2) or row - 2 > last:
            allowed = middle[:last]
        elif row + 1 == last:
            allowed = middle[: row - 2]
        else:
            allowed = np.concatenate((middle[: row - 2], middle[row + 1 : last]))
        rows.append(generator.permutation(allowed)[:num_random_blocks])
    return np.stack(rows)
