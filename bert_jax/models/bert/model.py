"""The BERT encoder: embeddings and a stack of post-norm blocks."""

from typing import NamedTuple

import jax
from flax import nnx

from bert_jax.models.config import BertConfig, ComputeConfig
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.dropout import make_dropout_seeds
from bert_jax.models.layers.embeddings import Embeddings
from bert_jax.models.layers.layer_stack import apply_layers
from bert_jax.models.layers.transformer_block import NUM_DROPOUT_SITES, PostNormBlock


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

    def __init__(self, config: BertConfig, compute: ComputeConfig, rngs: nnx.Rngs):
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
        num_layers = len(self.layers)
        dropout_seeds = (
            None
            if dropout_key is None
            else make_dropout_seeds(dropout_key, (num_layers + 1, NUM_DROPOUT_SITES))
        )
        x = self.embeddings(
            input_ids,
            token_type_ids,
            position_ids,
            None if dropout_seeds is None else dropout_seeds[num_layers, 0],
        )
        mask = make_attention_mask(attention_mask, packing_ids, causal)
        embedding_output = x
        x, layer_outputs, attention_weights = apply_layers(
            self.layers,
            self.compute,
            x,
            mask,
            None if dropout_seeds is None else dropout_seeds[:num_layers],
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return EncoderOutput(
            x,
            (embedding_output, *layer_outputs) if output_hidden_states else (),
            tuple(attention_weights),
        )
