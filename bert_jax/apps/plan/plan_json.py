"""Converts plans to JSON values for `bert-jax plan --json`: bytes, seconds, and USD, unrounded."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_jax.apps.plan.estimate import PhasePlan, RunPlan
from bert_jax.apps.plan.suggestions import Suggestion
from bert_jax.apps.plan.xla.compile_report import CompiledEstimate


def plan_to_json(
    plan: RunPlan,
    suggestions: Sequence[Suggestion] = (),
    compiled: Sequence[CompiledEstimate] = (),
    largest_batch_sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Converts a plan to JSON values; time and cost are pairs [compute only, no overlap].

    Args:
      plan: the plan of a run on a slice.
      suggestions: changes after which the run fits.
      compiled: the compiler's estimate of each phase, if it ran.
      largest_batch_sizes: the largest batch size of each phase that fits per the compiler.
    """
    tpu_slice, state = plan.tpu_slice, plan.state
    sizes = plan.experiment.mesh.axis_sizes(tpu_slice.devices)
    usd = {"spot": plan.usd(spot=True), "on_demand": plan.usd(spot=False)}
    return {
        "slice": tpu_slice.name,
        "chips": tpu_slice.chips,
        "hosts": tpu_slice.hosts,
        "devices": tpu_slice.devices,
        "device_hbm_bytes": int(tpu_slice.device_hbm_gib * 2**30),
        "usable_bytes": plan.usable_bytes,
        "mfu": plan.mfu,
        "mesh": dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)),
        "parameters": state.num_parameters,
        "teacher_parameters": state.num_teacher_parameters,
        "fits": plan.fits,
        "excess_bytes": max(0, plan.memory.total - plan.usable_bytes),
        "hours": list(plan.hours),
        "usd": {name: None if each is None else list(each) for name, each in usd.items()},
        "phases": [_phase_to_json(phase) for phase in plan.phases],
        "compiled": [
            {**dataclasses.asdict(each), "seconds": each.seconds, "mfu": each.mfu}
            for each in compiled
        ],
        "largest_batch_sizes": list(largest_batch_sizes),
        "suggestions": [
            {
                "description": suggestion.description,
                "set": list(suggestion.overrides),
                "slice": suggestion.plan.tpu_slice.name,
                "bytes": suggestion.plan.memory.total,
                "hours": list(suggestion.plan.hours),
            }
            for suggestion in suggestions
        ],
    }


def _phase_to_json(phase: PhasePlan) -> dict[str, Any]:
    inputs, step = phase.inputs, phase.step
    return {
        "seq_length": inputs.phase.seq_length,
        "target_length": inputs.phase.target_length,
        "steps": inputs.phase.steps,
        "batch_size": inputs.phase.batch_size,
        "gradient_accumulation_steps": inputs.phase.gradient_accumulation_steps,
        "per_device_batch_size": phase.per_device_batch_size,
        "batch_length_fractions": {
            str(sizes["L"]): fraction
            for sizes, fraction in zip(inputs.shapes, inputs.step_fractions, strict=True)
        },
        "memory_bytes": {**dataclasses.asdict(phase.memory), "total": phase.memory.total},
        "step": {
            "model_flops": step.flops,
            "tokens": step.tokens,
            "compute_seconds": step.compute,
            "gradient_comm_seconds": step.gradient_comm,
            "activation_comm_seconds": step.activation_comm,
            "optimizer_seconds": step.optimizer,
        },
        "seconds": list(phase.seconds),
    }
