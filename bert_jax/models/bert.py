"""The BERT encoder: embeddings and a stack of post-norm blocks."""

from typing import NamedTuple

import jax
from flax import nnx

from bert_jax.models.attention import visible
from bert_jax.models.block import SITES, PostNormBlock
from bert_jax.models.config import BertConfig, Compute
from bert_jax.models.dropout import seeds
from bert_jax.models.embedding import Embeddings
from bert_jax.models.stack import run_layers


class EncoderOutput(NamedTuple):
    """What an encoder returns; field names are Hugging Face's.

    Attributes:
      last_hidden_state: [B, L, D].
      hidden_states: embeddings, then each layer's output, N + 1 arrays [B, L, D]; () if not asked.
      attentions: each layer's attention weights, N arrays float32 [B, H, L, L]; () if not asked.
    """

    last_hidden_state: jax.Array
    hidden_states: tuple[jax.Array, ...] = ()
    attentions: tuple[jax.Array, ...] = ()


class BertEncoder(nnx.Module):
    """Devlin et al. 2019, section 3, without pooler and heads."""

    def __init__(self, config: BertConfig, compute: Compute, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, compute, rngs)
        blocks = [PostNormBlock(config, compute, rngs) for _ in range(config.num_hidden_layers)]
        self.layers = nnx.List(blocks)
        self.compute = compute

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        causal: bool = False,
        dropout_key: jax.Array | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] fields (see `bert_jax.batch`); `dropout_key` None drops nothing."""
        layers = len(self.layers)
        drop = None if dropout_key is None else seeds(dropout_key, (layers + 1, SITES))
        x = self.embeddings(
            input_ids, token_type_ids, position_ids, None if drop is None else drop[layers, 0]
        )
        see = visible(attention_mask, packing_ids, causal)
        embedded = x
        x, states, weights = run_layers(
            self.layers,
            self.compute,
            x,
            see,
            None if drop is None else drop[:layers],
            hidden_states=output_hidden_states,
            attentions=output_attentions,
        )
        return EncoderOutput(x, (embedded, *states) if output_hidden_states else (), tuple(weights))
