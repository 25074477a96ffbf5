"""Computes attention of encoder-decoders: to the same sequence, to the source, to a cache.

Vaswani et al. 2017, section 3.2. Keys and values are computed apart from the attention, so that
generation computes those of the source once, and keeps those of earlier tokens in a cache.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.layers.attention import AttentionMask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed, dropout
from bert_jax.models.layers.linear import Linear
from bert_jax.models.layers.matmul import attention_context, attention_scores
from bert_jax.models.seq2seq.config import FeedForward


@dataclass(frozen=True, kw_only=True)
class PreNorm:
    """Selects x + sublayer(norm(x)), as in T5."""


@dataclass(frozen=True, kw_only=True)
class PostNorm:
    """Selects norm(x + sublayer(x)), as in BART."""


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
    placement: PreNorm | PostNorm
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
