"""Prints how often XLA's cost analysis counts copies to on-chip memory, for a slice given by name.

It compiles chains of matrix products with libtpu and prints a JSON line for every program.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from bench.tpu_estimate import COPY_OVERCOUNT, optimal_seconds
from bench.tpu_hlo import read_costs
from bert_jax.apps.plan.compile import topology
from bert_jax.parallel.tpu_slices import find_slice

CHAINS = ((4096, 1024, 4), (2048, 2048, 6), (8192, 768, 8), (16384, 1024, 3))
"""(rows of the left matrix, its width, number of products) of each chain."""


def seconds(device: Any, function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """Returns the `optimal_seconds` of a program of bfloat16 matrices, and its copies."""
    sharding = SingleDeviceSharding(device)
    inputs = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding) for shape in shapes]
    compiled: Any = jax.jit(function).lower(*inputs).compile()
    reported = compiled.cost_analysis()["optimal_seconds"]
    return optimal_seconds(reported), read_costs(compiled.as_text()).copies


def chain(x: jax.Array, *kernels: jax.Array) -> jax.Array:
    """Multiplies a matrix by one kernel after another."""
    for kernel in kernels:
        x = jnp.dot(x, kernel, preferred_element_type=jnp.float32).astype(x.dtype)
    return x


def main() -> None:
    """Prints the bandwidth and the peak FLOP/s that XLA assumes, then the chains."""
    device = topology(find_slice(sys.argv[1])).devices[0]
    size = 1 << 29
    time, copies = seconds(device, lambda x: x + 1, (size,))
    assert not copies, copies
    bandwidth = 2 * 2 * size / time
    time, copies = seconds(device, chain, (8192, 8192), (8192, 8192))
    charged = sum(COPY_OVERCOUNT[kind] * moved for kind, (_, moved) in copies.items()) / bandwidth
    peak = 2 * 8192**3 / (time - charged)
    print(json.dumps({"bandwidth": bandwidth, "peak": peak}))
    for rows, width, num_products in CHAINS:
        found, copies = seconds(device, chain, (rows, width), *[(width, width)] * num_products)
        products = num_products * 2 * rows * width**2 / peak
        print(
            json.dumps(
                {
                    "chain": [rows, width, num_products],
                    "optimal": found,
                    "products": products,
                    "copies": {
                        kind: [count, moved / bandwidth] for kind, (count, moved) in copies.items()
                    },
                }
            )
        )


if __name__ == "__main__":
    main()
