"""Defines the MPNet encoder (Song et al. 2020): BERT's layers with a relative position bias.

Positions are counted from the padding id, as in RoBERTa, and there are no token types. One bias,
which depends on head and distance, is added to the attention scores of all layers.

`encode_predictions` is the forward pass of MPNet's own pretraining, which has two streams (section
2). The predicted tokens of a sequence have a random order. A prediction depends on the tokens that
are not predicted and on the predicted ones before it in the order (permuted language modeling). It
also attends to [MASK] at its own position and at all later ones (masked language modeling). So
every query attends to each position of the sequence exactly once: to its token or to its mask
("position compensation").

The content stream has the L tokens of the text and the P mask tokens; the query stream has a second
copy of the P mask tokens. Both attend to the content stream. The original code
(`masked_permutation_net.py`) permutes the tokens: first those that are not predicted, then the
others in their order. Attention does not depend on the order of its keys, so here all tokens remain
where they are in the text, and only the attention mask depends on the order. The query stream is
part of the same sequence of S = L + 2P tokens, but nothing attends to it; so the layers are those
of every other encoder.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.bert.model import PARAMETER_AXES as _BERT_AXES
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import initializer
from bert_jax.models.layers.post_norm import NUM_DROPOUT_SITES, PostNormBlock
from bert_jax.models.layers.relative_bias import RelativePositionBias
from bert_jax.models.layers.stack import run_layers
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder
from bert_jax.models.mpnet.config import MPNetConfig


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


class MPNetEncoder(TransformerEncoder):
    """Encodes token ids; pooler and heads are not part of it.

    Attributes:
      relative_attention_bias: 32 buckets up to distance 128, constants in Hugging Face's code.
    """

    def __init__(self, config: MPNetConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs)
        self.layers = nnx.List(
            [PostNormBlock(config, compute, rngs) for _ in range(config.num_hidden_layers)]
        )
        self.relative_attention_bias = RelativePositionBias(
            config.num_attention_heads, initializer(config), rngs
        )
        self.compute = compute

    def attention_inputs(self, inputs: EncoderInputs) -> AttentionMask:
        """Returns the attention mask with the bias of relative positions."""
        bias = self.relative_attention_bias(inputs.length)
        return dataclasses.replace(inputs.mask(), bias=bias)

    def encode_predictions(
        self,
        original_ids: jax.Array,
        attention_mask: jax.Array,
        predictions: Predictions,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Encodes what each prediction may depend on: the query stream of the last layer.

        Args:
          original_ids: int32 [B, L], the text without masks.
          attention_mask: int32 [B, L], 1 = real token.
          predictions: the tokens to predict, and their order.
          position_ids, packing_ids: int32 [B, L] if rows are packed, else None.
          dropout_key: None to apply no dropout.

        Returns:
          The hidden states of the predictions, [B, P, D].
        """
        length = original_ids.shape[1]
        layer_seeds, input_seeds = make_layer_dropout_seeds(
            dropout_key, len(self.layers), NUM_DROPOUT_SITES
        )
        prediction_positions = predictions.positions
        if position_ids is not None:
            prediction_positions = jnp.take_along_axis(position_ids, predictions.positions, 1)
        # The same mask tokens are in the content and in the queries, with other dropout.
        inputs = (
            (original_ids, position_ids),
            (predictions.input_ids, prediction_positions),
            (predictions.input_ids, prediction_positions),
        )
        embedded = [
            self.embeddings(ids, jnp.zeros_like(ids), positions, seed)
            for (ids, positions), seed in zip(inputs, input_seeds, strict=True)
        ]
        segment_ids = attention_mask if packing_ids is None else packing_ids
        output = run_layers(
            self.layers,
            self.compute,
            jnp.concatenate(embedded, axis=1),
            self._make_two_stream_mask(segment_ids, predictions),
            layer_seeds,
        )
        return output.last_hidden_state[:, length + predictions.positions.shape[1] :]

    def _make_two_stream_mask(
        self, segment_ids: jax.Array, predictions: Predictions
    ) -> AttentionMask:
        """Returns the mask of the L tokens, the P masks and the P queries: S = L + 2P of each."""
        positions, length = predictions.positions, segment_ids.shape[1]
        bias_HLL = self.relative_attention_bias(length)[0]
        bias_BHSS = add_streams_to_bias(bias_HLL, positions)
        mask_BSS = two_stream_mask(predictions, length)
        # Keys of the query stream, and of unused entries, are in a segment of their own.
        prediction_segments = jnp.take_along_axis(segment_ids, positions, axis=1)
        mask_segments = jnp.where(predictions.is_used, prediction_segments, -1)
        return AttentionMask(
            q_segment_ids=jnp.concatenate([segment_ids, *[prediction_segments] * 2], axis=1),
            kv_segment_ids=jnp.concatenate(
                [segment_ids, mask_segments, jnp.full_like(mask_segments, -1)], axis=1
            ),
            causal=False,
            bias=jnp.where(mask_BSS[:, None], bias_BHSS, jnp.finfo(jnp.float32).min),
        )


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    *_BERT_AXES,
    ("relative_attention_bias/bias", (None, "heads")),
]
