"""One run, from its config to its last checkpoint, in the order in which things happen."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import jax

from bert_jax import paths
from bert_jax.aside import write_json
from bert_jax.experiment import MAY_CHANGE_ON_RESUME, Experiment
from bert_jax.parallel import sharding
from bert_jax.plan.peak import peak_flops
from bert_jax.programs.make import make_program
from bert_jax.train import compilation_cache, run_folder
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.compiled import abstract_state, compile_step
from bert_jax.train.config import Phase
from bert_jax.train.distributed import agree, say, together
from bert_jax.train.flops import step_flops
from bert_jax.train.fresh import fresh_state
from bert_jax.train.hardware import hardware
from bert_jax.train.hooks import Hook, Pace, SpikeGuard
from bert_jax.train.loop import Meter, train_phase
from bert_jax.train.metrics_log import MetricsLog, TensorBoard
from bert_jax.train.milestones import Best, Milestones, OutOfPatience, Preempted
from bert_jax.train.open_source import open_source
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.preemption import BEGINS, EXIT_DONE, EXIT_PREEMPTED, Preemption
from bert_jax.train.progress import ProgressLine
from bert_jax.train.report import write_report
from bert_jax.train.source import Source
from bert_jax.train.step import State, init_state
from bert_jax.train.watchdog import Watchdog
from bert_jax.tuning.depth import lowest_moving


def run(experiment: Experiment, folder: Path, checkpoints_at: str | None = None) -> int:
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
        source = open_source(experiment)
        place = agree(lambda: _settle(stack, experiment, folder, source, checkpoints_at))
        stack.enter_context(compilation_cache.kept(folder))
        watchdog = stack.enter_context(Watchdog())
        mesh = sharding.make_mesh(experiment.mesh)
        stack.enter_context(jax.set_mesh(mesh))  # for kernels that XLA cannot cut up
        for phase in train.phases:
            sharding.check_batch_size(phase.batch_size, phase.accumulate, mesh)

        # Program, abstract state, shardings, and then the state itself: restored or fresh
        program = make_program(experiment.program)
        optimizer = make_optimizer(train)
        initialise = functools.partial(init_state, program, optimizer)
        abstract = abstract_state(initialise, optimizer, mesh)
        checkpoints = stack.enter_context(_checkpointer(experiment, folder, place))
        if checkpoints.latest_verified() is not None:
            with watchdog.doing("restore", 0):
                state, info, done = checkpoints.restore(abstract)
            position, best = info["position"], Best(**info.get("best", {}))
        else:
            state, done = fresh_state(experiment, program, optimizer, abstract), 0
            position, best = 0, Best()
        source.begin(program, state["params"], mesh, folder)

        # Who watches the loop
        hooks = [*_hooks(experiment, folder, done, checkpoints), Pace(), watchdog]
        for hook in hooks:
            stack.callback(hook.close)
        preemption, meter = stack.enter_context(Preemption()), Meter()
        milestones = Milestones(experiment, checkpoints, preemption, hooks, meter, best, watchdog)
        if done or jax.process_count() > 1:
            say(f"{BEGINS} step {done} of {train.steps}")

        # The phases
        first = 0
        for index, phase in enumerate(train.phases):
            last = first + phase.steps
            if done < last and not milestones.out_of_patience:
                milestones.evaluator = source.evaluator(program, index, mesh)
                loader = stack.enter_context(source.loader(index, position if done > first else 0))
                fields, shapes = source.fields(program), source.shapes(index)
                choices = shapes[-1].get("A", 1)
                where = sharding.batch_sharding(mesh)
                meter.pause()
                watchdog.leave()
                step = compile_step(
                    experiment, phase, program, optimizer, fields, shapes, abstract, mesh
                )
                together(f"the first step of phase {index + 1}")
                meter.go()
                watchdog.enter("step", max(done, first) + 1)
                try:
                    state = train_phase(
                        step,
                        state,
                        loader,
                        phase,
                        name=f"length-{phase.length}",
                        done=max(done, first),
                        until=last,
                        total_steps=train.steps,
                        texts=phase.batch_size * choices,
                        flops=_flops(experiment, phase, choices, abstract),
                        put=lambda batch, fields=fields, where=where: sharding.put_batch(
                            {name: batch[name] for name in fields}, where
                        ),
                        hooks=hooks,
                        meter=meter,
                        after_step=milestones,
                    )
                except Preempted:
                    return EXIT_PREEMPTED
                except OutOfPatience:
                    pass
            first = last

        # The end
        with watchdog.doing("conclude", train.steps):
            checkpoints.wait()
            if jax.process_index() == 0 and milestones.metrics:
                write_json(folder / run_folder.EVALUATION, milestones.metrics)
            if best.step is not None:
                state, _, _ = checkpoints.restore(abstract, best.step)
            source.conclude(program, state["params"], mesh, folder, int(state["step"]))
        if jax.process_index() == 0:
            write_report(folder)
    return EXIT_DONE


def _settle(
    stack: contextlib.ExitStack,
    experiment: Experiment,
    folder: Path,
    source: Source,
    checkpoints: str | None,
) -> str | None:
    """Locks the folder, checks that data, model and folder belong together, leaves the config.

    Returns:
      Where the checkpoints are; None: in the folder.
    """
    stack.enter_context(run_folder.locked(folder))
    source.settle(folder)
    run_folder.settle_config(
        folder,
        experiment,
        may_differ=MAY_CHANGE_ON_RESUME,
        hardware=hardware(),
        checkpoints=checkpoints,
    )
    return run_folder.elsewhere(folder)


def _flops(
    experiment: Experiment, phase: Phase, choices: int, abstract: State
) -> Callable[[int], float]:
    tuning = experiment.train.tuning
    return functools.partial(
        step_flops,
        experiment.program,
        phase,
        choices=choices,
        encoder=tuning.encoder,
        lowest=lowest_moving(paths.flatten(abstract["params"]), tuning.frozen),
    )


def _checkpointer(experiment: Experiment, folder: Path, place: str | None) -> Checkpointer:
    kept = experiment.train.checkpoints
    return Checkpointer(
        place or folder / run_folder.CHECKPOINTS,
        keep_last=kept.keep_last,
        keep_best=kept.keep_best,
        best_mode=kept.best_mode,
    )


def _hooks(
    experiment: Experiment, folder: Path, done: int, checkpoints: Checkpointer
) -> list[Hook]:
    logging = experiment.train.logging
    guard = SpikeGuard(every=logging.every, last_good=checkpoints.latest_verified)
    if jax.process_index() != 0:
        return [guard]
    peak = peak_flops(jax.devices())
    hooks: list[Hook] = [
        ProgressLine(every=logging.every, peak_flops=peak),
        MetricsLog(folder, every=logging.every, resume_step=done, peak_flops=peak),
    ]
    if logging.tensorboard:
        hooks.append(TensorBoard(folder, every=logging.every, resume_step=done, peak_flops=peak))
    return [*hooks, guard]
