"""Defines the head of SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2)."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.batch import MAX_SPAN_TARGETS
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.pretraining_config import SPAN_POSITION_EMBEDDING_SIZE
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.embedding_lookup import embedding_lookup
from bert_jax.models.layers.linear import initializer, layer_norm, linear
from bert_jax.models.layers.matmul import dense_transposed
from bert_jax.models.layers.transformer import activate


class SpanBoundaryHead(nnx.Module):
    """Predicts the tokens of a masked span from the tokens before and after the span.

    The layers are those of `BertPairTargetPredictionHead` in SpanBERT's release: two layers of
    dense, activation and LayerNorm, the product with the encoder's token embeddings, and a bias.
    The second layer maps D to E, the width of the token embeddings, which is D in SpanBERT.
    Their input is [hidden state to the left; hidden state to the right; position embedding].
    """

    def __init__(self, config: TransformerConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        width, table_width = config.hidden_size, config.word_embedding_size
        self.position_embeddings = nnx.Embed(
            MAX_SPAN_TARGETS,
            SPAN_POSITION_EMBEDDING_SIZE,
            param_dtype=jnp.float32,
            embedding_init=initializer(config),
            rngs=rngs,
        )
        self.linear1 = linear(
            2 * width + SPAN_POSITION_EMBEDDING_SIZE, width, config, compute, rngs
        )
        self.layer_norm1 = layer_norm(config, compute)
        self.linear2 = linear(width, table_width, config, compute, rngs)
        self.layer_norm2 = layer_norm(config, compute, table_width)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        self.activation = config.hidden_act

    def __call__(
        self,
        left_BPD: jax.Array,
        right_BPD: jax.Array,
        offsets_BP: jax.Array,
        token_embeddings_VE: jax.Array,
    ) -> jax.Array:
        """Computes the logits of P tokens in each of B sequences.

        Args:
          left_BPD, right_BPD: hidden states next to the span of each token.
          offsets_BP: int32, the position of the token in its span, below `MAX_SPAN_TARGETS`.
          token_embeddings_VE: the token embeddings of the encoder.

        Returns:
          float32 [B, P, V].
        """
        positions = embedding_lookup(self.position_embeddings.embedding[...], offsets_BP)
        inputs = (left_BPD, right_BPD, positions.astype(left_BPD.dtype))
        hidden = activate(self.linear1(jnp.concatenate(inputs, axis=-1)), self.activation)
        hidden = activate(self.linear2(self.layer_norm1(hidden)), self.activation)
        hidden = self.layer_norm2(hidden)
        return dense_transposed(hidden, token_embeddings_VE, self.bias[...], hidden.dtype)
