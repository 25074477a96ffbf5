"""Defines the base class of encoders: embeddings, a stack of layers, in some also a final norm.

A family is the modules of its `__init__`, and the methods that it overrides: usually
`attention_inputs`, the attention mask with the family's positions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers.attention import AttentionMask, make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, make_layer_dropout_seeds
from bert_jax.models.layers.stack import Span, TokenSelection, run_layers, with_final_norm


class EncoderInputs(NamedTuple):
    """Holds the inputs of an encoder; see `Encoder` in `models/encoder.py`.

    Arrays are int32 [B, L], but `causal` is bool [B].
    """

    input_ids: jax.Array
    token_type_ids: jax.Array
    attention_mask: jax.Array
    position_ids: jax.Array | None = None
    packing_ids: jax.Array | None = None
    causal: bool | jax.Array = False
    global_attention_mask: jax.Array | None = None

    @property
    def length(self) -> int:
        """Returns the number of tokens of a sequence, L."""
        return self.input_ids.shape[1]

    def mask(self) -> AttentionMask:
        """Returns the attention mask of padding, packed examples and causal attention."""
        return make_attention_mask(self.attention_mask, self.packing_ids, self.causal)


class TransformerEncoder(nnx.Module):
    """Encodes token ids; pooler and heads are not part of it.

    Attributes:
      embeddings: maps ids to vectors, [B, L, E].
      embedding_projection: maps the vectors from E to D; None if there is no such layer.
      layers: the layers in the order in which they are applied. ALBERT has `groups` instead.
      drops_tokens: whether the middle layers can read some of the tokens only.
      has_global_tokens: whether tokens can attend to all others while the rest do not.
      final_norm: normalizes the output of the last layer; None in families of post-norm layers.
    """

    embeddings: Any
    layers: Any
    compute: ComputeConfig
    embedding_projection: Any = None
    final_norm: Any = None
    drops_tokens = False
    has_global_tokens = False

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        *,
        position_ids: jax.Array | None = None,
        packing_ids: jax.Array | None = None,
        global_attention_mask: jax.Array | None = None,
        causal: bool | jax.Array = False,
        dropout_key: jax.Array | None = None,
        selection: TokenSelection | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] ids; see `Encoder` in `models/encoder.py` for the arguments.

        Raises:
          ConfigError: the family has no global tokens, or cannot drop tokens.
        """
        for name, is_given, is_possible in (
            ("global_attention_mask", global_attention_mask is not None, self.has_global_tokens),
            ("selection", selection is not None, self.drops_tokens),
        ):
            if is_given and not is_possible:
                raise ConfigError(
                    f"`{name}` is given, but {type(self).__name__} does not support "
                    "it; expected None"
                )
        inputs = EncoderInputs(
            input_ids=input_ids,
            token_type_ids=(
                jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            ),
            attention_mask=jnp.ones_like(input_ids) if attention_mask is None else attention_mask,
            position_ids=position_ids,
            packing_ids=packing_ids,
            causal=causal,
            global_attention_mask=global_attention_mask,
        )
        blocks = self.blocks()
        layer_seeds, (embedding_seed, *_) = make_layer_dropout_seeds(
            dropout_key, len(blocks), blocks[0].num_dropout_sites
        )
        x_BLD = self.embed(inputs, embedding_seed)
        output = run_layers(
            blocks,
            self.compute,
            x_BLD,
            self.attention_inputs(inputs),
            layer_seeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            spans=self.spans(),
            selection=selection,
        )
        return output if self.final_norm is None else with_final_norm(output, self.final_norm)

    def embed(self, inputs: EncoderInputs, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Returns the input of the first layer, [B, L, D]."""
        x_BLE = self.embeddings(
            inputs.input_ids, inputs.token_type_ids, inputs.position_ids, dropout_seed
        )
        return x_BLE if self.embedding_projection is None else self.embedding_projection(x_BLE)

    def attention_inputs(self, inputs: EncoderInputs) -> Any:
        """Returns what all layers read besides the hidden states: the attention mask."""
        return inputs.mask()

    def blocks(self) -> Sequence[Any]:
        """Returns the layers in the order in which they are applied."""
        return self.layers

    def spans(self) -> Sequence[Span] | None:
        """Returns which layers a scan runs; see `run_layers`."""
        return None

    def token_embeddings(self) -> jax.Array:
        """Returns the table of token embeddings, [V, E]."""
        return self.embeddings.word_embeddings.embedding[...]
