"""Runs an experiment from its config to its last checkpoint, on one page, in order."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from bert_jax.config.experiment import MAY_CHANGE_ON_RESUME, Experiment
from bert_jax.config.train import Phase
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.io.atomic_io import write_json
from bert_jax.parallel import sharding
from bert_jax.parallel.devices import hardware_info
from bert_jax.parallel.processes import barrier, run_on_process_0
from bert_jax.params import paths
from bert_jax.runs import run_folder
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.runs.hooks import Hook
from bert_jax.runs.messages import log_model, log_phase, log_results
from bert_jax.runs.training_data import check_fingerprint, write_fingerprint
from bert_jax.train import compilation_cache
from bert_jax.train.evaluate_and_save import Evaluate, EvaluationHistory, SaveCheckpoint, make_hooks
from bert_jax.train.flops import step_flops
from bert_jax.train.initialize import check_existing_run, restore_or_initialize
from bert_jax.train.loop import (
    CompiledPhase,
    StateHook,
    StopReason,
    TrainingMeter,
    remaining_phases,
    train_phase,
)
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, START_MESSAGE, Preemption
from bert_jax.train.record_attempt import RecordedAttempt
from bert_jax.train.step import State, TrainSetup, checkpointed_state, complete_state
from bert_jax.train.tuning.freezing import lowest_trainable_depth, without_frozen
from bert_jax.train.watchdog import Watchdog
from bert_jax.train.workloads import make_source
from bert_jax.train.workloads.base import Source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """Holds the data source, the hooks and the trackers that all phases of a run share.

    `source` provides the batches and the evaluation. `hooks` and then `save` are called after every
    step; `history`, `meter` and `watchdog` record the run. `_run_phase` makes the `Evaluate` hook,
    because each phase has its own evaluator.
    """

    source: Source
    hooks: Sequence[Hook]
    save: SaveCheckpoint
    history: EvaluationHistory
    meter: TrainingMeter
    watchdog: Watchdog


def run(experiment: Experiment, folder: Path, requested_checkpoint_dir: str | None = None) -> int:
    """Trains `experiment` in the run folder `folder`, resuming from its newest valid checkpoint.

    Args:
      requested_checkpoint_dir: folder or gs:// path of the checkpoints; None: in `folder`.

    Returns:
      The exit code: 0 when the run is complete, 75 when it was asked to stop and has saved.

    Raises:
      UserError: the message says what to do. Checkpoints saved before remain valid.
    """
    train, started = experiment.train, time.monotonic()
    with contextlib.ExitStack() as stack:
        # Run folder, data, mesh, model and optimizer; the state as shapes and shardings only.
        source = make_source(experiment)
        checkpoint_dir = run_on_process_0(
            lambda: _prepare_run_folder(stack, experiment, folder, source, requested_checkpoint_dir)
        )
        stack.enter_context(compilation_cache.persistent_compilation_cache(folder))
        watchdog = stack.enter_context(Watchdog())
        setup = _make_setup(experiment)
        # The Pallas kernels look up the mesh, because XLA cannot partition them by itself.
        stack.enter_context(jax.set_mesh(setup.mesh))

        # The state: restored from the newest valid checkpoint, or initialized.
        checkpointer = stack.enter_context(_make_checkpointer(experiment, folder, checkpoint_dir))
        state, start = restore_or_initialize(setup, checkpointer, watchdog)
        source.on_train_start(setup.objective, state["params"], setup.mesh, folder)

        # Training, one phase after another.
        preemption, meter = stack.enter_context(Preemption()), TrainingMeter(watchdog)
        hooks = make_hooks(train, folder, start.step, checkpointer, watchdog, meter)
        for hook in hooks:
            stack.callback(hook.close)
        history = EvaluationHistory(best=start.best)
        save = SaveCheckpoint(experiment, checkpointer, preemption, history, meter, start.base)
        loop = LoopContext(
            source=source, hooks=hooks, save=save, history=history, meter=meter, watchdog=watchdog
        )
        params = setup.abstract["params"]
        log_model(experiment.objective.model, params, without_frozen(train.tuning, params))
        if start.step or jax.process_count() > 1:
            logger.info("%s step %d of %d", START_MESSAGE, start.step, train.steps)
        attempt = stack.enter_context(RecordedAttempt(setup, source, folder, start.step, started))
        for index, steps, position in remaining_phases(train.phases, start.step, start.position):
            if history.should_stop_early(train.checkpoints):
                break
            state, stop_reason = _run_phase(setup, index, steps, position, state, loop)
            if stop_reason == "preempted":
                attempt.end("stopped by a signal")
                return EXIT_PREEMPTED

        # Final evaluation, with the best parameters.
        with watchdog.watching("conclude", train.steps):
            _finish(setup, source, folder, state, checkpointer, history)
        attempt.end("complete" if int(state["step"]) >= train.steps else "stopped early")
        if jax.process_index() == 0:
            log_results(folder, folder / run_folder.REPORT, time.monotonic() - started)
    return EXIT_DONE


def _run_phase(
    setup: TrainSetup,
    phase_index: int,
    steps: range,
    position: int,
    state: State,
    loop: LoopContext,
) -> tuple[State, StopReason | None]:
    """Compiles the step of a phase and runs `steps`, from the example at `position`."""
    train, source = setup.experiment.train, loop.source
    with contextlib.ExitStack() as stack:
        with loop.meter.paused():
            evaluator = source.evaluator(setup.objective, phase_index, setup.mesh)
            loader = stack.enter_context(source.loader(phase_index, position))
            phase = train.phases[phase_index]
            is_packed = "packing_ids" in source.batch_fields(setup.objective)
            log_phase(
                *(phase.seq_length, len(steps), phase.batch_size, loader.examples_per_epoch),
                is_packed=is_packed,
            )
            # Collectives time out after 30 s, so no process may start long before the others.
            barrier(f"the data of phase {phase_index + 1}")
        state_hooks: list[StateHook] = [loop.save]
        if evaluator is not None:
            evaluate = Evaluate(evaluator, train, loop.history, loop.hooks, loop.meter)
            # Before the step is compiled, so that a wrong name is reported at once.
            evaluate.check_best_metric(state["params"])
            state_hooks.insert(0, evaluate)
        with loop.meter.paused():
            compiled_phase = _compile_phase(setup, source, phase_index, steps)
            barrier(f"the first step of phase {phase_index + 1}")
        loop.watchdog.start("step", steps[0])
        return train_phase(compiled_phase, state, loader, loop.hooks, state_hooks, loop.meter)


def _compile_phase(
    setup: TrainSetup, source: Source, phase_index: int, steps: range
) -> CompiledPhase:
    experiment, phase = setup.experiment, setup.experiment.train.phases[phase_index]
    fields = source.batch_fields(setup.objective)
    shapes = source.shapes(phase_index)
    input_sharding = sharding.batch_sharding(setup.mesh)
    num_choices = shapes[-1].get("A", 1)

    def to_device(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return sharding.put_batch({name: batch[name] for name in fields}, input_sharding)

    return CompiledPhase(
        name=f"length-{phase.seq_length}",
        compiled_step=setup.compile_step(phase, fields, shapes),
        steps=steps,
        total_steps=experiment.train.steps,
        batch_size=phase.batch_size,
        sequences_per_batch=phase.batch_size * num_choices,
        step_flops=_make_step_flops(setup, phase, num_choices),
        to_device=to_device,
    )


def _finish(
    setup: TrainSetup,
    source: Source,
    folder: Path,
    state: State,
    checkpointer: Checkpointer,
    history: EvaluationHistory,
) -> None:
    """Waits for the last save and lets the source evaluate the best checkpoint, if there is one."""
    checkpointer.wait()
    if jax.process_index() == 0 and history.metrics:
        write_json(folder / run_folder.EVALUATION, history.metrics)
    if history.best.step is not None:
        abstract = checkpointed_state(setup.experiment.train.tuning, setup.abstract)
        best, _, _ = checkpointer.restore(abstract, history.best.step)
        state = complete_state(best, state)
    source.on_train_end(setup.objective, state["params"], setup.mesh, folder, int(state["step"]))


def _prepare_run_folder(
    stack: contextlib.ExitStack,
    experiment: Experiment,
    folder: Path,
    source: Source,
    requested_checkpoint_dir: str | None,
) -> str | None:
    """Locks the run folder, checks it against data and model, and writes the config.

    Returns the folder of the checkpoints; None: inside the run folder.
    """
    stack.enter_context(run_folder.lock_run_folder(folder))
    has_checkpoints = check_existing_run(experiment, folder, requested_checkpoint_dir)
    replacement = run_folder.replaced_failed_start(
        folder, experiment, mutable_fields=MAY_CHANGE_ON_RESUME, tokenizer_folder=TOKENIZER_FOLDER
    )
    fingerprint = source.data_fingerprint()
    if has_checkpoints:  # before the source writes files of other data
        check_fingerprint(folder, fingerprint)
    with contextlib.nullcontext(False) if has_checkpoints else replacement as is_replaced:
        source.prepare_run_folder(folder)
        run_folder.write_or_check_config(
            folder,
            experiment,
            mutable_fields=MAY_CHANGE_ON_RESUME,
            hardware=hardware_info(),
            external_dir=requested_checkpoint_dir,
        )
        write_fingerprint(folder, fingerprint)
    if is_replaced:
        logger.info("%s held a run that saved no checkpoint; it was replaced", folder)
    return run_folder.external_checkpoint_dir(folder)


def _make_setup(experiment: Experiment) -> TrainSetup:
    mesh = sharding.make_mesh(experiment.mesh)
    for phase in experiment.train.phases:
        sharding.check_batch_size(phase.batch_size, phase.gradient_accumulation_steps, mesh)
    with jax.set_mesh(mesh):
        return TrainSetup.from_experiment(experiment, mesh)


def _make_checkpointer(
    experiment: Experiment, folder: Path, checkpoint_dir: str | None
) -> Checkpointer:
    config = experiment.train.checkpoints
    return Checkpointer(
        checkpoint_dir or folder / run_folder.CHECKPOINTS,
        keep_last=config.keep_last,
        best_metric=config.best_metric,
        best_mode=config.best_mode or "min",
    )


def _make_step_flops(setup: TrainSetup, phase: Phase, num_choices: int) -> Callable[[int], float]:
    tuning, params = setup.experiment.train.tuning, paths.flatten(setup.abstract["params"])
    return functools.partial(
        step_flops,
        setup.experiment.objective,
        phase,
        num_choices=num_choices,
        tuning=tuning,
        lowest_trainable_layer=lowest_trainable_depth(params, tuning),
    )
