"""Reads what XLA's TPU compiler says of a compiled program, op by op; standard library only.

The compiler writes a program as text, scheduled, and beside most operations the cycles that it
estimates for them. It says nothing of the cycles of collectives, kernels, random bits, gathers and
scatters: these are returned by themselves, for a model of their own. Copies to and from
on-chip memory that run beside the computation (copy-start, slice-start) have no cycles either.

A collective that runs beside the computation is written into several fusions, piece by piece; the
pieces have one channel, and are counted once.
"""

import math
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bert_jax.errors import UserError
from bert_jax.plan.device_groups import first_group

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b(pred|bf16|f8\w*|[suf]\d+)\[([\d,]*)\]")
_CALLS = re.compile(
    r"(?:to_apply|calls|branch_computations|true_computation|false_computation"
    r"|called_computations)=\{?([^}, ]+(?:, %[\w.\-]+)*)"
)
_ON_CHIP = re.compile(r"S\([13]\)")  # memory spaces: VMEM, and CMEM of v4
_BYTES = {"pred": 1, "bf16": 2}
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_FREE = {
    "while",
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "iota",
    "after-all",
    "partition-id",
    "replica-id",
    "optimization-barrier",
}
# Custom calls that are notes to the compiler, not work.
_NOTES = ("ConcatBitcast", "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked")
KERNEL = "tpu_custom_call"


@dataclass(frozen=True)
class Op:
    """One instruction of the compiled text."""

    name: str
    opcode: str
    result: str  # its type
    text: str  # all after the name

    @property
    def cycles(self) -> int | None:
        """What the compiler estimates; None where it says nothing."""
        found = re.search(r'"estimated_cycles":"(-?\d+)"', self.text)
        return int(found[1]) if found else None

    @property
    def bytes(self) -> int:
        """Size of its result."""
        return sum(_size(*match) for match in _SHAPE.findall(self.result))

    @property
    def moved(self) -> int:
        """Size of a collective's result; that of its start is (operands, results, context)."""
        shapes = _SHAPE.findall(self.result)
        if self.opcode.endswith("-start") and self.opcode != "all-reduce-start":
            shapes = [each for each in shapes if each[1]]  # the context is scalars
            shapes = shapes[len(shapes) // 2 :]
        return sum(_size(*each) for each in shapes)

    @property
    def target(self) -> str:
        """Of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.text)
        return found[1] if found else ""


@dataclass
class Costs:
    """What a step costs, each operation as often as its loops run it.

    Attributes:
      cycles: the compiler's estimates, summed.
      collectives: (kind, first group of devices, () for all) -> [how many, bytes of results].
      kernels: name of a kernel -> how often it runs.
      copies: "copy" or "slice" -> [how many, bytes]: to and from on-chip memory.
      loops: how many loops there are.
      random_bytes: of random bits.
      unknown: opcode -> [how many, bytes of their results]: what nothing is known of, small as a
        rule.
    """

    cycles: float = 0.0
    collectives: dict[tuple[str, tuple[int, ...]], list[float]] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    copies: dict[str, list[float]] = field(default_factory=dict)
    loops: int = 0
    random_bytes: float = 0.0
    unknown: dict[str, list[float]] = field(default_factory=dict)


def read_costs(text: str) -> Costs:
    """The costs of a compiled program's text (`compiled.as_text()`).

    Raises:
      UserError: a loop whose trip count is not to be found.
    """
    costs, channels = Costs(), set[str]()
    for op, parts, times in operations(text):
        costs.loops += op.opcode == "while"
        for part in parts:
            if part.opcode in COLLECTIVES:
                _count(part, times, costs, channels)
        if op.cycles is not None:
            costs.cycles += op.cycles * times
        else:
            _count(op, times, costs, channels)
    return costs


def operations(text: str) -> Iterator[tuple[Op, list[Op], int]]:
    """What a compiled program runs: (operation, those that are its parts, how often).

    A loop comes before what it runs; calls are what they call, conditions their dearest branch.

    Raises:
      UserError: as `read_costs`.
    """
    computations, entry = _parse(text)
    yield from _run(computations, entry, 1)


def _run(
    computations: dict[str, list[Op]], name: str, times: int
) -> Iterator[tuple[Op, list[Op], int]]:
    for op in computations[name]:
        if op.opcode == "while":
            trips = _trips(computations, op)
            yield op, [], times
            yield from _run(computations, _named(op, "body"), times * trips)
        elif op.opcode == "conditional":
            branches = [list(_run(computations, called, times)) for called in _called(op)]
            yield from max(branches, key=_cycles, default=())
        elif op.opcode == "call":
            for called in _called(op):
                yield from _run(computations, called, times)
        else:
            # On tpu7x collectives are called beside the computation; nothing else is looked for.
            inside = _called(op) if op.opcode in ("fusion", "call-start") else ()
            yield op, [part for called in inside for part in computations.get(called, ())], times


def _cycles(ran: list[tuple[Op, list[Op], int]]) -> int:
    return sum((op.cycles or 0) * times for op, _, times in ran)


def _count(op: Op, times: int, costs: Costs, channels: set[str]) -> None:
    """Adds an operation's costs; `channels` are those of collectives counted so far."""
    kind = op.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        channel = re.search(r"channel_id=(\d+)", op.text)
        if channel and channel[1] in channels:
            return
        channels |= {channel[1]} if channel else set()
        _add(costs.collectives, (kind, first_group(op.text)), times, op.moved * times)
    elif op.opcode in ("copy-start", "slice-start") and _ON_CHIP.search(op.result):
        # The result of a copy is (target, source, context), of a slice ((source), target, context).
        _add(costs.copies, kind, times, _size(*_SHAPE.findall(op.result)[-2]) * times)
    elif op.opcode.endswith(("-start", "-done")) or op.opcode in _FREE:
        return
    elif op.opcode == "rng-bit-generator":
        costs.random_bytes += op.bytes * times
    elif op.opcode == "custom-call" and op.target == KERNEL:
        label = re.search(r'"kernel_name":"([^"]*)"|op_name="([^"]*)"', op.text)
        name = (label[1] or label[2]) if label else op.name
        costs.kernels[name] = costs.kernels.get(name, 0) + times
    elif op.opcode == "custom-call" and op.target in _NOTES:
        return
    else:
        _add(costs.unknown, op.opcode, times, op.bytes * times)


def _add(table: dict[Any, list[float]], key: Hashable, times: int, size: float) -> None:
    row = table.setdefault(key, [0, 0.0])
    row[0] += times
    row[1] += size


def _parse(text: str) -> tuple[dict[str, list[Op]], str]:
    computations: dict[str, list[Op]] = {}
    current, entry = None, ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            current = computations.setdefault(match[2], [])
            entry = match[2] if match[1] else entry
        elif line.rstrip() == "}":  # attributes have lines that only begin with a brace
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(_op(match[1], match[2]))
    if not entry:
        raise UserError("the compiled program's text has no ENTRY; this libtpu writes another form")
    return computations, entry


def _op(name: str, text: str) -> Op:
    end = _end_of_type(text)
    opcode = re.match(r"\s*([\w\-]+)\(", text[end:])
    return Op(name, opcode[1] if opcode else "?", text[:end], text)


def _end_of_type(text: str) -> int:
    if not text.startswith("("):
        return text.index(" ")
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return place + 1
    return len(text)


def _size(dtype: str, dims: str) -> int:
    count = math.prod(int(each) for each in dims.split(",") if each)
    bits = re.search(r"\d+", dtype)
    width = _BYTES.get(dtype) or max(1, int(bits[0] if bits else 8) // 8)
    return count * width


def _trips(computations: dict[str, list[Op]], op: Op) -> int:
    if known := re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', op.text):
        return int(known[1])
    # The bound is the constant, signed or not, that the condition compares with.
    bounds = [
        int(match[1])
        for each in computations[_named(op, "condition")]
        if each.result.startswith(("s32", "u32"))
        and (match := re.search(r"constant\((\d+)\)", each.text))
    ]
    if not bounds:
        raise UserError(
            f"the loop {op.name} of the compiled program runs an unknown number of times, so its "
            "time cannot be estimated; unroll the layers (program.compute.layers)"
        )
    return max(bounds)


def _named(op: Op, what: str) -> str:
    found = re.search(rf"{what}=%?([\w.\-]+)", op.text)
    assert found is not None, f"{op.name} has no {what}"
    return found[1]


def _called(op: Op) -> Iterator[str]:
    for match in _CALLS.finditer(op.text):
        yield from (name.strip().lstrip("%") for name in match[1].split(","))
