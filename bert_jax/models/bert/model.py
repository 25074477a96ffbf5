"""Defines the BERT encoder: input embeddings and a stack of post-norm layers.

RoBERTa, ELECTRA and DistilBERT are this encoder with other configs.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import AttentionMask, make_attention_mask
from bert_jax.models.layers.config import AlibiPositions, ComputeConfig
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.relative_bias import alibi_bias
from bert_jax.models.layers.transformer import (
    NUM_DROPOUT_SITES,
    LayersOutput,
    PostNormBlock,
    apply_layers,
)


class BertEncoder(nnx.Module):
    """Encodes token ids (Devlin et al. 2019, section 3); pooler and heads are not part of it.

    Attributes:
      embedding_projection: maps the embeddings from E to D; exists if E is not D.
    """

    has_alibi = False

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.embeddings = self.make_embeddings(config, compute, rngs)
        width = config.word_embedding_size
        self.has_projection = width != config.hidden_size
        if self.has_projection:
            self.embedding_projection = linear(width, config.hidden_size, config, compute, rngs)
        self.layers = nnx.List(self.make_blocks(config, compute, rngs))
        self.num_layers = config.num_hidden_layers
        self.num_heads = config.num_attention_heads
        self.has_alibi = isinstance(config.positions, AlibiPositions)
        self.compute = compute

    def make_embeddings(
        self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs
    ) -> Embeddings:
        """Builds the input embeddings; a family with other ones overrides this method."""
        return Embeddings(config, compute, rngs)

    def make_blocks(
        self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs
    ) -> list[PostNormBlock]:
        """Builds the layers; a family with another attention overrides this method."""
        return [PostNormBlock(config, compute, rngs) for _ in range(config.num_hidden_layers)]

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        causal: bool = False,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the arguments."""
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        return self.encode(
            input_ids,
            token_type_ids,
            position_ids,
            self.make_mask(attention_mask, packing_ids, causal),
            dropout_key,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

    def make_mask(
        self, attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool
    ) -> AttentionMask:
        """Makes the attention mask of a batch; a family with a bias on the scores overrides it."""
        mask = make_attention_mask(attention_mask, packing_ids, causal)
        if not self.has_alibi:
            return mask
        return dataclasses.replace(mask, bias=alibi_bias(self.num_heads, attention_mask.shape[1]))

    def encode(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None,
        position_ids: jax.Array | None,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        *,
        output_hidden_states: bool,
        output_attentions: bool,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids with the attention mask that all layers use."""
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, self.num_layers, NUM_DROPOUT_SITES
        )
        embedding_output = self.embeddings(input_ids, token_type_ids, position_ids, embedding_seed)
        if self.has_projection:
            embedding_output = self.embedding_projection(embedding_output)
        last_hidden_state, layer_outputs, attention_weights = self.run_layers(
            embedding_output,
            mask,
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return EncoderOutput(
            last_hidden_state,
            (embedding_output, *layer_outputs) if output_hidden_states else (),
            tuple(attention_weights),
        )

    def run_layers(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seeds: jax.Array | None,
        *,
        output_hidden_states: bool,
        output_attentions: bool,
    ) -> LayersOutput:
        """Runs all layers on the embeddings; see `apply_layers`."""
        return apply_layers(
            self.layers,
            self.compute,
            x_BLD,
            mask,
            dropout_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, E]."""
        return self.embeddings.word_embeddings.embedding[...]


PARAMETER_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    ("embeddings/word_embeddings/embedding", ("vocab", "embed")),
    ("embeddings/position_embeddings/embedding", (None, "embed")),
    # In place of these tables; see `"gradient_disentangled"`.
    ("embeddings/word_embeddings/difference", ("vocab", "embed")),
    ("embeddings/position_embeddings/difference", (None, "embed")),
    ("embeddings/token_type_embeddings/embedding", (None, "embed")),
    ("embeddings/norm/*", (None,)),
    ("embedding_projection/kernel", (None, "embed")),
    ("embedding_projection/bias", (None,)),
    ("layers/*/attention/query/kernel", ("embed", "heads")),
    ("layers/*/attention/key/kernel", ("embed", "heads")),
    ("layers/*/attention/value/kernel", ("embed", "heads")),
    ("layers/*/attention/query/bias", ("heads",)),
    ("layers/*/attention/key/bias", ("heads",)),
    ("layers/*/attention/value/bias", ("heads",)),
    ("layers/*/attention/output/kernel", ("heads", "embed")),
    ("layers/*/attention/output/bias", (None,)),
    ("layers/*/attention_norm/*", (None,)),
    ("layers/*/feed_forward/intermediate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/intermediate/bias", ("mlp",)),
    ("layers/*/feed_forward/output/kernel", ("mlp", "embed")),
    ("layers/*/feed_forward/output/bias", (None,)),
    ("layers/*/feed_forward_norm/*", (None,)),
]
