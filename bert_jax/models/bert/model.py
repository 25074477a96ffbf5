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
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import AlibiPositions, ComputeConfig, RotaryPositions
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.post_norm import PostNormBlock
from bert_jax.models.layers.relative_bias import alibi_bias
from bert_jax.models.layers.rotary import inverse_frequencies, rotary_table
from bert_jax.models.layers.transformer import EncoderInputs, TransformerEncoder


class BertEncoder(TransformerEncoder):
    """Encodes token ids (Devlin et al. 2019, section 3); pooler and heads are not part of it.

    Attributes:
      embedding_projection: maps the embeddings from E to D; None unless E is not D (ELECTRA).
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
        if width != config.hidden_size:
            self.embedding_projection = linear(width, config.hidden_size, config, compute, rngs)
        if blocks is None:
            blocks = [PostNormBlock(config, compute, rngs) for _ in range(config.num_hidden_layers)]
        self.layers = nnx.List(blocks)
        self.positions, self.num_heads = config.positions, config.num_attention_heads
        self.head_width = config.head_width
        self.compute, self.drops_tokens = compute, config.drops_tokens

    def attention_inputs(self, inputs: EncoderInputs) -> AttentionMask:
        """Returns the attention mask, with the bias or the rotations of the positions."""
        mask = inputs.mask()
        if isinstance(self.positions, AlibiPositions):
            return dataclasses.replace(mask, bias=alibi_bias(self.num_heads, inputs.length))
        if isinstance(self.positions, RotaryPositions):
            frequencies = inverse_frequencies(self.head_width, self.positions.rope_theta)
            table = rotary_table(inputs.length, frequencies, inputs.position_ids)
            return dataclasses.replace(mask, rotary=table)
        return mask


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
