"""Measures step time, MFU, memory and the loader, next to what `bert-jax plan` estimates.

The step is that of the recipe `pretrain/bert` with sequences of 128 tokens: BERT-base in bfloat16
with 32 sequences on each TPU or GPU, BERT-tiny in float32 with 8 sequences on a CPU.
"""

import dataclasses
import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.apps.plan.estimate import DEFAULT_MFU, RunPlan, make_plan
from bert_jax.apps.plan.inputs import Inputs, make_inputs, planned_experiment
from bert_jax.apps.plan.memory import state_bytes
from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.verify.checks import Check, Context, Measured, Skipped, Target
from bert_jax.apps.verify.training import BATCH_SIZE, corpus_of, make_loader
from bert_jax.config.experiment import Experiment
from bert_jax.parallel import sharding
from bert_jax.parallel.devices import peak_flops
from bert_jax.train.flops import step_flops
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.step import TrainSetup

_VOCAB_SIZE = 30522
_BLOCKS = 5
_STEPS_PER_BLOCK = {"cpu": 1, "gpu": 4, "tpu": 4}
"""Steps between two waits for the device, which runs them while the host sends the next ones."""
_LOADER_BATCHES = 100
_PRODUCT_SIZE = 1024


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Holds what was measured of one step; bytes are per device."""

    seconds: float
    sequences: int
    argument_bytes: int
    peak_bytes: int


def speed_checks() -> list[Check]:
    """Returns the checks; the later ones use the step that the first one times."""
    return [
        Check(
            name="step time",
            describe=_describe_step,
            unit="times the estimate",
            limit=lambda target: None if target.platform == "cpu" else 2.0,
            measure=_measure_step,
        ),
        Check(
            name="memory",
            describe=_describe_memory,
            unit="times the estimate",
            limit=lambda target: 1.25 if target.tpu_slice else 1.02,
            measure=_measure_memory,
        ),
        Check(
            name="loader speed",
            describe=lambda _: (
                f"batches of {BATCH_SIZE} x 128 tokens of one process, against the timed step"
            ),
            unit="sequences trained per sequence loaded",
            limit=lambda _: 1.0,
            measure=_measure_loader,
        ),
    ]


def timed_experiment(target: Target) -> tuple[Experiment, Inputs]:
    """Returns the config whose step is timed on a target, and its batches."""
    batch_size = max(8, target.devices) if target.platform == "cpu" else 32 * target.devices
    arguments = {
        "cpu": ["size=tiny", "bfloat16=false"],
        "gpu": ["size=base"],
        "tpu": ["size=base", "tpu=true"],
    }[target.platform]
    arguments += ["steps=100", f"batch_size={batch_size}"]
    experiment, _ = planned_experiment("pretrain/bert", arguments, (), _VOCAB_SIZE)
    first_phase = dataclasses.replace(experiment.train, phases=experiment.train.phases[:1])
    experiment = dataclasses.replace(experiment, train=first_phase)
    return experiment, make_inputs(experiment)[0]


def plan_of(target: Target) -> RunPlan | None:
    """Returns the plan of the timed step; None for devices that `plan` does not know."""
    if target.tpu_slice is None:
        return None
    return make_plan(timed_experiment(target)[0], target.tpu_slice)


def _describe_step(target: Target) -> str:
    experiment, inputs = timed_experiment(target)
    text = f"{experiment.name}, {inputs.phase.batch_size} x {inputs.phase.seq_length} tokens"
    plan = plan_of(target)
    if plan is not None:
        low, high = plan.phases[0].step.bounds
        return f"{text}, against plan's {1000 * low:.1f} to {1000 * high:.1f} ms"
    if target.platform == "cpu":
        return f"{text}, against its FLOPs at the rate of a large product"
    return f"{text}, against its FLOPs at the MFU of {DEFAULT_MFU} that plan assumes"


def _describe_memory(target: Target) -> str:
    plan = plan_of(target)
    if plan is not None:
        return f"peak of the timed step, against plan's {plan.memory.total / 2**20:,.0f} MiB"
    return "state and batch of the timed step, against plan's"


def _timed_step(context: Context) -> TimedStep:
    if "timed step" in context.shared:
        return context.shared["timed step"]
    target = context.target
    (experiment, inputs), steps = timed_experiment(target), _STEPS_PER_BLOCK[target.platform]
    phase, mesh = inputs.phase, sharding.make_mesh(experiment.mesh)
    with jax.set_mesh(mesh):
        setup = TrainSetup.from_experiment(experiment, mesh)
        compiled = setup.lower_step(phase, inputs.fields, phase.sizes).compile()
        random = pretraining_batch(
            batch_size=phase.batch_size,
            seq_length=phase.seq_length,
            max_predictions_per_seq=phase.max_predictions_per_seq,
            vocab_size=_VOCAB_SIZE,
        )
        fields = {name: random[name] for name in inputs.fields}
        batch = sharding.put_global_batch(fields, sharding.batch_sharding(mesh))
        state, seed, seconds = initialize_or_load(setup), setup.put_seed(), []
        for _ in range(_BLOCKS + 1):
            start = time.perf_counter()
            for _ in range(steps):
                state, _ = compiled(state, batch, seed)
            jax.block_until_ready(state)
            seconds.append((time.perf_counter() - start) / steps)
    memory: Any = compiled.memory_analysis()
    arguments = memory.argument_size_in_bytes
    peak = arguments + memory.output_size_in_bytes - memory.alias_size_in_bytes
    context.shared["timed step"] = TimedStep(
        seconds=statistics.median(seconds[1:]),
        sequences=phase.batch_size,
        argument_bytes=arguments,
        peak_bytes=peak + memory.temp_size_in_bytes,
    )
    return context.shared["timed step"]


def _measure_step(context: Context) -> Measured:
    target, step = context.target, _timed_step(context)
    experiment, inputs = timed_experiment(target)
    flops = step_flops(experiment.objective, inputs.phase)
    peak, plan = peak_flops(jax.devices()), plan_of(target)
    if plan is not None:
        estimate = plan.phases[0].step.no_overlap
    elif peak is not None:
        estimate = flops / (DEFAULT_MFU * peak)
    elif target.platform == "cpu":
        estimate = flops / _product_flops()
    else:
        raise Skipped(f"the peak FLOP/s of {target.device_kind} are not known")
    mfu = None if peak is None else flops / (step.seconds * peak)
    tokens = step.sequences * inputs.phase.seq_length / step.seconds
    return Measured(
        value=step.seconds / estimate,
        detail=f"{1000 * step.seconds:.1f} ms, estimate {1000 * estimate:.1f} ms, "
        f"{tokens:,.0f} tokens/s, {flops / step.seconds / 1e9:,.0f} GFLOP/s"
        + (f", MFU {mfu:.3f}" if mfu is not None else ""),
        numbers={"step_seconds": step.seconds, "tokens_per_second": tokens, "mfu": mfu},
    )


def _product_flops() -> float:
    """Returns the FLOP/s of a float32 product of two square matrices, the best of five."""
    x = jnp.ones((_PRODUCT_SIZE, _PRODUCT_SIZE), jnp.float32)
    product, seconds = jax.jit(jnp.dot), []
    for _ in range(6):  # the first one compiles
        start = time.perf_counter()
        jax.block_until_ready(product(x, x))
        seconds.append(time.perf_counter() - start)
    return 2 * _PRODUCT_SIZE**3 / min(seconds[1:])


def _measure_memory(context: Context) -> Measured:
    target, step, plan = context.target, _timed_step(context), plan_of(context.target)
    stats = jax.local_devices()[0].memory_stats() or {}
    in_use = stats.get("peak_bytes_in_use")
    if plan is not None:
        found, expected = step.peak_bytes, plan.memory.total
    else:
        experiment, inputs = timed_experiment(target)
        state = state_bytes(experiment, target.devices)
        batch = sum(
            int(np.prod(shape)) * np.dtype(dtype).itemsize
            for shape, dtype in inputs.batch_spec().values()
        )
        found = step.argument_bytes
        expected = state.parameters + state.optimizer + batch // target.devices
    return Measured(
        value=found / expected,
        detail=f"{found / 2**20:,.1f} MiB, plan {expected / 2**20:,.1f} MiB; peak of the compiled "
        f"step {step.peak_bytes / 2**20:,.1f} MiB"
        + (f", of the device {in_use / 2**20:,.1f} MiB" if in_use else ""),
        numbers={"compiled_peak_bytes": step.peak_bytes, "device_peak_bytes": in_use},
    )


def _measure_loader(context: Context) -> Measured:
    step = _timed_step(context)
    with make_loader(corpus_of(context)) as loader:
        next(loader)
        start = time.perf_counter()
        for _ in itertools.islice(loader, _LOADER_BATCHES):
            pass
        loaded = _LOADER_BATCHES * BATCH_SIZE / (time.perf_counter() - start)
    trained = step.sequences / step.seconds / context.target.processes
    return Measured(
        value=trained / loaded,
        detail=f"{loaded:,.0f} sequences/s loaded, {trained:,.0f} sequences/s trained",
    )
