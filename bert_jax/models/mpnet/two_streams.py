"""Computes what the two streams of MPNet's pretraining attend to (Song et al. 2020, section 2).

The predicted tokens of a sequence have a random order. A prediction depends on the tokens that are
not predicted and on the predicted ones before it in the order (permuted language modeling). It also
attends to [MASK] at its own position and at all later ones (masked language modeling). So every
query attends to each position of the sequence exactly once: to its token or to its mask ("position
compensation").

The content stream has the L tokens of the text and the P mask tokens; the query stream has a second
copy of the P mask tokens. Both attend to the content stream. The original code
(`masked_permutation_net.py`) permutes the tokens: first those that are not predicted, then the
others in their order. Attention does not depend on the order of its keys, so here all tokens remain
where they are in the text, and only the attention mask depends on the order. The query stream is
part of the same sequence of S = L + 2P tokens, but nothing attends to it; so the layers are those
of every other encoder.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Predictions(NamedTuple):
    """Holds the predicted tokens of each sequence.

    Attributes:
      positions: int32 [B, P], where they are in the text; 0 where unused.
      input_ids: int32 [B, P], what the model reads there: [MASK], a random or the original token.
      ranks: int32 [B, P], their places in the order of prediction, from 0.
      is_used: bool [B, P].
    """

    positions: jax.Array
    input_ids: jax.Array
    ranks: jax.Array
    is_used: jax.Array


# The order is the order of the random `sampling_seeds`, so that no batch field is added.
def permutation_ranks(seeds_BP: jax.Array, is_used: jax.Array) -> jax.Array:
    """Returns the rank of each prediction in a random order of a sequence's predictions.

    Args:
      seeds_BP: int32 random numbers, independent of each other.
      is_used: bool [B, P].

    Returns:
      int32 [B, P], from 0; the rank of all unused entries is the number of used ones.
    """
    index = jnp.arange(seeds_BP.shape[1])
    first, second = seeds_BP[:, :, None], seeds_BP[:, None, :]
    is_smaller = (second < first) | ((second == first) & (index[None, :] < index[:, None]))
    is_before = is_used[:, None, :] & (is_smaller | ~is_used[:, :, None])
    return jnp.sum(is_before, axis=2, dtype=jnp.int32)


# The original code permutes the tokens and has an attention of its own for the two streams.
# Attention does not depend on the order of its keys, so here the tokens stay in place, and all
# layers, loops and shardings are those of other encoders. The price: keys and values are computed
# for the P queries too, to which nothing attends.
def two_stream_mask(predictions: Predictions, length: int) -> jax.Array:
    """Returns which keys each query attends to, bool [B, S, S]; padding is not considered.

    It is the mask of `make_query_and_content_mask` of the original code, and follows from one
    number for each query: the rank of the last prediction whose token it attends to. That is -1 for
    a token that is not predicted and for a mask token, its own rank for a predicted token, and the
    rank before its own for a query. A query attends to the tokens up to that rank, and to the masks
    of all later predictions.
    """
    ranks = jnp.where(predictions.is_used, predictions.ranks, 0)
    is_here = predictions.positions[..., None] == jnp.arange(length)  # [B, P, L]
    is_here &= predictions.is_used[..., None]
    token_ranks = jnp.sum(jnp.where(is_here, ranks[..., None] + 1, 0), axis=1) - 1
    last_ranks = jnp.concatenate([token_ranks, jnp.full_like(ranks, -1), ranks - 1], axis=1)
    to_tokens = token_ranks[:, None, :] <= last_ranks[..., None]
    to_masks = ranks[:, None, :] > last_ranks[..., None]
    return jnp.concatenate([to_tokens, to_masks, jnp.zeros_like(to_masks)], axis=2)


def add_streams_to_bias(bias_HLL: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Extends a bias between positions of the text to both streams, float32 [B, H, S, S].

    It differs between sequences, so that its memory grows with the batch.
    """
    batch_size = len(positions_BP)
    is_here = jax.nn.one_hot(positions_BP, bias_HLL.shape[-1], dtype=jnp.float32)
    # Products instead of gathers, whose gradients would be slow scatters on TPUs.
    rows, columns = (
        jnp.einsum(spec, is_here, bias_HLL, precision=jax.lax.Precision.HIGHEST)
        for spec in ("bpl,hlm->bhpm", "bpm,hlm->bhlp")
    )
    corner = jnp.einsum("bhpm,bqm->bhpq", rows, is_here, precision=jax.lax.Precision.HIGHEST)
    whole = jnp.broadcast_to(bias_HLL[None], (batch_size, *bias_HLL.shape))
    tokens = jnp.concatenate([whole, columns, columns], axis=3)
    masks = jnp.concatenate([rows, corner, corner], axis=3)
    return jnp.concatenate([tokens, masks, masks], axis=2)
