"""What the compiler says of a run's phases, in columns like those of `table.py`."""

from collections.abc import Sequence

from bert_jax.plan.compile import Compiled
from bert_jax.plan.estimate import Plan
from bert_jax.plan.table import columns, gib, milliseconds


def describe_compiled(plan: Plan, found: Sequence[Compiled], versions: str) -> str:
    """A column for each phase; `versions` names the compiler."""
    lengths = [f"length {phase.inputs.phase.length}" for phase in plan.phases]
    fitting = [each for each in found if each.out_of_memory is None]
    lines = [f"compiled by {versions} for {plan.where.name}; estimates: nothing was run on a TPU"]
    if len(fitting) == len(found):
        lines.append(
            columns(
                ("one device", *lengths),
                ("peak of memory, GiB", *(gib(each.peak_bytes) for each in found)),
                ("room, GiB", *(gib(plan.room) for _ in found)),
                ("verdict", *("fits" if each.peak_bytes <= plan.room else "NO" for each in found)),
                ("by schedule, ms", *(milliseconds(each.schedule) for each in found)),
                ("  of that attention kernels", *(milliseconds(each.kernels) for each in found)),
                ("by roofline, ms", *(_or_dash(each.roofline) for each in found)),
                ("collectives, ms (on top)", *(milliseconds(each.links) for each in found)),
                ("MFU by schedule", *(_share(each, "schedule") for each in found)),
                ("MFU by roofline", *(_share(each, "roofline") for each in found)),
                ("collectives", *(_kinds(each) for each in found)),
            )
        )
    for length, each in zip(lengths, found, strict=True):
        if each.out_of_memory is not None:
            lines.append(f"{length} does NOT fit: {each.out_of_memory}")
    return "\n".join(lines) + "\n"


def _or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(seconds)


def _share(found: Compiled, name: str) -> str:
    mfu = found.mfu.get(name)
    return "-" if mfu is None else f"{mfu:.2f}"


def _kinds(found: Compiled) -> str:
    kinds = (found.collectives or {}).items()
    return ", ".join(f"{count:.0f} {kind} {size / 1e6:.0f} MB" for kind, (count, size) in kinds)
