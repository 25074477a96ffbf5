"""Defines the BART network (Lewis et al. 2020): post-norm layers with learned positions.

The encoder is BERT's with a norm in the same places; the decoder adds cross-attention. Both stacks
have a position table and a norm of the embeddings of their own.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import EmbeddingTable, LayerNorm, embedding_lookup
from bert_jax.models.seq2seq.block import Block, BlockSpec, InitialDeviations, SelfAttentionOf
from bert_jax.models.seq2seq.network import EncoderDecoder, Stack

_EPSILON = 1e-5
"""The epsilon of all norms, a constant in Hugging Face's BART."""


class BartStack(Stack):
    """Runs the layers of BART's encoder or decoder on normalized embeddings."""

    def __init__(
        self,
        config: BartConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        is_decoder: bool,
        attention: SelfAttentionOf | None = None,
    ):
        """Initializes all parameters as Hugging Face does.

        Args:
          attention: builds the self-attention of a layer from its index; None for BART's.
        """
        self.num_positions = config.max_target_length if is_decoder else config.max_length
        self.position_embeddings = EmbeddingTable(
            self.num_positions + config.position_offset,
            config.hidden_size,
            param_dtype=jnp.float32,
            embedding_init=nnx.initializers.normal(config.init_std),
            rngs=rngs,
        )

        def make_norm() -> LayerNorm:
            return LayerNorm(config.hidden_size, _EPSILON, compute.dtype)

        self.embedding_norm = make_norm()
        num_layers = config.num_decoder_layers if is_decoder else config.num_encoder_layers
        spec = _block_spec(config)
        self.layers = nnx.List(
            [
                Block(
                    spec,
                    make_norm,
                    compute,
                    rngs,
                    is_decoder=is_decoder,
                    attention=attention and attention(layer),
                )
                for layer in range(num_layers)
            ]
        )
        self.config, self.compute = config, compute

    def embed(
        self,
        vectors_BLD: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Adds position embeddings, then applies norm and dropout.

        Raises:
          ConfigError: L is greater than the number of positions.
        """
        # With one position, L is a number of sequences that generation decodes at the same time.
        length = (vectors_BLD if position_ids is None else position_ids).shape[1]
        # Checked here because XLA clamps an index beyond the table without an error.
        if length > self.num_positions:
            raise ConfigError(
                f"sequence length {length} is beyond the position table, which has room for "
                f"{self.num_positions} tokens (model.max_position_embeddings)"
            )
        table, offset = self.position_embeddings.embedding[...], self.config.position_offset
        if position_ids is None:
            rows = table[offset : offset + length]
            positions = rows[None].astype(jnp.float32)
        else:
            positions = embedding_lookup(table, position_ids + offset)
        x = self.embedding_norm(vectors_BLD + positions)
        return dropout(x, self.config.dropout_rate, dropout_seed)

    def mask(self, mask: AttentionMask, length: int) -> AttentionMask:
        """Returns the mask as it is: attention has no bias."""
        del length
        return mask

    def bias_at(self, position: jax.Array, length: int) -> jax.Array:
        """Returns zeros, float32 [1, L]: attention has no bias."""
        del position
        return jnp.zeros((1, length), jnp.float32)

    def finish(self, x: jax.Array, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Returns the output of the last layer as it is."""
        del dropout_seed
        return x


def build_bart(config: BartConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> EncoderDecoder:
    """Builds BART with initialized parameters."""
    return EncoderDecoder(
        config,
        compute,
        BartStack(config, compute, rngs, is_decoder=False),
        BartStack(config, compute, rngs, is_decoder=True),
        table_init=nnx.initializers.normal(config.init_std),
        rngs=rngs,
    )


def _block_spec(config: BartConfig) -> BlockSpec:
    std = config.init_std
    return BlockSpec(
        width=config.hidden_size,
        num_heads=config.num_attention_heads,
        head_width=config.head_width,
        intermediate_size=config.intermediate_size,
        feed_forward=config.feed_forward,
        placement="post_norm",
        score_scale=config.head_width**-0.5,
        use_bias=True,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        dropout=config.dropout_rate,
        stddevs=InitialDeviations(
            query=std,
            key_value=std,
            attention_output=std,
            intermediate=std,
            feed_forward_output=std,
        ),
    )
