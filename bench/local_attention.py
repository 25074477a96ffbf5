"""Measures sliding-window attention next to dense attention for growing lengths.

    taskset -c 0 python bench/local_attention.py

Both compute the context of one sequence and the gradients of queries, keys and values, in float32.
Dense attention computes all L x L scores and masks those outside of the window. The two take turns,
so that load on the machine affects both.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.layers.local_attention import local_attention
from bert_jax.models.layers.matmul import attention_context, attention_scores

HEADS, HEAD_WIDTH = 2, 64


def main() -> int:
    """Prints the median milliseconds of both implementations for each length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--radius", type=int, default=64, help="distance to the farthest key")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each implementation")
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, radius {args.radius}")
    print(f"one sequence, {HEADS} heads of {HEAD_WIDTH}; milliseconds, median (minimum, maximum)\n")
    print("| L | blocked | dense | dense / blocked | blocked, us per token |")
    print("|---|---|---|---|---|")
    for length in args.lengths:
        times = measure(length, args.radius, args.rounds)
        blocked, dense = (statistics.median(times[name]) for name in ("blocked", "dense"))
        cells = [
            f"{statistics.median(each):.1f} ({min(each):.1f}, {max(each):.1f})"
            for each in (times["blocked"], times["dense"])
        ]
        print(
            f"| {length} | {cells[0]} | {cells[1]} | {dense / blocked:.1f} "
            f"| {1e3 * blocked / length:.1f} |",
            flush=True,
        )
    return 0


def measure(length: int, radius: int, rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds of every turn of both implementations, after one warm-up turn."""
    keys = jax.random.split(jax.random.key(0), 4)
    shape = (1, length, HEADS, HEAD_WIDTH)
    *qkv, grad = (jax.random.normal(key, shape, jnp.float32) for key in keys)
    segment_ids = jnp.ones((1, length), jnp.int32)
    steps = {
        "blocked": forward_and_backward(local_attention, segment_ids, radius),
        "dense": forward_and_backward(dense_attention, segment_ids, radius),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start_time = time.perf_counter()
            jax.block_until_ready(step(qkv, grad))
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start_time))
    return times


def forward_and_backward(
    attention: Callable[..., jax.Array], segment_ids: jax.Array, radius: int
) -> Callable[..., Any]:
    """Compiles the context and the gradients of queries, keys and values."""

    def step(qkv: list[jax.Array], grad: jax.Array) -> Any:
        context, back = jax.vjp(
            lambda q, k, v: attention(q, k, v, segment_ids, radius=radius), *qkv
        )
        return context, back(grad)

    return jax.jit(step)


def dense_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *, radius: int
) -> jax.Array:
    """Computes the same with all L x L scores, as `SelfAttention` does for full attention."""
    position = jnp.arange(q.shape[1])
    mask = jnp.abs(position[:, None] - position[None]) <= radius
    mask = mask & (segment_ids[:, :, None] == segment_ids[:, None, :])
    scores = attention_scores(q * jnp.asarray(q.shape[3] ** -0.5, q.dtype), k)
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, jnp.finfo(jnp.float32).min), axis=-1)
    return attention_context(weights, v).astype(v.dtype)


if __name__ == "__main__":
    raise SystemExit(main())
