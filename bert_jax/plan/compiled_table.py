"""What the compiler says of a run's phases, in columns like those of `table.py`."""

from collections.abc import Sequence

from bert_jax.plan.compiled import Compiled
from bert_jax.plan.estimate import Plan
from bert_jax.plan.table import columns, gib, milliseconds


def describe_compiled(
    plan: Plan, found: Sequence[Compiled], versions: str, largest: Sequence[int] = ()
) -> str:
    """A column for each phase.

    Args:
      versions: of the compiler.
      largest: rows of the largest batch of each phase that fits, where that was asked.
    """
    lengths = [f"length {phase.inputs.phase.length}" for phase in plan.phases]
    lines = [
        f"compiled by {versions} for {plan.where.name}; estimates: nothing was run on a TPU",
        columns(
            ("one device", *lengths),
            ("peak of memory, GiB", *(_of(each, gib(each.peak_bytes)) for each in found)),
            ("room, GiB", *(gib(plan.room) for _ in found)),
            ("verdict", *("fits" if each.fits(plan.room) else "NO" for each in found)),
            ("by schedule, ms", *(_of(each, milliseconds(each.schedule)) for each in found)),
            (
                "  of that attention kernels",
                *(_of(each, milliseconds(each.kernels)) for each in found),
            ),
            ("by roofline, ms", *(_roofline(each) for each in found)),
            ("collectives, ms (on top)", *(_of(each, milliseconds(each.links)) for each in found)),
            ("MFU by schedule", *(_share(each, "schedule") for each in found)),
            ("MFU by roofline", *(_share(each, "roofline") for each in found)),
        ),
    ]
    for length, each in zip(lengths, found, strict=True):
        if each.out_of_memory is not None:
            lines.append(f"{length} does NOT fit: {each.out_of_memory}")
        else:
            lines.append(f"{length}, collectives: {_kinds(each)}")
    for length, rows in zip(lengths, largest, strict=False):
        lines.append(f"{length}, the largest batch that fits: {rows:,} rows")
    return "\n".join(lines) + "\n"


def _of(found: Compiled, cell: str) -> str:
    return "-" if found.out_of_memory is not None else cell


def _roofline(found: Compiled) -> str:
    return "-" if found.roofline is None else milliseconds(found.roofline)


def _share(found: Compiled, name: str) -> str:
    mfu = found.mfu.get(name)
    return "-" if mfu is None else f"{mfu:.2f}"


def _kinds(found: Compiled) -> str:
    kinds = (found.collectives or {}).items()
    return ", ".join(
        f"{count:.0f} {kind} of {size / 1e6:.0f} MB in all" for kind, (count, size) in kinds
    )
