"""What a step compiled for a TPU slice spends its time on, by the compiler's schedule.

    python bench/tpu_profile.py v6e-16 --with size=base tpu=true layout=fsdp

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
from bert_jax.plan import aot, hlo
from bert_jax.plan.compile import ENVIRONMENT, compiler_versions
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.slices import Slice, find_slice
from bert_jax.plan.stand_in import planned_experiment

VOCABULARY = 30522


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
    os.environ.update(ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    where = find_slice(args.slice)
    experiment, _ = planned_experiment(args.config, args.arguments, [], VOCABULARY)
    print(f"{where.name}, {compiler_versions()}, {time.strftime('%Y-%m-%d')}\n")
    print_kinds(compiled_text(experiment, args.phase, where), where, args.rows)
    print()
    print_products(experiment, args.phase, where)
    return 0


def compiled_text(experiment: Experiment, phase: int, where: Slice) -> str:
    """The scheduled program of a phase's longest batch."""
    inputs = make_inputs(experiment)[phase]
    request = {"phase": phase, "fields": list(inputs.fields), "sizes": inputs.shapes[-1]}
    devices = np.asarray(aot.topology(where).devices).reshape(-1).tolist()
    return aot.lower(experiment, request, devices).compile().as_text()


def print_kinds(text: str, where: Slice, rows: int) -> None:
    """A row for operations of the same origin and result, the longest first."""
    kinds: dict[tuple[str, str], list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    for op, parts, times in hlo.operations(text):
        if op.cycles is None:
            continue
        origin = re.search(r'op_name="(?:jit\([^)]*\)/)?([^"]*)"', op.text)
        kind = (origin[1] if origin else op.name, re.sub(r"\{[^}]*\}|/\*.*?\*/", "", op.result))
        seconds = op.cycles / where.generation.clock_hz
        for place, more in enumerate((seconds, 1, products(parts) / where.generation.device_flops)):
            kinds[kind][place] += times * more
    print("| ms | times | matrix units alone, ms | operation | result |")
    print("|---|---|---|---|---|")
    ranked = sorted(kinds.items(), key=lambda item: -item[1][0])
    rest = [sum(column) for column in zip(*(row for _, row in ranked[rows:]), strict=True)]
    for (origin, result), row in [*ranked[:rows], (("the rest", ""), rest or [0.0, 0.0, 0.0])]:
        print(f"| {row[0] * 1e3:.2f} | {row[1]:.0f} | {row[2] * 1e3:.2f} | {origin} | {result} |")


def products(parts: list[hlo.Op]) -> float:
    """FLOPs of the matrix products among fused operations: 2 m n k, from the sizes of all three.

    Of products without batch dimensions: with `tpu=true` there are no others.
    """
    named = {part.name: part for part in parts}
    total = 0.0
    for part in parts:
        if part.opcode in ("convolution", "dot"):
            inside = part.text.split(f"{part.opcode}(", 1)[1].split(")", 1)[0]
            left, right = (named[name] for name in re.findall(r"%([\w.\-]+)", inside))
            total += 2 * math.sqrt(math.prod(elements(each) for each in (part, left, right)))
    return total


def elements(op: hlo.Op) -> int:
    """Of the result, which is one array."""
    dims = re.search(r"\[([\d,]*)\]", op.result)
    assert dims is not None
    return math.prod(int(size) for size in dims[1].split(",") if size)


def print_products(experiment: Experiment, phase: int, where: Slice) -> None:
    """The products of a layer's forward pass and of its kernels' gradients, on one device."""
    inputs, model = make_inputs(experiment)[phase], experiment.program.model
    data, fsdp, _ = experiment.mesh.sizes(where.devices)
    rows = inputs.texts // (inputs.phase.accumulate * data * fsdp) * inputs.shapes[-1]["L"]
    wide, narrow = model.intermediate_size, model.hidden_size
    shapes = [
        *((rows, narrow, narrow), (rows, narrow, wide), (rows, wide, narrow)),
        *((narrow, rows, narrow), (narrow, rows, wide), (wide, rows, narrow), (8192, 8192, 8192)),
    ]
    device = jax.sharding.SingleDeviceSharding(aot.topology(where).devices[0])
    print("| product by itself | us | share of the peak |")
    print("|---|---|---|")
    for m, k, n in shapes:
        pair: list[Any] = [
            jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=device) for shape in ((m, k), (k, n))
        ]
        compiled: Any = jax.jit(product).lower(*pair).compile()
        seconds = hlo.read_costs(compiled.as_text()).cycles / where.generation.clock_hz
        share = 2 * m * k * n / where.generation.device_flops / seconds
        print(f"| [{m}, {k}] x [{k}, {n}] | {seconds * 1e6:.1f} | {share:.2f} |")


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """With its sums in float32, rounded."""
    return jnp.dot(x, y, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


if __name__ == "__main__":
    raise SystemExit(main())
