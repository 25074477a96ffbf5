"""Reads the costs in the text of a program compiled by XLA for a TPU; standard library only.

The text is the scheduled program. Most operations have the compiler's estimated cycles, but
collectives, kernels, random bits, gathers, and scatters do not. They are returned separately, for
other cost models. Copies to and from on-chip memory that run in parallel with the computation
(copy-start, slice-start) have no cycles either.

A collective that runs in parallel with the computation is split over several fusions with the same
channel, and is counted once.

XLA writes the replica groups of a collective in three forms:

    replica_groups={{0,1},{2,3}}              the explicit groups
    replica_groups=[2,4]<=[4,2]T(1,0)         2 groups of 4: the ids 0, 1, ... as an array of shape
                                              [4, 2], transposed by (1, 0), in row-major order
    replica_groups=mesh['a'=4,'b'=2] {'b'}    the groups of a mesh along the named axes;
                                              `device_ids=([4,2]T(1,0))` may give the order of the
                                              devices in it
"""

import itertools
import math
import operator
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_jax.errors import UserError

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b(pred|bf16|f8\w*|[suf]\d+)\[([\d,]*)\]")
_CALLS = re.compile(
    r"(?:to_apply|calls|branch_computations|true_computation|false_computation"
    r"|called_computations)=\{?([^}, ]+(?:, %[\w.\-]+)*)"
)
_ON_CHIP = re.compile(r"S\([13]\)")  # memory spaces: VMEM, and CMEM of v4
_DTYPE_BYTES = {"pred": 1, "bf16": 2}
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_ZERO_COST_OPS = {
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
# Custom calls that annotate the program for the compiler and cost nothing.
_ANNOTATION_TARGETS = (
    "ConcatBitcast",
    "AssumeGatherIndicesInBound",
    "GatherScatterIndicesBitpacked",
)
PALLAS_KERNEL_TARGET = "tpu_custom_call"


@dataclass(frozen=True)
class Op:
    """Holds one instruction of the compiled text."""

    name: str
    opcode: str
    result_type: str
    text: str  # everything after the name

    @property
    def cycles(self) -> int | None:
        """Returns the compiler's estimated cycles; None if the text has none."""
        found = re.search(r'"estimated_cycles":"(-?\d+)"', self.text)
        return int(found[1]) if found else None

    @property
    def result_bytes(self) -> int:
        """Returns the bytes of the result."""
        return sum(_array_bytes(*match) for match in _SHAPE.findall(self.result_type))

    @property
    def comm_bytes(self) -> int:
        """Returns the bytes of a collective's result.

        The result type of a start operation is (operands, results, context).
        """
        shapes = _SHAPE.findall(self.result_type)
        if self.opcode.endswith("-start") and self.opcode != "all-reduce-start":
            shapes = [each for each in shapes if each[1]]  # drops the context, which is scalars
            shapes = shapes[len(shapes) // 2 :]
        return sum(_array_bytes(*each) for each in shapes)

    @property
    def custom_call_target(self) -> str:
        """Returns the target of a custom call; "" for other operations."""
        found = re.search(r'custom_call_target="([^"]*)"', self.text)
        return found[1] if found else ""


@dataclass
class HloCosts:
    """Holds the costs of a step; each operation counts as often as its loops run it.

    Attributes:
      cycles: the sum of the compiler's estimates.
      collectives: {(kind, first replica group, () for all devices): [runs, bytes of results]}.
      kernel_runs: {kernel name: runs}.
      copies: {"copy" or "slice": [runs, bytes]}, to and from on-chip memory.
      num_loops: the number of loops.
      random_bytes: the bytes of random bits.
      unknown: {opcode: [runs, bytes of results]} of operations of unknown cost, usually small.
    """

    cycles: float = 0.0
    collectives: dict[tuple[str, tuple[int, ...]], list[float]] = field(default_factory=dict)
    kernel_runs: dict[str, int] = field(default_factory=dict)
    copies: dict[str, list[float]] = field(default_factory=dict)
    num_loops: int = 0
    random_bytes: float = 0.0
    unknown: dict[str, list[float]] = field(default_factory=dict)


def read_costs(text: str) -> HloCosts:
    """Reads the costs from a compiled program's text (`compiled.as_text()`).

    Raises:
      UserError: the trip count of a loop is unknown.
    """
    costs, channels = HloCosts(), set[str]()
    for op, parts, times in operations(text):
        costs.num_loops += op.opcode == "while"
        for part in parts:
            if part.opcode in COLLECTIVES:
                _add_cost(part, times, costs, channels)
        if op.cycles is not None:
            costs.cycles += op.cycles * times
        else:
            _add_cost(op, times, costs, channels)
    return costs


def operations(text: str) -> Iterator[tuple[Op, list[Op], int]]:
    """Yields the operations that a compiled program runs.

    A loop is yielded before its body. A call is replaced by the operations that it calls, and a
    conditional by its most expensive branch.

    Yields:
      (operation, the operations that are fused into it, number of runs).

    Raises:
      UserError: the text has no entry computation, or the trip count of a loop is unknown.
    """
    computations, entry = _parse(text)
    yield from _walk(computations, entry, 1)


def _walk(
    computations: dict[str, list[Op]], name: str, times: int
) -> Iterator[tuple[Op, list[Op], int]]:
    for op in computations[name]:
        if op.opcode == "while":
            trip_count = _trip_count(computations, op)
            yield op, [], times
            yield from _walk(computations, _attribute(op, "body"), times * trip_count)
        elif op.opcode == "conditional":
            branches = [
                list(_walk(computations, called, times)) for called in _called_computations(op)
            ]
            yield from max(branches, key=_total_cycles, default=())
        elif op.opcode == "call":
            for called in _called_computations(op):
                yield from _walk(computations, called, times)
        else:
            # A fusion may contain collectives; on tpu7x a call-start may, too.
            fused_computations = (
                _called_computations(op) if op.opcode in ("fusion", "call-start") else ()
            )
            yield (
                op,
                [part for called in fused_computations for part in computations.get(called, ())],
                times,
            )


def _total_cycles(executed: list[tuple[Op, list[Op], int]]) -> int:
    return sum((op.cycles or 0) * times for op, _, times in executed)


def _add_cost(op: Op, times: int, costs: HloCosts, channels: set[str]) -> None:
    """Adds an operation's costs; `channels` holds the channels of collectives counted so far."""
    kind = op.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        channel = re.search(r"channel_id=(\d+)", op.text)
        if channel and channel[1] in channels:
            return
        channels |= {channel[1]} if channel else set()
        _accumulate(
            costs.collectives, (kind, first_replica_group(op.text)), times, op.comm_bytes * times
        )
    elif op.opcode in ("copy-start", "slice-start") and _ON_CHIP.search(op.result_type):
        # The result of a copy is (target, source, context), of a slice ((source), target, context).
        _accumulate(
            costs.copies, kind, times, _array_bytes(*_SHAPE.findall(op.result_type)[-2]) * times
        )
    elif op.opcode.endswith(("-start", "-done")) or op.opcode in _ZERO_COST_OPS:
        return
    elif op.opcode == "rng-bit-generator":
        costs.random_bytes += op.result_bytes * times
    elif op.opcode == "custom-call" and op.custom_call_target == PALLAS_KERNEL_TARGET:
        label = re.search(r'"kernel_name":"([^"]*)"|op_name="([^"]*)"', op.text)
        name = (label[1] or label[2]) if label else op.name
        costs.kernel_runs[name] = costs.kernel_runs.get(name, 0) + times
    elif op.opcode == "custom-call" and op.custom_call_target in _ANNOTATION_TARGETS:
        return
    else:
        _accumulate(costs.unknown, op.opcode, times, op.result_bytes * times)


def _accumulate(table: dict[Any, list[float]], key: Hashable, times: int, size: float) -> None:
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
        elif line.rstrip() == "}":  # lines of attributes also start with a brace
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(_parse_op(match[1], match[2]))
    if not entry:
        raise UserError(
            "the compiled program's text has no ENTRY computation: the installed libtpu writes "
            "another format; install the version of constraints.txt"
        )
    return computations, entry


def _parse_op(name: str, text: str) -> Op:
    end = _end_of_type(text)
    opcode = re.match(r"\s*([\w\-]+)\(", text[end:])
    return Op(name, opcode[1] if opcode else "?", text[:end], text)


def _end_of_type(text: str) -> int:
    if not text.startswith("("):
        return text.index(" ")
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return index + 1
    return len(text)


def _array_bytes(dtype: str, dims: str) -> int:
    count = math.prod(int(each) for each in dims.split(",") if each)
    bits = re.search(r"\d+", dtype)
    width = _DTYPE_BYTES.get(dtype) or max(1, int(bits[0] if bits else 8) // 8)
    return count * width


def _trip_count(computations: dict[str, list[Op]], op: Op) -> int:
    if known := re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', op.text):
        return int(known[1])
    # Without a known trip count, the bound is the constant in the loop's condition.
    bounds = [
        int(match[1])
        for each in computations[_attribute(op, "condition")]
        if each.result_type.startswith(("s32", "u32"))
        and (match := re.search(r"constant\((\d+)\)", each.text))
    ]
    if not bounds:
        raise UserError(
            f"the trip count of the loop {op.name} in the compiled program is unknown, so its time "
            "cannot be estimated; unroll the layers (objective.compute.layer_loop)"
        )
    return max(bounds)


def _attribute(op: Op, attribute: str) -> str:
    found = re.search(rf"{attribute}=%?([\w.\-]+)", op.text)
    assert found is not None, f"{op.name} has no {attribute}"
    return found[1]


def _called_computations(op: Op) -> Iterator[str]:
    for match in _CALLS.finditer(op.text):
        yield from (name.strip().lstrip("%") for name in match[1].split(","))


_EXPLICIT_GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
_IOTA_GROUPS = re.compile(rf"replica_groups=\[\d+,(\d+)\]<={_IOTA}")
_MESH_GROUPS = re.compile(
    rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}"
)


def first_replica_group(text: str) -> tuple[int, ...]:
    """Returns the first replica group of a collective; () if it covers all devices."""
    if found := _EXPLICIT_GROUPS.search(text):
        return _parse_ints(found[1])
    if found := _IOTA_GROUPS.search(text):
        return _iota_device_ids(found[2], found[3])[: int(found[1])]
    if found := _MESH_GROUPS.search(text):
        axes = re.findall(r"'([^']+)'=(\d+)", found[1])
        sizes = [int(size) for _, size in axes]
        devices = _iota_device_ids(found[2] or str(math.prod(sizes)), found[3])
        index_ranges = [range(int(size) if f"'{name}'" in found[4] else 1) for name, size in axes]
        return tuple(
            devices[index] for index in _flat_indices(sizes, range(len(sizes)), index_ranges)
        )
    return ()


def _iota_device_ids(sizes: str, permutation: str | None) -> tuple[int, ...]:
    """Returns the ids 0, 1, ... reshaped to `sizes`, transposed, in row-major order."""
    dims = _parse_ints(sizes)
    axes = _parse_ints(permutation) if permutation else range(len(dims))
    return _flat_indices(dims, axes, [range(dims[axis]) for axis in axes])


def _flat_indices(
    dims: Sequence[int], axes: Sequence[int], index_ranges: Sequence[range]
) -> tuple[int, ...]:
    """Returns the row-major indices of the elements selected by a range for each axis."""
    strides = [math.prod(dims[axis + 1 :]) for axis in axes]
    return tuple(
        sum(map(operator.mul, index, strides)) for index in itertools.product(*index_ranges)
    )


def _parse_ints(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))
