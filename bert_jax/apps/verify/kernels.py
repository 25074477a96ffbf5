"""Checks kernels and hand-written gradients against definitions in NumPy, and dropout masks.

The references are written from the definitions, in float64 and without JAX, so that a mistake of
the compiler or of the device cannot be on both sides of a comparison.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.apps.verify.checks import Check, Context, Measured, Target
from bert_jax.losses import cross_entropy
from bert_jax.models.layers import pallas_attention
from bert_jax.models.layers.attention import (
    AttentionMask,
    library_attention,
    make_attention_mask,
)
from bert_jax.models.layers.dropout import keep_mask, make_dropout_seeds, quantized_rate
from bert_jax.models.layers.fused_attention import AttentionParams, fused_attention
from bert_jax.models.layers.linear import embedding_lookup
from bert_jax.models.layers.local_attention import local_attention
from bert_jax.models.layers.matmul import dense, dense_transposed, position_scores

_BATCH, _LENGTH, _HEADS, _HEAD_WIDTH, _RADIUS = 2, 128, 2, 64, 24
_RATE = 0.1
_PRODUCT_TOLERANCE = {"cpu": 1e-5, "gpu": 5e-3, "tpu": 2e-2}
"""Of products, whose operands GPUs may round to TF32 and TPUs to bfloat16."""
_SUM_TOLERANCE = {"cpu": 1e-5, "gpu": 1e-4, "tpu": 1e-4}
_BFLOAT16_TOLERANCE = 2e-2
_MASK_CRC = 0x728EBE21
"""The CRC-32 of a small mask, recorded on a CPU: a hash has the same bits on every device."""
_MAX_DEVIATIONS = 5.0
"""Standard deviations; 5 or more have a probability of one in 1.7 million."""
Arrays = Sequence[Any]


def kernel_checks() -> list[Check]:
    """Returns the checks of kernels and of functions with their own gradients."""
    functions: dict[str, tuple[str, Callable[[str], float]]] = {
        "attention kernel, padded": ("", lambda dtype: _kernel_difference(dtype, packed=False)),
        "attention kernel, packed, dropout": (
            "",
            lambda dtype: _kernel_difference(dtype, packed=True),
        ),
        "attention as trained": ("context and gradients of fused_attention", _fused_difference),
        "library attention": (
            "jax.nn.dot_product_attention, of cuDNN on a GPU in bfloat16: context and gradients",
            _library_difference,
        ),
        "windowed attention": ("context and gradients of local_attention", _local_difference),
        "matrix products": ("dense, dense_transposed, position_scores", _product_difference),
        "embedding gradient": ("4,096 additions to one row", _embedding_difference),
        "cross-entropy": ("loss and gradient", _cross_entropy_difference),
    }
    return [
        Check(
            name=f"{name}, {dtype}",
            describe=functools.partial(_describe, compared),
            unit="relative difference",
            limit=functools.partial(_tolerance, name, dtype),
            measure=lambda _, difference=difference, dtype=dtype: Measured(value=difference(dtype)),
        )
        for name, (compared, difference) in functions.items()
        for dtype in ("float32", "bfloat16")
        if not (name == "cross-entropy" and dtype == "bfloat16")  # always computed in float32
    ]


def _tolerance(name: str, dtype: str, target: Target) -> float:
    if dtype == "bfloat16":
        return _BFLOAT16_TOLERANCE
    has_products = name not in ("embedding gradient", "cross-entropy")
    return (_PRODUCT_TOLERANCE if has_products else _SUM_TOLERANCE)[target.platform]


def _describe(compared: str, target: Target) -> str:
    how = "compiled" if target.platform == "tpu" else f"interpreted on a {target.platform.upper()}"
    kernel = f"the Pallas kernel, {how}: context and gradients"
    return f"{compared or kernel}, against NumPy in float64"


def relative_difference(found: Arrays, expected: Arrays) -> float:
    """Returns the largest difference in units of each array's largest element; NaN if any is."""
    return max(
        (
            float(np.max(np.abs(np.asarray(one, np.float64) - other)) / np.max(np.abs(other)))
            for one, other in zip(found, expected, strict=True)
        ),
        key=lambda value: math.inf if math.isnan(value) else value,
    )


def _attention_inputs(dtype: str, packed: bool) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Returns q, k, v and the context's gradient [B, L, D], and segment ids of queries and keys."""
    rng = np.random.default_rng(0)
    shape = (_BATCH, _LENGTH, _HEADS * _HEAD_WIDTH)
    arrays = [jnp.asarray(rng.standard_normal(shape, np.float32)).astype(dtype) for _ in range(4)]
    if packed:
        ids = jnp.asarray(np.sort(rng.integers(0, 4, shape[:2]), axis=1), jnp.int32)
        return arrays, ids, ids
    lengths = np.array([[_LENGTH], [70]])
    kv_ids = jnp.asarray(np.arange(_LENGTH) < lengths, jnp.int32)
    return arrays, jnp.ones_like(kv_ids), kv_ids


def attention_reference(
    arrays: Arrays, mask: np.ndarray, keep: np.ndarray | None, num_heads: int
) -> list[np.ndarray]:
    """Computes attention and its gradients from the definition, in float64.

    Args:
      arrays: q, k, v and the gradient of the context, [B, L, D].
      mask: bool, broadcastable to [B, H, L, L]: True where a query attends.
      keep: bool [B, H, L, L], the elements that dropout keeps; None without dropout.

    Returns:
      The context and the gradients of q, k and v, [B, L, D].
    """

    def split(x: Any) -> np.ndarray:
        x = np.asarray(x, np.float64)
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    q, k, v, grad = (split(x) for x in arrays)
    scale = q.shape[-1] ** -0.5
    scores = np.where(mask, q @ k.swapaxes(2, 3) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    factor = np.ones(1) if keep is None else keep / (1 - quantized_rate(_RATE))
    d_weights = grad @ v.swapaxes(2, 3) * factor
    d_scores = weights * (d_weights - np.sum(weights * d_weights, -1, keepdims=True)) * scale
    dropped = weights * factor
    d_k, d_v = d_scores.swapaxes(2, 3) @ q, dropped.swapaxes(2, 3) @ grad
    results = (dropped @ v, d_scores @ k, d_k, d_v)
    return [x.transpose(0, 2, 1, 3).reshape(arrays[0].shape) for x in results]


def _segment_mask(q_ids: jax.Array, kv_ids: jax.Array) -> np.ndarray:
    return np.asarray(q_ids)[:, None, :, None] == np.asarray(kv_ids)[:, None, None, :]


def _dropout_of(rate: float) -> tuple[jax.Array, np.ndarray | None]:
    """Returns a seed, and the elements [B, H, L, L] that dropout with it keeps."""
    seed = make_dropout_seeds(jax.random.key(3), ())
    shape = (_BATCH, _HEADS, _LENGTH, _LENGTH)
    return seed, np.asarray(keep_mask(shape, rate, seed)) if rate else None


def _kernel_difference(dtype: str, *, packed: bool) -> float:
    """Runs the kernel itself: compiled on a TPU, interpreted on any other device."""
    device, rate = jax.devices()[0], _RATE if packed else 0.0
    dtype = pallas_attention.operand_dtype(dtype, device.device_kind)
    (q, k, v, grad), q_ids, kv_ids = _attention_inputs(dtype, packed)
    seed, keep = _dropout_of(rate)
    options: dict[str, Any] = {"num_heads": _HEADS, "dropout_rate": rate}
    options["interpret"] = device.platform != "tpu"
    inputs = (q, k, v, q_ids, kv_ids, jnp.arange(_BATCH, dtype=jnp.int32), seed)
    context, logsumexp = pallas_attention.forward(*inputs, **options)
    gradients = pallas_attention.backward(*inputs, context, logsumexp, grad, **options)
    expected = attention_reference((q, k, v, grad), _segment_mask(q_ids, kv_ids), keep, _HEADS)
    return relative_difference((context, *gradients), expected)


def _value_and_gradients(function: Callable[..., Any], inputs: Arrays, grad: Any) -> list[Any]:
    def run(inputs: Arrays, grad: Any) -> list[Any]:
        value, pull_back = jax.vjp(function, *inputs)
        return [value, *pull_back(grad)]

    return jax.jit(run)(list(inputs), grad)


def _fused_difference(dtype: str) -> float:
    (*qkv, grad), q_ids, kv_ids = _attention_inputs(dtype, packed=True)
    seed, keep = _dropout_of(_RATE)
    params = AttentionParams(_HEADS, _RATE)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return fused_attention(params, q, k, v, q_ids, kv_ids, seed)

    found = _value_and_gradients(attend, qkv, grad)
    expected = attention_reference((*qkv, grad), _segment_mask(q_ids, kv_ids), keep, _HEADS)
    return relative_difference(found, expected)


def _library_difference(dtype: str) -> float:
    """Computes padded, packed and causal windowed attention as `compute.attention="cudnn"` does."""
    is_supported = jax.devices()[0].platform == "gpu" and dtype == "bfloat16"
    implementation = "cudnn" if is_supported else "xla"
    found, expected, position = [], [], np.arange(_LENGTH)
    for packed, radius in ((False, None), (True, None), (False, _RADIUS)):
        (*qkv, grad), q_ids, kv_ids = _attention_inputs(dtype, packed)
        mask = make_attention_mask(kv_ids, kv_ids if packed else None, radius is not None)
        mask, allowed = dataclasses.replace(mask, radius=radius), _segment_mask(q_ids, kv_ids)
        if radius is not None:
            distance = position[:, None] - position
            allowed = _segment_mask(kv_ids, kv_ids) & (distance >= 0) & (distance <= radius)
            grad = jnp.where(kv_ids[..., None] == 1, grad, 0)  # padding is not compared

        def attend(*qkv: jax.Array, mask: AttentionMask = mask) -> jax.Array:
            q, k, v = (x.reshape(_BATCH, _LENGTH, _HEADS, _HEAD_WIDTH) for x in qkv)
            return library_attention(q, k, v, mask, implementation).reshape(qkv[0].shape)

        # The gradients of jax.nn, too, compute bfloat16 with float32.
        with jax.numpy_dtype_promotion("standard"):
            context, *gradients = _value_and_gradients(attend, qkv, grad)
        found += [jnp.where(grad != 0, context, 0), *gradients]
        reference, *gradients = attention_reference((*qkv, grad), allowed, None, _HEADS)
        expected += [reference * (np.asarray(grad) != 0), *gradients]
    return relative_difference(found, expected)


def _local_difference(dtype: str) -> float:
    (*qkv, grad), ids, _ = _attention_inputs(dtype, packed=True)

    def attend(*qkv: jax.Array) -> jax.Array:
        q, k, v = (x.reshape(_BATCH, _LENGTH, _HEADS, _HEAD_WIDTH) for x in qkv)
        return local_attention(q, k, v, ids, radius=_RADIUS).reshape(qkv[0].shape)

    found = _value_and_gradients(attend, qkv, grad)
    position = np.arange(_LENGTH)
    mask = _segment_mask(ids, ids) & (np.abs(position[:, None] - position) <= _RADIUS)
    return relative_difference(found, attention_reference((*qkv, grad), mask, None, _HEADS))


def _product_difference(dtype: str) -> float:
    rng = np.random.default_rng(1)

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32)).astype(dtype).astype(jnp.float32)

    x, grad, found, expected = random(2, 64, 256), random(2, 64, 128), [], []
    for function, operand in ((dense, random(256, 128)), (dense_transposed, random(128, 256))):
        run = functools.partial(function, bias=None, dtype=jnp.dtype(dtype))
        found += _value_and_gradients(run, (x, operand), grad)
        a, b, g = (np.asarray(each, np.float64) for each in (x, operand, grad))
        b, flat = (b if function is dense else b.T), a.reshape(-1, a.shape[-1])
        d_b = flat.T @ g.reshape(-1, g.shape[-1])
        expected += [a @ b, g @ b.T, d_b if function is dense else d_b.T]
    x, positions = (random(*s).astype(dtype) for s in ((2, 16, 4, 32), (40, 4, 32)))
    grad = random(2, 4, 16, 40)
    found += _value_and_gradients(position_scores, (x, positions), grad)
    a, b, g = (np.asarray(each, np.float64) for each in (x, positions, grad))
    expected += [
        np.einsum("BLHK,OHK->BHLO", a, b),
        np.einsum("BHLO,OHK->BLHK", g, b),
        np.einsum("BHLO,BLHK->OHK", g, a),
    ]
    return relative_difference(found, expected)


def _embedding_difference(dtype: str) -> float:
    """Adds to one row as often as a frequent token occurs: a bfloat16 sum stops at 256 ones."""
    ids = jnp.asarray(np.where(np.arange(8192) % 2, 7, np.arange(8192) % 50), jnp.int32)
    table = jnp.ones((50, 16), dtype)
    grad = jnp.ones((1, 8192, 16), jnp.float32)
    found = _value_and_gradients(lambda table: embedding_lookup(table, ids[None]), [table], grad)
    counts = np.bincount(np.asarray(ids), minlength=50).astype(np.float64)
    return relative_difference(found, (np.ones(grad.shape), np.repeat(counts[:, None], 16, axis=1)))


def _cross_entropy_difference(dtype: str) -> float:
    del dtype
    rng = np.random.default_rng(2)
    single, labels = 4 * rng.standard_normal((64, 1000), np.float32), rng.integers(0, 1000, 64)
    found = _value_and_gradients(
        lambda logits: cross_entropy(logits, jnp.asarray(labels, jnp.int32)),
        [jnp.asarray(single)],
        jnp.ones((64,), jnp.float32),
    )
    logits = single.astype(np.float64)
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    one_hot = np.eye(1000)[labels]
    loss = -np.log(probabilities[np.arange(64), labels])
    return relative_difference(found, (loss, probabilities - one_hot))


def dropout_checks() -> list[Check]:
    """Returns the checks of the hash that dropout uses instead of random bits."""
    return [
        Check(
            name="dropout, frequencies",
            describe=lambda _: f"rate {_RATE} of the whole mask, of each row, column and sequence",
            unit="standard deviations",
            limit=lambda _: _MAX_DEVIATIONS,
            measure=_measure_frequencies,
        ),
        Check(
            name="dropout, independence",
            describe=lambda _: "neighbors, heads, and masks of consecutive seeds",
            unit="standard deviations",
            limit=lambda _: _MAX_DEVIATIONS,
            measure=_measure_independence,
        ),
        Check(
            name="dropout, same mask everywhere",
            describe=lambda _: "the mask of one seed against the one recorded on a CPU",
            unit="masks that differ",
            measure=_measure_fingerprint,
        ),
    ]


def _masks() -> np.ndarray:
    """Returns the dropped elements for 4 seeds, bool [4, B, H, L, L]."""
    seeds = make_dropout_seeds(jax.random.key(11), (4,))
    mask = jax.jit(functools.partial(keep_mask, (4, 8, 256, 256), _RATE))
    return np.stack([~np.asarray(mask(seed)) for seed in seeds])


def _measure_frequencies(context: Context) -> Measured:
    del context
    masks, rate = _masks(), quantized_rate(_RATE)
    deviations = []
    for axes in (None, (0, 1, 2, 4), (0, 1, 2, 3), (2, 3, 4)):
        mean = np.mean(masks, axis=axes)
        count = masks.size / mean.size
        deviations.append(np.max(np.abs(mean - rate)) * math.sqrt(count / (rate * (1 - rate))))
    return Measured(value=float(max(deviations)), detail=f"rate {float(np.mean(masks)):.6f}")


def _measure_independence(context: Context) -> Measured:
    del context
    masks, rate = _masks(), quantized_rate(_RATE)
    centered = (masks - rate) / math.sqrt(rate * (1 - rate))
    # One hash serves the elements 64 columns apart: column c is byte c // 64.
    pairs = {
        "seeds": (centered[:-1], centered[1:]),
        "sequences": (centered[:, :-1], centered[:, 1:]),
        "heads": (centered[:, :, :-1], centered[:, :, 1:]),
        "rows": (centered[..., :-1, :], centered[..., 1:, :]),
        "columns": (centered[..., :-1], centered[..., 1:]),
        "bytes of a hash": (centered[..., :-64], centered[..., 64:]),
    }
    # The product of two independent standardized elements has variance 1.
    deviations = {
        name: abs(float(np.mean(one * other))) * math.sqrt(one.size)
        for name, (one, other) in pairs.items()
    }
    worst = max(deviations, key=deviations.__getitem__)
    return Measured(value=deviations[worst], detail=f"largest for {worst}")


def _measure_fingerprint(context: Context) -> Measured:
    del context
    seed = jnp.asarray([123456789, 987654321], jnp.uint32)
    found = zlib.crc32(np.packbits(np.asarray(keep_mask((3, 5, 33, 70), _RATE, seed))).tobytes())
    return Measured(value=float(found != _MASK_CRC), detail=f"CRC-32 {found:08x}")
