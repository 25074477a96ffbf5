"""Computes one layer of an encoder or decoder: attention, cross-attention and feed-forward.

Vaswani et al. 2017, section 3. The layer is pre-norm (T5) or post-norm (BART). A decoder layer runs
on whole targets in training, and on one token of each sequence in generation, where the keys and
values of earlier tokens are in a cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.transformer import activate
from bert_jax.models.seq2seq.attention import (
    Attention,
    BlockSpec,
    KeysValues,
    LayerCache,
    PostNorm,
    PreNorm,
    spec_linear,
)
from bert_jax.models.seq2seq.config import GatedFeedForward

NUM_DROPOUT_SITES = 6
"""Dropouts in a decoder layer, two in each sublayer. An encoder layer leaves two of them unused."""

MakeNorm = Callable[[], nnx.Module]


class LayerInputs(NamedTuple):
    """Holds what all layers of a stack share.

    Attributes:
      mask: the mask of self-attention, with the relative bias if the model has one.
      cross_mask: of cross-attention; None in an encoder.
      encoder_hidden: [B, L, D], the source as the encoder returns it; None in an encoder.
    """

    mask: AttentionMask
    cross_mask: AttentionMask | None = None
    encoder_hidden: jax.Array | None = None


class FeedForwardLayer(nnx.Module):
    """Computes the dense or gated feed-forward layer, with dropout before its last kernel."""

    def __init__(self, spec: BlockSpec, compute: ComputeConfig, rngs: nnx.Rngs):
        D, F, stddevs = spec.width, spec.intermediate_size, spec.stddevs
        self.intermediate = spec_linear(D, F, stddevs.intermediate, spec, compute.dtype, rngs)
        if isinstance(spec.feed_forward, GatedFeedForward):
            self.gate = spec_linear(D, F, stddevs.intermediate, spec, compute.dtype, rngs)
        self.output = spec_linear(F, D, stddevs.feed_forward_output, spec, compute.dtype, rngs)
        self.spec = spec

    def __call__(self, x: jax.Array, dropout_seed: DropoutSeed | None) -> jax.Array:
        """Maps [..., D] to [..., D]."""
        hidden = activate(self.intermediate(x), self.spec.feed_forward.activation)
        if isinstance(self.spec.feed_forward, GatedFeedForward):
            hidden = hidden * self.gate(x)
        return self.output(dropout(hidden, self.spec.activation_dropout, dropout_seed))


class Block(nnx.Module):
    """Computes a layer of an encoder, or of a decoder if it has cross-attention."""

    def __init__(
        self,
        spec: BlockSpec,
        make_norm: MakeNorm,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        is_decoder: bool,
    ):
        """Initializes all parameters; `make_norm` builds the norm of a sublayer."""
        self.attention_norm: Any = make_norm()
        self.attention = Attention(spec, compute, rngs)
        if is_decoder:
            self.cross_attention_norm: Any = make_norm()
            self.cross_attention = Attention(spec, compute, rngs)
        self.feed_forward_norm: Any = make_norm()
        self.feed_forward = FeedForwardLayer(spec, compute, rngs)
        self.spec = spec

    def __call__(
        self,
        x_BLD: jax.Array,
        inputs: LayerInputs,
        dropout_seeds: jax.Array | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, None]:
        """Applies the layer; the interface is that of `apply_layers`.

        Args:
          dropout_seeds: uint32 [NUM_DROPOUT_SITES, 2], or None to apply no dropout.
          return_attention_weights: not supported, always False.
        """
        assert not return_attention_weights
        seeds = (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        mask, cross_mask, source = inputs

        def attend(x: jax.Array) -> jax.Array:
            return self.attention.attend(x, self.attention.keys_values(x), mask, seeds[0])

        def attend_to_source(x: jax.Array) -> jax.Array:
            assert source is not None and cross_mask is not None
            keys_values = self.cross_attention.keys_values(source)
            return self.cross_attention.attend(x, keys_values, cross_mask, seeds[2])

        x_BLD = self._add(x_BLD, self.attention_norm, attend, seeds[1])
        if source is not None:
            x_BLD = self._add(x_BLD, self.cross_attention_norm, attend_to_source, seeds[3])
        x_BLD = self._add(
            x_BLD, self.feed_forward_norm, lambda x: self.feed_forward(x, seeds[4]), seeds[5]
        )
        return x_BLD, None

    def decode(
        self,
        x_BQD: jax.Array,
        position: jax.Array,
        cache: LayerCache,
        bias_HT: jax.Array,
        source: KeysValues,
        cross_mask: AttentionMask,
    ) -> tuple[jax.Array, LayerCache]:
        """Applies the layer to the token at one position of Q sequences of each source.

        Returns:
          The output [B, Q, D], and the cache with the keys and values of the token.
        """
        written = cache

        def attend(x: jax.Array) -> jax.Array:
            nonlocal written
            keys_values = self.attention.keys_values(x)  # [B, Q, H, K]: Q sequences, one token
            written = LayerCache(
                *(
                    jax.lax.dynamic_update_slice_in_dim(old, new[:, :, :, None], position, axis=3)
                    for old, new in zip(cache, keys_values, strict=True)
                )
            )
            return self.attention.attend_to_cache(x, written, bias_HT)

        x_BQD = self._add(x_BQD, self.attention_norm, attend, None)
        x_BQD = self._add(
            x_BQD,
            self.cross_attention_norm,
            lambda x: self.cross_attention.attend(x, source, cross_mask, None),
            None,
        )
        x_BQD = self._add(x_BQD, self.feed_forward_norm, lambda x: self.feed_forward(x, None), None)
        return x_BQD, written

    def _add(
        self,
        x: jax.Array,
        norm: Any,
        sublayer: Callable[[jax.Array], jax.Array],
        seed: DropoutSeed | None,
    ) -> jax.Array:
        """Adds the output of a sublayer to its input, with the norm before or after it."""
        match self.spec.placement:
            case PreNorm():
                return x + dropout(sublayer(norm(x)), self.spec.dropout, seed)
            case PostNorm():
                return norm(x + dropout(sublayer(x), self.spec.dropout, seed))
