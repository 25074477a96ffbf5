"""Plans as plain data, for `bert-jax plan --json`: bytes, seconds and USD, nothing rounded."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_jax.plan.compiled import Compiled
from bert_jax.plan.estimate import PhasePlan, Plan
from bert_jax.plan.ways_out import WayOut


def plan_to_json(
    plan: Plan,
    ways: Sequence[WayOut] = (),
    compiled: Sequence[Compiled] = (),
    largest: Sequence[int] = (),
) -> dict[str, Any]:
    """A plan; pairs are [compute alone, no overlap].

    Args:
      largest: rows of the largest batch of each phase that the compiler says fits.
    """
    where, state = plan.where, plan.state
    sizes = plan.experiment.mesh.sizes(where.devices)
    usd = {"spot": plan.usd(spot=True), "on_demand": plan.usd(spot=False)}
    return {
        "slice": where.name,
        "chips": where.chips,
        "hosts": where.hosts,
        "devices": where.devices,
        "device_hbm_bytes": int(where.device_hbm_gib * 2**30),
        "room_bytes": plan.room,
        "mfu": plan.mfu,
        "mesh": dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)),
        "parameters": state.count,
        "fits": plan.fits,
        "bytes_too_much": max(0, plan.memory.total - plan.room),
        "hours": list(plan.hours),
        "usd": {name: None if each is None else list(each) for name, each in usd.items()},
        "phases": [_phase(phase) for phase in plan.phases],
        "compiled": [
            {**dataclasses.asdict(each), "seconds": each.seconds, "mfu_estimates": each.mfu}
            for each in compiled
        ],
        "largest_batches": list(largest),
        "ways_out": [
            {
                "what": way.what,
                "set": list(way.overrides),
                "slice": way.plan.where.name,
                "bytes": way.plan.memory.total,
                "hours": list(way.plan.hours),
            }
            for way in ways
        ],
    }


def _phase(phase: PhasePlan) -> dict[str, Any]:
    inputs, step = phase.inputs, phase.step
    return {
        "length": inputs.phase.length,
        "steps": inputs.phase.steps,
        "rows": inputs.phase.batch_size,
        "microbatches": inputs.phase.accumulate,
        "rows_per_device": phase.rows_per_device,
        "batch_lengths": {
            str(sizes["L"]): share
            for sizes, share in zip(inputs.shapes, inputs.shares, strict=True)
        },
        "memory_bytes": {**dataclasses.asdict(phase.memory), "total": phase.memory.total},
        "step": {
            "model_flops": step.flops,
            "tokens": step.tokens,
            "compute_seconds": step.compute,
            "links_seconds": step.links,
            "sums_seconds": step.sums,
            "update_seconds": step.update,
        },
        "seconds": list(phase.seconds),
    }
