"""Computes one layer of an encoder or decoder: attention, cross-attention and feed-forward.

Vaswani et al. 2017, section 3. The layer is pre-norm (T5) or post-norm (BART). A decoder layer runs
on whole targets in training, and on one token of each sequence in generation. Keys and values are
computed apart from the attention, so that generation computes those of the source once, and keeps
those of earlier tokens in a cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import Linear
from bert_jax.models.layers.matmul import attention_context, attention_scores
from bert_jax.models.layers.post_norm import activate
from bert_jax.models.seq2seq.config import FeedForward, GatedFeedForward


@dataclass(frozen=True, kw_only=True)
class InitialDeviations:
    """Holds the standard deviations of the initial kernels of a layer."""

    query: float
    key_value: float
    attention_output: float
    intermediate: float
    feed_forward_output: float


# T5 and BART are one network with other values: places of the norms, scale of the scores, biases,
# dropout rates.
@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """Describes the layers of a family.

    Attributes:
      width: D.
      num_heads, head_width: H and K.
      intermediate_size: F.
      score_scale: the factor of attention scores; 1 in T5.
      use_bias: whether linear layers have a bias.
      attention_dropout, activation_dropout, dropout: the rates for attention weights, inside the
        feed-forward layer, and for the output of each sublayer.
    """

    width: int
    num_heads: int
    head_width: int
    intermediate_size: int
    feed_forward: FeedForward
    placement: Literal[
        "pre_norm", "post_norm"
    ]  # x + f(norm(x)) as in T5, norm(x + f(x)) as in BART
    score_scale: float
    use_bias: bool
    attention_dropout: float
    activation_dropout: float
    dropout: float
    stddevs: InitialDeviations


class KeysValues(NamedTuple):
    """Holds the keys and values of one attention, each [B, L, H, K]."""

    keys: jax.Array
    values: jax.Array


# Keys and values of the source exist once for each source and not once for each beam: the sequences
# of a source are the query axis of cross-attention. The generation is one `while_loop`, so that the
# cache is updated in place.
class LayerCache(NamedTuple):
    """Holds the keys and values of the tokens that a decoder layer has read.

    Each is [B, Q, H, T, K], for Q sequences of each source and at most T tokens.
    """

    keys: jax.Array
    values: jax.Array


def spec_linear(
    inputs: int, outputs: int, stddev: float, spec: BlockSpec, dtype: str, rngs: nnx.Rngs
) -> Linear:
    """Builds a dense layer with a kernel [inputs, outputs] of that initial deviation."""
    return Linear(
        inputs,
        outputs,
        use_bias=spec.use_bias,
        dtype=jnp.dtype(dtype),
        param_dtype=jnp.float32,
        kernel_init=nnx.initializers.normal(stddev),
        rngs=rngs,
    )


class Attention(nnx.Module):
    """Computes multi-head attention of queries to keys of the same or of another sequence."""

    def __init__(self, spec: BlockSpec, compute: ComputeConfig, rngs: nnx.Rngs):
        inner, stddevs = spec.num_heads * spec.head_width, spec.stddevs
        self.query = spec_linear(spec.width, inner, stddevs.query, spec, compute.dtype, rngs)
        self.key = spec_linear(spec.width, inner, stddevs.key_value, spec, compute.dtype, rngs)
        self.value = spec_linear(spec.width, inner, stddevs.key_value, spec, compute.dtype, rngs)
        self.output = spec_linear(
            inner, spec.width, stddevs.attention_output, spec, compute.dtype, rngs
        )
        self.spec = spec

    def keys_values(self, x_BLD: jax.Array) -> KeysValues:
        """Projects hidden states [B, L, D] to keys and values."""
        return KeysValues(self._heads(self.key(x_BLD)), self._heads(self.value(x_BLD)))

    def __call__(
        self, x_BLD: jax.Array, mask: AttentionMask, dropout_seed: DropoutSeed | None
    ) -> tuple[jax.Array, None]:
        """Attends within each sequence; the interface is that of `SelfAttention`."""
        return self.attend(x_BLD, self.keys_values(x_BLD), mask, dropout_seed), None

    def attend(
        self,
        x_BQD: jax.Array,
        keys_values: KeysValues,
        mask: AttentionMask,
        dropout_seed: DropoutSeed | None,
    ) -> jax.Array:
        """Attends from [B, Q, D] to keys [B, L, H, K], and returns [B, Q, D]."""
        scores = attention_scores(self._queries(x_BQD), keys_values.keys)
        if mask.bias is not None:
            scores += mask.bias
        scores = jnp.where(mask.mask_BHQK(), scores, jnp.finfo(jnp.float32).min)
        weights = dropout(
            jax.nn.softmax(scores, axis=-1), self.spec.attention_dropout, dropout_seed
        )
        context = attention_context(weights, keys_values.values)
        return self._merge(context, x_BQD)

    def attend_to_cache(self, x_BQD: jax.Array, cache: LayerCache, bias_HT: jax.Array) -> jax.Array:
        """Attends from the newest token of each sequence to its own cached tokens.

        Args:
          bias_HT: float32 [H, T] or [1, T], the lowest float32 for tokens that do not exist yet.
        """
        # One query for each sequence: products by rows, which XLA fuses with the masked softmax.
        scores_BQHT = jnp.einsum(
            "BQHK,BQHTK->BQHT",
            self._queries(x_BQD),
            cache.keys,
            preferred_element_type=jnp.float32,
        )
        weights = jax.nn.softmax(scores_BQHT + bias_HT, axis=-1).astype(cache.values.dtype)
        context = jnp.einsum(
            "BQHT,BQHTK->BQHK", weights, cache.values, preferred_element_type=jnp.float32
        )
        return self._merge(context, x_BQD)

    def _queries(self, x: jax.Array) -> jax.Array:
        queries = self._heads(self.query(x))
        if self.spec.score_scale == 1.0:
            return queries
        return queries * jnp.asarray(self.spec.score_scale, queries.dtype)

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.spec.num_heads, self.spec.head_width)

    def _merge(self, context: jax.Array, x: jax.Array) -> jax.Array:
        return self.output(context.astype(x.dtype).reshape(*x.shape[:-1], -1))


NUM_DROPOUT_SITES = 6
"""Dropouts in a decoder layer, two in each sublayer. An encoder layer leaves two of them unused."""

MakeNorm = Callable[[], nnx.Module]
SelfAttentionOf = Callable[[int], nnx.Module]
"""Builds the self-attention of a layer from its index; it has the interface of `Attention`."""


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
        attention: nnx.Module | None = None,
    ):
        """Initializes all parameters.

        Args:
          make_norm: builds the norm of a sublayer.
          attention: the self-attention of an encoder; None for `Attention`.
        """
        self.attention_norm: Any = make_norm()
        self.attention: Any = attention or Attention(spec, compute, rngs)
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
        """Applies the layer; the interface is as in `run_layers`.

        Args:
          dropout_seeds: uint32 [NUM_DROPOUT_SITES, 2], or None to apply no dropout.
          return_attention_weights: not supported, always False.
        """
        assert not return_attention_weights
        seeds = (None,) * NUM_DROPOUT_SITES if dropout_seeds is None else dropout_seeds
        mask, cross_mask, source = inputs

        def attend(x: jax.Array) -> jax.Array:
            return self.attention(x, mask, seeds[0])[0]

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
            case "pre_norm":
                return x + dropout(sublayer(norm(x)), self.spec.dropout, seed)
            case "post_norm":
                return norm(x + dropout(sublayer(x), self.spec.dropout, seed))
