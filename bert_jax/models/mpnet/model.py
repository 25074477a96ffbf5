"""Defines the MPNet encoder (Song et al. 2020): BERT's layers with a relative position bias.

Positions are counted from the padding id, as in RoBERTa, and there are no token types. One bias,
which depends on head and distance, is added to the attention scores of all layers.

`encode_predictions` is the forward pass of MPNet's own pretraining; `two_streams.py` describes it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.linear import initializer
from bert_jax.models.layers.relative_bias import RelativePositionBias
from bert_jax.models.layers.transformer import NUM_DROPOUT_SITES
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.mpnet.two_streams import Predictions, add_streams_to_bias, two_stream_mask


class MPNetEncoder(BertEncoder):
    """Encodes token ids; pooler and heads are not part of it.

    Attributes:
      relative_attention_bias: 32 buckets up to distance 128, constants in Hugging Face's code.
    """

    def __init__(self, config: MPNetConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        super().__init__(config, compute, rngs)
        self.relative_attention_bias = RelativePositionBias(
            config.num_attention_heads, initializer(config), rngs
        )

    def make_mask(
        self, attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool
    ) -> AttentionMask:
        """Returns BERT's attention mask with the relative bias."""
        mask = super().make_mask(attention_mask, packing_ids, causal)
        return dataclasses.replace(mask, bias=self.relative_attention_bias(attention_mask.shape[1]))

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
            dropout_key, self.num_layers, NUM_DROPOUT_SITES
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
        output = self.run_layers(
            jnp.concatenate(embedded, axis=1),
            self._make_two_stream_mask(segment_ids, predictions),
            layer_seeds,
            output_hidden_states=False,
            output_attentions=False,
        )
        return output[0][:, length + predictions.positions.shape[1] :]

    def _make_two_stream_mask(
        self, segment_ids: jax.Array, predictions: Predictions
    ) -> AttentionMask:
        """Returns the mask of the L tokens, the P masks and the P queries: S = L + 2P of each."""
        positions, length = predictions.positions, segment_ids.shape[1]
        bias_HLL = self.relative_attention_bias(length)[0]
        bias_BHSS = add_streams_to_bias(bias_HLL, positions)
        mask_BSS = two_stream_mask(predictions, length)
        # Keys of the query stream, and those of unused entries, are in a segment of their own.
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


build_encoder = MPNetEncoder
