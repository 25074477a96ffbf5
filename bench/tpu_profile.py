"""Profiles a step compiled for a TPU slice by the compiler's schedule.

    python -m bench.tpu_profile v6e-16 --arg size=base tpu=true parallelism=fsdp

The numbers are estimates of XLA's TPU compiler (libtpu); nothing runs on a TPU. The first table
groups similar operations, with the time that the matrix units would need for their products at
peak. Attention kernels, collectives, and operations without an estimate are not included (see
`bench/tpu_estimate.py`). The second table compiles the matrix products of one layer in isolation,
and one large product, to show which fraction of the peak the compiler's schedule reaches.
"""

import argparse
import collections
import math
import os
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import tpu_hlo
from bert_jax.apps.plan.compile import LIBTPU_ENVIRONMENT, compiler_versions, lower, topology
from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.config.experiment import Experiment
from bert_jax.parallel.tpu_slices import Slice, find_slice

VOCAB_SIZE = 30522


def main() -> int:
    """Compiles the step and prints both Markdown tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("slice")
    parser.add_argument("--config", default="configs/pretrain/bert.py")
    parser.add_argument("--arg", nargs="*", default=[], dest="arguments", metavar="NAME=VALUE")
    parser.add_argument(
        "--phase", type=int, default=-1, help="index of the phase from 0 (default: the last)"
    )
    parser.add_argument(
        "--top-k", type=int, default=16, help="number of operation groups to print (default: 16)"
    )
    args = parser.parse_args()
    os.environ.update(LIBTPU_ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    tpu_slice = find_slice(args.slice)
    experiment, _ = planned_experiment(args.config, args.arguments, [], VOCAB_SIZE)
    print(f"{tpu_slice.name}, {compiler_versions()}, {time.strftime('%Y-%m-%d')}\n")
    print_op_kinds(compiled_text(experiment, args.phase, tpu_slice), tpu_slice, args.top_k)
    print()
    print_matmuls(experiment, args.phase, tpu_slice)
    return 0


def compiled_text(experiment: Experiment, phase_index: int, tpu_slice: Slice) -> str:
    """Returns the scheduled program of a phase's longest batch."""
    inputs = make_inputs(experiment)[phase_index]
    request = {"phase": phase_index, "fields": list(inputs.fields), "sizes": inputs.shapes[-1]}
    devices = np.asarray(topology(tpu_slice).devices).reshape(-1).tolist()
    return lower(experiment, request, devices).compile().as_text()


def print_op_kinds(text: str, tpu_slice: Slice, top_k: int) -> None:
    """Prints a row per group of operations of the same origin and result, the slowest first."""
    kinds: dict[tuple[str, str], list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    for op, parts, times in tpu_hlo.operations(text):
        if op.cycles is None:
            continue
        origin = re.search(r'op_name="(?:jit\([^)]*\)/)?([^"]*)"', op.text)
        kind = (
            origin[1] if origin else op.name,
            re.sub(r"\{[^}]*\}|/\*.*?\*/", "", op.result_type),
        )
        seconds = op.cycles / tpu_slice.generation.clock_hz
        for column_index, value in enumerate(
            (seconds, 1, matmul_flops(parts) / tpu_slice.generation.device_flops)
        ):
            kinds[kind][column_index] += times * value
    print("| ms | runs | matrix units at peak, ms | operation | result |")
    print("|---|---|---|---|---|")
    ranked = sorted(kinds.items(), key=lambda item: -item[1][0])
    rest = [sum(column) for column in zip(*(row for _, row in ranked[top_k:]), strict=True)]
    for (origin, result), row in [*ranked[:top_k], (("the rest", ""), rest or [0.0, 0.0, 0.0])]:
        print(f"| {row[0] * 1e3:.2f} | {row[1]:.0f} | {row[2] * 1e3:.2f} | {origin} | {result} |")


def matmul_flops(fused_ops: list[tpu_hlo.Op]) -> float:
    """Counts the FLOPs of the matrix products among fused operations: 2 m n k.

    The product m n k is the root of the product of the three matrix sizes. This holds for products
    without batch dimensions; with `tpu=true` there are no others.
    """
    ops_by_name = {part.name: part for part in fused_ops}
    total = 0.0
    for part in fused_ops:
        if part.opcode in ("convolution", "dot"):
            operands = part.text.split(f"{part.opcode}(", 1)[1].split(")", 1)[0]
            lhs, rhs = (ops_by_name[name] for name in re.findall(r"%([\w.\-]+)", operands))
            total += 2 * math.sqrt(math.prod(num_elements(each) for each in (part, lhs, rhs)))
    return total


def num_elements(op: tpu_hlo.Op) -> int:
    """Returns the number of elements of an operation's result, a single array."""
    dims = re.search(r"\[([\d,]*)\]", op.result_type)
    assert dims is not None
    return math.prod(int(size) for size in dims[1].split(",") if size)


def print_matmuls(experiment: Experiment, phase_index: int, tpu_slice: Slice) -> None:
    """Prints a layer's forward products and kernel gradients on one device, each in isolation."""
    inputs, model = make_inputs(experiment)[phase_index], experiment.objective.model
    data, fsdp, _ = experiment.mesh.axis_sizes(tpu_slice.devices)
    num_tokens = (
        inputs.num_sequences
        // (inputs.phase.gradient_accumulation_steps * data * fsdp)
        * inputs.shapes[-1]["L"]
    )
    intermediate_size, hidden_size = model.intermediate_size, model.hidden_size
    shapes = [
        *(
            (num_tokens, hidden_size, hidden_size),
            (num_tokens, hidden_size, intermediate_size),
            (num_tokens, intermediate_size, hidden_size),
        ),
        *(
            (hidden_size, num_tokens, hidden_size),
            (hidden_size, num_tokens, intermediate_size),
            (intermediate_size, num_tokens, hidden_size),
            (8192, 8192, 8192),
        ),
    ]
    device = jax.sharding.SingleDeviceSharding(topology(tpu_slice).devices[0])
    print("| isolated product | us | fraction of the peak |")
    print("|---|---|---|")
    for m, k, n in shapes:
        pair: list[Any] = [
            jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=device) for shape in ((m, k), (k, n))
        ]
        compiled: Any = jax.jit(matmul).lower(*pair).compile()
        seconds = tpu_hlo.read_costs(compiled.as_text()).cycles / tpu_slice.generation.clock_hz
        fraction = 2 * m * k * n / tpu_slice.generation.device_flops / seconds
        print(f"| [{m}, {k}] x [{k}, {n}] | {seconds * 1e6:.1f} | {fraction:.2f} |")


def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiplies two matrices with float32 accumulation and a bfloat16 result."""
    return jnp.dot(x, y, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


if __name__ == "__main__":
    raise SystemExit(main())
