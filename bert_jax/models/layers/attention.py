"""Computes multi-head self-attention and its padding, packing and causal masks."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.layers import pallas_attention
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.dropout import DropoutSeed
from bert_jax.models.layers.fused_attention import AttentionParams, fused_attention
from bert_jax.models.layers.linear import linear
from bert_jax.models.layers.local_attention import local_attention
from bert_jax.models.layers.matmul import attention_scores, softmax_attention
from bert_jax.models.layers.rotary import RotaryTable

_FAR = -1e9
"""The bias of a key that is too far from its query: its weight is 0 in float32."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("q_segment_ids", "kv_segment_ids", "bias", "rotary", "causal_rows"),
    meta_fields=("causal", "radius"),
)
@dataclass(frozen=True)
class AttentionMask:
    """Holds which keys a query attends to: those with the query's segment id, and with what bias.

    Attributes:
      q_segment_ids: int32 [B, L], or [B, 1] if all queries of a sequence have the same id.
      kv_segment_ids: int32 [B, L].
      causal: whether a query attends only to its own position and those before it.
      bias: float32, added to the scaled scores, broadcastable to [B, H, L, L]; None for 0.
      radius: the largest distance between a query and its keys; None for no limit.
      rotary: the rotations of queries and keys; None for none.
      causal_rows: bool [B], the sequences with causal attention, if not all have the same.
    """

    q_segment_ids: jax.Array
    kv_segment_ids: jax.Array
    causal: bool
    bias: jax.Array | None = None
    radius: int | None = None
    rotary: RotaryTable | None = None
    causal_rows: jax.Array | None = None

    def mask_BHQK(self) -> jax.Array:
        """Returns the mask, bool, broadcastable to [B, H, L, L]: True where a query attends."""
        mask = self.q_segment_ids[:, None, :, None] == self.kv_segment_ids[:, None, None, :]
        length = self.kv_segment_ids.shape[1]
        lower = jnp.tril(jnp.ones((length, length), bool))[None, None]
        if self.causal:
            mask &= lower
        if self.causal_rows is not None:
            mask &= lower | ~self.causal_rows[:, None, None, None]
        if self.radius is not None:
            position = jnp.arange(length)
            mask &= jnp.abs(position[:, None] - position[None]) <= self.radius
        return mask

    def at(self, positions_BK: jax.Array) -> "AttentionMask":
        """Returns the mask between some tokens of each sequence, in ascending order of position."""
        rows, columns = positions_BK[:, None, :, None], positions_BK[:, None, None]
        bias, q_ids, rotary = self.bias, self.q_segment_ids, self.rotary
        if bias is not None:
            bias = jnp.take_along_axis(jnp.take_along_axis(bias, rows, axis=2), columns, axis=3)
        if self.radius is not None:
            is_near = jnp.abs(rows - columns) <= self.radius
            bias = jnp.where(is_near, 0.0 if bias is None else bias, _FAR)
        if q_ids.shape[1] > 1:
            q_ids = jnp.take_along_axis(q_ids, positions_BK, axis=1)
        if rotary is not None:
            index = positions_BK[:, :, None, None]
            rotary = RotaryTable(*(jnp.take_along_axis(x, index, axis=1) for x in rotary))
        return dataclasses.replace(
            self,
            q_segment_ids=q_ids,
            kv_segment_ids=jnp.take_along_axis(self.kv_segment_ids, positions_BK, axis=1),
            bias=bias,
            rotary=rotary,
            radius=None,
        )


def make_attention_mask(
    attention_mask: jax.Array, packing_ids: jax.Array | None, causal: bool | jax.Array
) -> AttentionMask:
    """Makes the attention mask of a batch from its padding or its packed examples.

    Args:
      attention_mask: int32 [B, L], 1 = real token.
      packing_ids: int32 [B, L], or None if sequences are not packed. A token attends to its own
        packed example only.
      causal: whether a token attends only to itself and the tokens before it; bool [B] if not in
        all sequences.
    """
    rows = None if isinstance(causal, bool) else causal
    causal = rows is None and bool(causal)
    if packing_ids is not None:
        # Padding (id 0) attends to padding, so that no row of the softmax is empty.
        return AttentionMask(packing_ids, packing_ids, causal, causal_rows=rows)
    query_ids = jnp.ones_like(attention_mask[:, :1])
    return AttentionMask(query_ids, attention_mask, causal, causal_rows=rows)


class SelfAttention(nnx.Module):
    """Computes scaled dot-product attention with H heads of width K = D / H.

    Vaswani et al. 2017, section 3.2. With fewer heads of keys and values than of queries, several
    heads share them (grouped-query attention, Ainslie et al. 2023).
    """

    def __init__(
        self,
        config: TransformerConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        use_bias: bool = True,
        output_stddev: float | None = None,
    ):
        """Builds the projections; `output_stddev` None initializes all of them alike."""
        width, key_width = config.hidden_size, config.key_value_width
        self.query = linear(width, width, config, compute, rngs, use_bias=use_bias)
        self.key = linear(width, key_width, config, compute, rngs, use_bias=use_bias)
        self.value = linear(width, key_width, config, compute, rngs, use_bias=use_bias)
        self.output = linear(
            width, width, config, compute, rngs, use_bias=use_bias, stddev=output_stddev
        )
        self.num_heads = config.num_attention_heads
        self.dropout_rate = config.attention_probs_dropout_prob
        self.implementation = compute.attention

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends within each sequence; `dropout_seed` None applies no dropout.

        Returns:
          The output [B, L, D], and the attention weights before dropout, float32 [B, H, L, L], or
          None unless `return_attention_weights`.
        """
        q, k, v = self.query(x_BLD), self.key(x_BLD), self.value(x_BLD)
        if mask.rotary is not None:
            B, L, D = x_BLD.shape
            head_shape = (B, L, -1, D // self.num_heads)
            q, k = (mask.rotary.rotate(x.reshape(head_shape)).reshape(x.shape) for x in (q, k))
        return self.attend(
            q, k, v, mask, dropout_seed, return_attention_weights=return_attention_weights
        )

    def attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: AttentionMask,
        dropout_seed: DropoutSeed | None,
        *,
        return_attention_weights: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns what `__call__` returns, from queries [B, L, D] and their keys and values."""
        B, L, D = q.shape
        if (
            self.implementation == "cudnn"
            and (dropout_seed is None or not self.dropout_rate)
            and (mask.radius is None or mask.causal)
            and mask.bias is None
            and not return_attention_weights
        ):
            _check_gpu()
            q, k, v = (x.reshape(B, L, -1, D // self.num_heads) for x in (q, k, v))
            return self.output(library_attention(q, k, v, mask).reshape(B, L, D)), None
        k, v = (_repeat_heads(x, D, D // self.num_heads) for x in (k, v))
        use_kernel = (
            self.implementation == "pallas"
            and pallas_attention.is_supported(L, D, self.num_heads)
            and not (return_attention_weights or mask.causal)
            and mask.bias is None
            and mask.radius is None
            and mask.causal_rows is None
        )
        if use_kernel:
            attention_params = AttentionParams(
                self.num_heads, 0.0 if dropout_seed is None else self.dropout_rate
            )
            q_segment_ids = jnp.broadcast_to(mask.q_segment_ids, mask.kv_segment_ids.shape)
            kernel_seed = jnp.zeros((2,), jnp.uint32) if dropout_seed is None else dropout_seed
            return self.output(
                fused_attention(
                    attention_params, q, k, v, q_segment_ids, mask.kv_segment_ids, kernel_seed
                )
            ), None
        q, k, v = (x.reshape(B, L, self.num_heads, D // self.num_heads) for x in (q, k, v))
        is_dense = mask.bias is not None or mask.causal_rows is not None
        if mask.radius is not None and not is_dense and not return_attention_weights:
            context = local_attention(
                q,
                k,
                v,
                _local_query_ids(mask, mask.radius),
                kv_segment_ids=mask.kv_segment_ids,
                radius=mask.radius,
                causal=mask.causal,
                dropout_rate=self.dropout_rate,
                dropout_seed=dropout_seed,
            )
            return self.output(context.reshape(B, L, D)), None
        scores = attention_scores(q * jnp.asarray((D // self.num_heads) ** -0.5, q.dtype), k)
        if mask.bias is not None:
            scores += mask.bias
        context, attention_weights = softmax_attention(
            scores, mask.mask_BHQK(), v, self.dropout_rate, dropout_seed
        )
        return self.output(
            context.reshape(B, L, D)
        ), attention_weights if return_attention_weights else None


def library_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: AttentionMask,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """Computes attention with `jax.nn.dot_product_attention`: the context [B, L, H, K].

    Padding becomes a number of keys for each sequence, which lets cuDNN skip the others. Packed
    sequences need a mask [B, 1, L, L].

    Args:
      q: the queries, [B, L, H, K].
      k: the keys, [B, L, G, K], where G divides H.
      v: the values, of the keys' shape.
      mask: without a bias. If padding is not at the end of a sequence, its context is NaN, because
        a number of keys cannot describe it.
      implementation: "xla" computes the same on any device, to check it.
    """

    def attend(**masks: Any) -> jax.Array:
        # jax.nn computes bfloat16 with float32, which `jax_numpy_dtype_promotion="strict"` forbids.
        with jax.numpy_dtype_promotion("standard"):
            return jax.nn.dot_product_attention(q, k, v, implementation=implementation, **masks)

    if mask.q_segment_ids.shape[1] > 1 or mask.causal_rows is not None:
        return attend(mask=mask.mask_BHQK())
    lengths = jnp.sum(mask.kv_segment_ids, axis=1, dtype=jnp.int32)
    window = None if mask.radius is None else (mask.radius, 0 if mask.causal else mask.radius)
    # Empty sequences and padding that no key of its window reaches must not divide zero by zero.
    context = attend(
        query_seq_lengths=None if window is None else jnp.maximum(lengths, 1),
        key_value_seq_lengths=jnp.maximum(lengths, 1),
        is_causal=mask.causal,
        local_window_size=window,
    )
    is_real = jnp.arange(q.shape[1]) < lengths[:, None]
    fits = jnp.all(is_real == (mask.kv_segment_ids == 1), axis=1)
    return jnp.where(fits[:, None, None, None], context, jnp.nan)


def _check_gpu() -> None:
    if jax.default_backend() != "gpu":
        raise ConfigError(
            f'compute.attention is "cudnn", which needs an NVIDIA GPU, but the devices are '
            f"{jax.devices()[0].device_kind}; set compute.attention=xla, or pallas on TPUs"
        )


def _local_query_ids(mask: AttentionMask, radius: int) -> jax.Array:
    """Returns the segment ids of queries for local attention, int32 [B, L].

    As with full attention, padding attends to the tokens of its sequence, because ColBERT reads the
    vectors of masked positions after a query. Padding that is too far from the last token attends
    to padding instead: a softmax over nothing is NaN.
    """
    ids = jnp.broadcast_to(mask.q_segment_ids, mask.kv_segment_ids.shape)
    positions_L = jnp.arange(ids.shape[1])
    last_B1 = jnp.max(jnp.where(mask.kv_segment_ids > 0, positions_L, 0), axis=1, keepdims=True)
    return jnp.where(positions_L - last_B1 > radius, 0, ids)


def _repeat_heads(x_BLG: jax.Array, width: int, head_width: int) -> jax.Array:
    """Repeats each head of keys or values for the queries that share it: [B, L, D]."""
    if x_BLG.shape[-1] == width:
        return x_BLG
    heads = x_BLG.reshape(*x_BLG.shape[:-1], -1, head_width)
    repeated = jnp.repeat(heads, width // x_BLG.shape[-1], axis=2)
    return repeated.reshape(*x_BLG.shape[:-1], width)
