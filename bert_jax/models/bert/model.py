"""Defines BERT: the encoder, which is input embeddings and a stack of post-norm layers; the pooler.

RoBERTa, ELECTRA, DistilBERT and jina-embeddings-v3 are this encoder with other configs, NomicBERT
and GTE with other layers. The other families build their own encoders from the same parts in
`models/layers/`.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import AlibiPositions, ComputeConfig, RotaryPositions
from bert_jax.models.layers.dropout import make_layer_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.post_norm import PostNormBlock
from bert_jax.models.layers.relative_bias import alibi_bias
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.stack import TokenSelection, run_layers


class BertEncoder(nnx.Module):
    """Encodes token ids (Devlin et al. 2019, section 3); pooler and heads are not part of it.

    Attributes:
      embedding_projection: maps the embeddings from E to D; exists if E is not D (ELECTRA).
    """

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        blocks: Sequence[PostNormBlock] | None = None,
    ):
        """Initializes all parameters; `blocks` None are BERT's layers."""
        self.embeddings = Embeddings(config, compute, rngs)
        width = config.word_embedding_size
        self.has_projection = width != config.hidden_size
        if self.has_projection:
            self.embedding_projection = linear(width, config.hidden_size, config, compute, rngs)
        if blocks is None:
            blocks = [PostNormBlock(config, compute, rngs) for _ in range(config.num_hidden_layers)]
        self.layers = nnx.List(blocks)
        self.positions, self.num_heads = config.positions, config.num_attention_heads
        self.head_width = config.head_width
        self.compute = compute

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        causal: bool | jax.Array = False,
        dropout_key: jax.Array | None = None,
        selection: TokenSelection | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the arguments."""
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        mask = make_attention_mask(attention_mask, packing_ids, causal)
        if isinstance(self.positions, AlibiPositions):
            mask = dataclasses.replace(mask, bias=alibi_bias(self.num_heads, input_ids.shape[1]))
        if isinstance(self.positions, RotaryPositions):
            frequencies = inverse_frequencies(self.head_width, self.positions.rope_theta)
            table = rotary_table(input_ids.shape[1], frequencies, position_ids)
            mask = dataclasses.replace(mask, rotary=table)
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(self.layers), self.layers[0].num_dropout_sites
        )
        x_BLD = self.embeddings(input_ids, token_type_ids, position_ids, embedding_seed)
        if self.has_projection:
            x_BLD = self.embedding_projection(x_BLD)
        return run_layers(
            self.layers,
            self.compute,
            x_BLD,
            mask,
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            selection=selection,
        )

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, E]."""
        return self.embeddings.word_embeddings.embedding[...]


class Pooler(nnx.Module):
    """Computes tanh of a dense layer on the first token: the input of BERT's sentence heads.

    `EncoderWithHeads` in `models/model.py` builds it, for any family whose heads read it.
    """

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, compute, rngs)

    def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
        """Maps [B, L, D] to [B, D]."""
        return jnp.tanh(self.dense(hidden_BLD[:, 0]))


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
    ("layers/*/feed_forward/gate/kernel", ("embed", "mlp")),
    ("layers/*/feed_forward/output/kernel", ("mlp", "embed")),
    ("layers/*/feed_forward/output/bias", (None,)),
    ("layers/*/feed_forward_norm/*", (None,)),
]
