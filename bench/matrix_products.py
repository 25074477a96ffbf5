"""Measures the float32 products of a layer in XLA and in PyTorch, on one thread and in turns.

    taskset -c 0 python bench/matrix_products.py

The forward product of rows [N, D] with a kernel [D, F], and its two gradients, at the sizes of a
small ALBERT and of MiniLM. Prints billions of operations per second of CPU time, which other
programs on the machine change less than wall time, as medians. It needs `make install-parity`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

SHAPES = {
    "ALBERT, feed-forward": (2048, 512, 2048),
    "ALBERT, attention": (2048, 512, 512),
    "MiniLM, feed-forward": (1024, 384, 1536),
    "MiniLM, attention": (1024, 384, 384),
}
OPERATIONS_OF_A_TURN = 6e9


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| product | N x D x F | forward | gradient of rows | gradient of kernel |")
    print("|---|---|---|---|---|")
    for name, (n, d, f) in SHAPES.items():
        cells, operations = list[str](), 2 * n * d * f
        for pair in products(n, d, f):
            repeats = max(1, int(OPERATIONS_OF_A_TURN / operations))
            times = [[seconds(run, repeats) for run in pair] for _ in range(args.rounds + 1)][1:]
            xla, other = (
                operations * repeats / statistics.median(each) / 1e9
                for each in zip(*times, strict=True)
            )
            cells.append(f"{xla:.0f} / {other:.0f} = {xla / other:.2f}")
        print(f"| {name} | {n} x {d} x {f} | {' | '.join(cells)} |", flush=True)
    return 0


def products(n: int, d: int, f: int) -> list[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Returns the forward product and its two gradients, each in XLA and in PyTorch."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in ((n, d), (d, f), (n, f))]
    x, kernel, grad = (jnp.asarray(each) for each in arrays)
    rows, weight, d_y = (torch.from_numpy(each) for each in arrays)
    weight = weight.T.contiguous()  # as torch.nn.Linear stores it

    def dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> Callable[[], Any]:
        run = jax.jit(lambda a, b: jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ()))))
        return lambda: run(a, b).block_until_ready()

    return [
        (dot(x, kernel, 1, 0), lambda: torch.nn.functional.linear(rows, weight)),
        (dot(grad, kernel, 1, 1), lambda: d_y @ weight),
        (dot(x, grad, 0, 0), lambda: d_y.T @ rows),
    ]


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """Returns the CPU seconds of some calls."""
    start = time.process_time()
    for _ in range(repeats):
        run()
    return time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
