"""What a step compiled for a TPU slice spends its time on, by the compiler's schedule.

    python bench/tpu_profile.py v6e-16 --with size=base tpu=true parallelism=fsdp

Estimates of XLA's TPU compiler (libtpu): nothing here runs on a TPU. Operations alike are one row,
with the time that the matrix units would take for their products at the chip's peak. Attention
kernels, collectives and what the compiler says nothing of are not among them (`bert-jax plan
--compile` has them). A second table has the products of one layer by themselves, with nothing
before or behind them, and one large product: what the compiler's schedule leaves of the peak.
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

from bert_jax.experiment import Experiment
from bert_jax.hardware.tpu_slices import Slice, find_slice
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.placeholder_corpus import planned_experiment
from bert_jax.plan.xla import compile_worker, hlo
from bert_jax.plan.xla.compile_phase import LIBTPU_ENVIRONMENT, compiler_versions

VOCAB_SIZE = 30522


def main() -> int:
    """Compiles the step and prints both tables, as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("slice")
    parser.add_argument("--config", default="configs/pretrain/bert.py")
    parser.add_argument("--with", nargs="*", default=[], dest="arguments", metavar="NAME=VALUE")
    parser.add_argument("--phase", type=int, default=-1, help="of the recipe, from 0 (the last)")
    parser.add_argument("--rows", type=int, default=16, help="how many kinds of fusion to print")
    args = parser.parse_args()
    os.environ.update(LIBTPU_ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    tpu_slice = find_slice(args.slice)
    experiment, _ = planned_experiment(args.config, args.arguments, [], VOCAB_SIZE)
    print(f"{tpu_slice.name}, {compiler_versions()}, {time.strftime('%Y-%m-%d')}\n")
    print_op_kinds(compiled_text(experiment, args.phase, tpu_slice), tpu_slice, args.rows)
    print()
    print_matmuls(experiment, args.phase, tpu_slice)
    return 0


def compiled_text(experiment: Experiment, phase_index: int, tpu_slice: Slice) -> str:
    """The scheduled program of a phase's longest batch."""
    inputs = make_inputs(experiment)[phase_index]
    request = {"phase": phase_index, "fields": list(inputs.fields), "sizes": inputs.shapes[-1]}
    devices = np.asarray(compile_worker.topology(tpu_slice).devices).reshape(-1).tolist()
    return compile_worker.lower(experiment, request, devices).compile().as_text()


def print_op_kinds(text: str, tpu_slice: Slice, top_k: int) -> None:
    """A row for operations of the same origin and result, the longest first."""
    kinds: dict[tuple[str, str], list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    for op, parts, times in hlo.operations(text):
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
    print("| ms | times | matrix units alone, ms | operation | result |")
    print("|---|---|---|---|---|")
    ranked = sorted(kinds.items(), key=lambda item: -item[1][0])
    rest = [sum(column) for column in zip(*(row for _, row in ranked[top_k:]), strict=True)]
    for (origin, result), row in [*ranked[:top_k], (("the rest", ""), rest or [0.0, 0.0, 0.0])]:
        print(f"| {row[0] * 1e3:.2f} | {row[1]:.0f} | {row[2] * 1e3:.2f} | {origin} | {result} |")


def matmul_flops(fused_ops: list[hlo.Op]) -> float:
    """FLOPs of the matrix products among fused operations: 2 m n k, from the sizes of all three.

    Of products without batch dimensions: with `tpu=true` there are no others.
    """
    ops_by_name = {part.name: part for part in fused_ops}
    total = 0.0
    for part in fused_ops:
        if part.opcode in ("convolution", "dot"):
            operands = part.text.split(f"{part.opcode}(", 1)[1].split(")", 1)[0]
            lhs, rhs = (ops_by_name[name] for name in re.findall(r"%([\w.\-]+)", operands))
            total += 2 * math.sqrt(math.prod(num_elements(each) for each in (part, lhs, rhs)))
    return total


def num_elements(op: hlo.Op) -> int:
    """Of the result, which is one array."""
    dims = re.search(r"\[([\d,]*)\]", op.result_type)
    assert dims is not None
    return math.prod(int(size) for size in dims[1].split(",") if size)


def print_matmuls(experiment: Experiment, phase_index: int, tpu_slice: Slice) -> None:
    """The products of a layer's forward pass and of its kernels' gradients, on one device."""
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
    device = jax.sharding.SingleDeviceSharding(compile_worker.topology(tpu_slice).devices[0])
    print("| product by itself | us | share of the peak |")
    print("|---|---|---|")
    for m, k, n in shapes:
        pair: list[Any] = [
            jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=device) for shape in ((m, k), (k, n))
        ]
        compiled: Any = jax.jit(matmul).lower(*pair).compile()
        seconds = hlo.read_costs(compiled.as_text()).cycles / tpu_slice.generation.clock_hz
        fraction = 2 * m * k * n / tpu_slice.generation.device_flops / seconds
        print(f"| [{m}, {k}] x [{k}, {n}] | {seconds * 1e6:.1f} | {fraction:.2f} |")


def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """With its sums in float32, rounded."""
    return jnp.dot(x, y, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


if __name__ == "__main__":
    raise SystemExit(main())
