"""One run, from its config to its last checkpoint, in the order in which things happen."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import jax

from bert_jax.atomic_io import write_json
from bert_jax.checkpoints.checkpointer import Checkpointer
from bert_jax.distributed.processes import barrier, log, run_on_process_0
from bert_jax.experiment import MAY_CHANGE_ON_RESUME, Experiment
from bert_jax.hardware.host import hardware_info
from bert_jax.hardware.peak_flops import peak_flops
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.report.run_report import write_report
from bert_jax.runs import run_folder
from bert_jax.runs.hooks import Hook, LimitInFlightSteps, SpikeGuard
from bert_jax.runs.metrics import MetricsLog, TensorBoard
from bert_jax.runs.progress import ProgressLine
from bert_jax.train import compilation_cache
from bert_jax.train.compile import abstract_state, compile_step
from bert_jax.train.config import Phase
from bert_jax.train.evaluate_and_save import BestEvaluation, EarlyStop, EvalAndCheckpoint, Preempted
from bert_jax.train.flops import step_flops
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.loop import Meter, train_phase
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, START_MESSAGE, Preemption
from bert_jax.train.sources.base import Source
from bert_jax.train.sources.make import make_source
from bert_jax.train.step import State, init_state
from bert_jax.train.watchdog import Watchdog
from bert_jax.tuning.depth import lowest_trainable_depth


def run(experiment: Experiment, folder: Path, requested_checkpoint_dir: str | None = None) -> int:
    """Trains `experiment` in `folder`, going on from its newest good checkpoint if it has one.

    Args:
      checkpoints_at: where they are, if not in `folder`; may be a gs:// path.

    Returns:
      The exit code: 0 when the run is complete, 75 when it was asked to stop and has saved.

    Raises:
      UserError: says what to do; whatever was saved before is still there.
    """
    train = experiment.train
    with contextlib.ExitStack() as stack:
        # The folder, the data and the mesh
        source = make_source(experiment)
        external_dir = run_on_process_0(
            lambda: _prepare_run_folder(stack, experiment, folder, source, requested_checkpoint_dir)
        )
        stack.enter_context(compilation_cache.persistent_compilation_cache(folder))
        watchdog = stack.enter_context(Watchdog())
        mesh = sharding.make_mesh(experiment.mesh)
        stack.enter_context(jax.set_mesh(mesh))  # for kernels that XLA cannot cut up
        for phase in train.phases:
            sharding.check_batch_size(phase.batch_size, phase.gradient_accumulation_steps, mesh)

        # Program, abstract state, shardings, and then the state itself: restored or fresh
        objective = make_objective(experiment.objective)
        optimizer = make_optimizer(train)
        init_fn = functools.partial(init_state, objective, optimizer)
        abstract = abstract_state(init_fn, optimizer, mesh)
        checkpointer = stack.enter_context(_make_checkpointer(experiment, folder, external_dir))
        if checkpointer.latest_valid_step() is not None:
            with watchdog.watching("restore", 0):
                state, info, start_step = checkpointer.restore(abstract)
            position, best = info["position"], BestEvaluation(**info.get("best", {}))
        else:
            state, start_step = initialize_or_load(experiment, objective, optimizer, abstract), 0
            position, best = 0, BestEvaluation()
        source.on_train_start(objective, state["params"], mesh, folder)

        # Who watches the loop
        hooks = [
            *_make_hooks(experiment, folder, start_step, checkpointer),
            LimitInFlightSteps(),
            watchdog,
        ]
        for hook in hooks:
            stack.callback(hook.close)
        preemption, meter = stack.enter_context(Preemption()), Meter()
        eval_and_checkpoint = EvalAndCheckpoint(
            experiment, checkpointer, preemption, hooks, meter, best, watchdog
        )
        if start_step or jax.process_count() > 1:
            log(f"{START_MESSAGE} step {start_step} of {train.steps}")

        # The phases
        phase_start = 0
        for phase_index, phase in enumerate(train.phases):
            phase_end = phase_start + phase.steps
            if start_step < phase_end and not eval_and_checkpoint.should_stop_early:
                eval_and_checkpoint.evaluator = source.evaluator(objective, phase_index, mesh)
                loader = stack.enter_context(
                    source.loader(phase_index, position if start_step > phase_start else 0)
                )
                fields, shapes = source.batch_fields(objective), source.shapes(phase_index)
                num_choices = shapes[-1].get("A", 1)
                input_sharding = sharding.batch_sharding(mesh)
                meter.pause()
                watchdog.pause()
                compiled_step = compile_step(
                    experiment, phase, objective, optimizer, fields, shapes, abstract, mesh
                )
                barrier(f"the first step of phase {phase_index + 1}")
                meter.resume()
                watchdog.start("step", max(start_step, phase_start) + 1)
                try:
                    state = train_phase(
                        compiled_step,
                        state,
                        loader,
                        phase,
                        phase_name=f"length-{phase.seq_length}",
                        start_step=max(start_step, phase_start),
                        last_step=phase_end,
                        total_steps=train.steps,
                        sequences_per_batch=phase.batch_size * num_choices,
                        step_flops=_make_step_flops(experiment, phase, num_choices, abstract),
                        to_device=lambda batch, fields=fields, input_sharding=input_sharding: (
                            sharding.put_batch(
                                {name: batch[name] for name in fields}, input_sharding
                            )
                        ),
                        hooks=hooks,
                        meter=meter,
                        after_step=eval_and_checkpoint,
                    )
                except Preempted:
                    return EXIT_PREEMPTED
                except EarlyStop:
                    pass
            phase_start = phase_end

        # The end
        with watchdog.watching("conclude", train.steps):
            checkpointer.wait()
            if jax.process_index() == 0 and eval_and_checkpoint.metrics:
                write_json(folder / run_folder.EVALUATION, eval_and_checkpoint.metrics)
            if best.step is not None:
                state, _, _ = checkpointer.restore(abstract, best.step)
            source.on_train_end(objective, state["params"], mesh, folder, int(state["step"]))
        if jax.process_index() == 0:
            write_report(folder)
    return EXIT_DONE


def _prepare_run_folder(
    stack: contextlib.ExitStack,
    experiment: Experiment,
    folder: Path,
    source: Source,
    requested_checkpoint_dir: str | None,
) -> str | None:
    """Locks the folder, checks that data, model and folder belong together, leaves the config.

    Returns:
      Where the checkpoints are; None: in the folder.
    """
    stack.enter_context(run_folder.lock_run_folder(folder))
    source.prepare_run_folder(folder)
    run_folder.write_or_check_config(
        folder,
        experiment,
        mutable_fields=MAY_CHANGE_ON_RESUME,
        hardware=hardware_info(),
        external_dir=requested_checkpoint_dir,
    )
    return run_folder.external_checkpoint_dir(folder)


def _make_step_flops(
    experiment: Experiment, phase: Phase, num_choices: int, abstract: State
) -> Callable[[int], float]:
    tuning = experiment.train.tuning
    return functools.partial(
        step_flops,
        experiment.objective,
        phase,
        num_choices=num_choices,
        features=tuning.features,
        lowest_trainable_layer=lowest_trainable_depth(
            paths.flatten(abstract["params"]), tuning.frozen
        ),
    )


def _make_checkpointer(
    experiment: Experiment, folder: Path, external_dir: str | None
) -> Checkpointer:
    config = experiment.train.checkpoints
    return Checkpointer(
        external_dir or folder / run_folder.CHECKPOINTS,
        keep_last=config.keep_last,
        best_metric=config.best_metric,
        best_mode=config.best_mode,
    )


def _make_hooks(
    experiment: Experiment, folder: Path, start_step: int, checkpointer: Checkpointer
) -> list[Hook]:
    logging_config = experiment.train.logging
    guard = SpikeGuard(
        every=logging_config.log_every, last_good_step=checkpointer.latest_valid_step
    )
    if jax.process_index() != 0:
        return [guard]
    device_peak_flops = peak_flops(jax.devices())
    hooks: list[Hook] = [
        ProgressLine(every=logging_config.log_every, peak_flops=device_peak_flops),
        MetricsLog(
            folder,
            every=logging_config.log_every,
            resume_step=start_step,
            peak_flops=device_peak_flops,
        ),
    ]
    if logging_config.tensorboard:
        hooks.append(
            TensorBoard(
                folder,
                every=logging_config.log_every,
                resume_step=start_step,
                peak_flops=device_peak_flops,
            )
        )
    return [*hooks, guard]
