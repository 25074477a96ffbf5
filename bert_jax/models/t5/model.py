"""Defines the T5 network (Raffel et al. 2020): pre-norm layers with relative positions.

No layer has a bias, norms are RMS norms, and attention scores are not scaled: the initial deviation
of the query kernels does that. One relative bias serves all layers of a stack.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import RmsNorm
from bert_jax.models.layers.relative_bias import RelativePositionBias
from bert_jax.models.seq2seq.block import Block, BlockSpec, InitialDeviations
from bert_jax.models.seq2seq.network import EncoderDecoder, Stack
from bert_jax.models.t5.config import T5Config


class T5Stack(Stack):
    """Runs the layers of T5's encoder or decoder, then a norm.

    Attributes:
      relative_attention_bias: of self-attention in all layers; cross-attention has none.
    """

    def __init__(
        self, config: T5Config, compute: ComputeConfig, rngs: nnx.Rngs, *, is_decoder: bool
    ):
        """Initializes all parameters as Hugging Face does."""
        self.relative_attention_bias = RelativePositionBias(
            config.num_attention_heads,
            nnx.initializers.normal(config.initializer_factor * config.hidden_size**-0.5),
            rngs,
            num_buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
            bidirectional=not is_decoder,
        )
        num_layers = config.num_decoder_layers if is_decoder else config.num_encoder_layers

        def make_norm() -> RmsNorm:
            return RmsNorm(config.hidden_size, config.layer_norm_epsilon, compute.dtype)

        spec = _block_spec(config)
        self.layers = nnx.List(
            [
                Block(spec, make_norm, compute, rngs, is_decoder=is_decoder)
                for _ in range(num_layers)
            ]
        )
        self.final_norm = make_norm()
        self.dropout_rate, self.compute = config.dropout_rate, compute

    def embed(
        self,
        vectors_BLD: jax.Array,
        position_ids: jax.Array | None,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Applies dropout; positions are in the relative bias only."""
        del position_ids
        x = dropout(vectors_BLD, self.dropout_rate, dropout_seed)
        return x.astype(self.compute.dtype)

    def mask(self, mask: AttentionMask, length: int) -> AttentionMask:
        """Adds the relative bias, float32 [1, H, L, L]."""
        return dataclasses.replace(mask, bias=self.relative_attention_bias(length))

    def bias_at(self, position: jax.Array, length: int) -> jax.Array:
        """Returns the relative bias of one query, float32 [H, L]."""
        # The key at j has the offset j - position, which has the index j - position + L - 1.
        by_offset_HO = self.relative_attention_bias.by_offset(length)
        return jax.lax.dynamic_slice_in_dim(by_offset_HO, length - 1 - position, length, axis=1)

    def finish(self, x: jax.Array, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Applies the final norm and dropout."""
        return dropout(self.final_norm(x), self.dropout_rate, dropout_seed)


class T5(EncoderDecoder):
    """Computes T5, versions 1.0 and 1.1."""

    config: T5Config

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Maps hidden states of the decoder [..., D] to logits of tokens, float32 [..., V]."""
        logits = super().logits(hidden)
        if self.config.scale_decoder_outputs:
            # Here and not before the product: the factor would be rounded in bfloat16.
            logits *= jnp.float32(self.config.hidden_size**-0.5)
        return logits


def build_t5(config: T5Config, compute: ComputeConfig, rngs: nnx.Rngs) -> T5:
    """Builds T5 with initialized parameters."""
    return T5(
        config,
        compute,
        T5Stack(config, compute, rngs, is_decoder=False),
        T5Stack(config, compute, rngs, is_decoder=True),
        table_init=nnx.initializers.normal(config.initializer_factor),
        rngs=rngs,
    )


# T5 does not scale its scores; its initial kernels do that, by deviations that depend on the
# fan-in.
def _block_spec(config: T5Config) -> BlockSpec:
    width, inner = config.hidden_size, config.num_attention_heads * config.d_kv
    factor = config.initializer_factor
    return BlockSpec(
        width=width,
        num_heads=config.num_attention_heads,
        head_width=config.d_kv,
        intermediate_size=config.intermediate_size,
        feed_forward=config.feed_forward,
        placement="pre_norm",
        score_scale=1.0,
        use_bias=False,
        attention_dropout=config.dropout_rate,
        activation_dropout=config.dropout_rate,
        dropout=config.dropout_rate,
        stddevs=InitialDeviations(
            query=factor * (width * config.d_kv) ** -0.5,
            key_value=factor * width**-0.5,
            attention_output=factor * inner**-0.5,
            intermediate=factor * width**-0.5,
            feed_forward_output=factor * config.intermediate_size**-0.5,
        ),
    )
