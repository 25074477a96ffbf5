"""Times DeBERTa's scores of content with relative positions, computed in two ways, and compares.

    python bench/disentangled_attention.py

    shift    the relative embeddings are expanded to all 2L - 1 differences, and the rows of the
             product are shifted by padding and reshaping (`models/deberta_v2/model.py`)
    gather   the product with the 512 relative embeddings, of which `take_along_axis` selects an
             element for each query and key, as in Hugging Face's code

Each row is the median of several interleaved runs, forward and with gradients.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.deberta_v2.model import relative_rows
from bert_jax.models.layers.matmul import position_scores
from bert_jax.models.layers.relative_bias import skew

CONFIG = DebertaV2Config()


def shift_scores(q_BLHK: jax.Array, relative_RHK: jax.Array) -> jax.Array:
    """Returns the scores of each query with the position of each key, [B, H, L, L]."""
    rows = relative_rows(q_BLHK.shape[1], CONFIG)
    return skew(position_scores(q_BLHK, relative_RHK[rows][::-1]))


def gather_scores(q_BLHK: jax.Array, relative_RHK: jax.Array) -> jax.Array:
    """Returns the same scores, by a gather of single elements."""
    length = q_BLHK.shape[1]
    rows = relative_rows(length, CONFIG)
    index = rows[np.arange(length)[:, None] - np.arange(length)[None] + length - 1]
    products = position_scores(q_BLHK, relative_RHK)
    shape = (*products.shape[:-1], length)
    return jnp.take_along_axis(products, jnp.broadcast_to(index, shape), axis=-1)


def main() -> None:
    """Prints the largest difference and the medians for each length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--batch-size", type=int, default=2, help="sequences (default: 2)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each (default: 5)")
    args = parser.parse_args()
    heads = CONFIG.num_attention_heads
    width = CONFIG.hidden_size // heads
    print(
        "| length | largest difference | shift, ms | gather, ms | with gradients: shift | gather |"
    )
    print("|---|---|---|---|---|---|")
    for length in args.lengths:
        keys = jax.random.split(jax.random.key(0))
        q = jax.random.normal(keys[0], (args.batch_size, length, heads, width))
        relative = jax.random.normal(keys[1], (2 * CONFIG.position_buckets, heads, width))
        forward = [jax.jit(function) for function in (shift_scores, gather_scores)]
        difference = jnp.abs(forward[0](q, relative) - forward[1](q, relative)).max()
        gradients = [jax.jit(_gradients(function)) for function in (shift_scores, gather_scores)]
        times = [
            medians(functions, q, relative, args.repeats) for functions in (forward, gradients)
        ]
        cells = [f"{ms:.1f}" for pair in times for ms in pair]
        print(f"| {length} | {float(difference):.1e} | {' | '.join(cells)} |", flush=True)


def _gradients(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
    return jax.grad(lambda q, relative: jnp.sum(jnp.square(function(q, relative))), argnums=(0, 1))


def medians(
    functions: list[Callable[..., object]], q: jax.Array, relative: jax.Array, repeats: int
) -> list[float]:
    """Returns the median milliseconds of each function; their runs alternate."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, durations in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function(q, relative))
            durations.append(1000 * (time.perf_counter() - start))
    return [statistics.median(durations[1:]) for durations in times]  # the first run compiles


if __name__ == "__main__":
    main()
