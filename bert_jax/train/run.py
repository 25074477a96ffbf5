"""One run, from its config to its last checkpoint, in the order in which things happen."""

import contextlib
import functools
import shutil
from pathlib import Path
from typing import Any

import jax

from bert_jax import paths
from bert_jax.data.loader import PretrainLoader
from bert_jax.data.manifest import VOCABULARY
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.errors import ConfigError, UserError
from bert_jax.experiment import MAY_CHANGE_ON_RESUME, Experiment
from bert_jax.parallel import sharding
from bert_jax.programs.make import make_program
from bert_jax.programs.program import Program
from bert_jax.train import run_folder
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.compiled import abstract_state, batch_fields, compile_step
from bert_jax.train.config import Phase
from bert_jax.train.distributed import agree
from bert_jax.train.flops import peak_flops, step_flops
from bert_jax.train.heldout import HeldOut
from bert_jax.train.hooks import Hook, SpikeGuard
from bert_jax.train.initial import load_any
from bert_jax.train.loop import Clock, train_phase
from bert_jax.train.metrics_log import MetricsLog, TensorBoard
from bert_jax.train.milestones import Milestones, Preempted
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, Preemption
from bert_jax.train.progress import ProgressLine
from bert_jax.train.report import write_report
from bert_jax.train.step import State, init_state


def run(experiment: Experiment, folder: Path) -> int:
    """Trains `experiment` in `folder`, going on from its newest good checkpoint if it has one.

    Returns:
      The exit code: 0 when the run is complete, 75 when it was asked to stop and has saved.

    Raises:
      UserError: says what to do; whatever was saved before is still there.
    """
    train = experiment.train
    with contextlib.ExitStack() as stack:
        # The folder, the corpus and the mesh
        corpus = PreparedCorpus(experiment.data.prepared)
        agree(lambda: _settle(stack, experiment, folder, corpus))
        mesh = sharding.make_mesh(experiment.mesh)
        for phase in train.phases:
            sharding.check_batch_size(phase.batch_size, phase.accumulate, mesh)

        # Program, abstract state, shardings, and then the state itself: restored or fresh
        program = make_program(experiment.program)
        optimizer = make_optimizer(train)
        initialise = functools.partial(init_state, program, optimizer)
        abstract = abstract_state(initialise, optimizer, mesh)
        checkpoints = stack.enter_context(_checkpointer(experiment, folder))
        if checkpoints.latest_verified() is not None:
            state, info, done = checkpoints.restore(abstract)
            position = info["position"]
        else:
            state, done, position = _fresh(experiment, initialise, abstract), 0, 0

        # Who watches the loop
        hooks = _hooks(experiment, folder, done, checkpoints)
        for hook in hooks:
            stack.callback(hook.close)
        preemption, clock = stack.enter_context(Preemption()), Clock()
        milestones = Milestones(experiment, checkpoints, preemption, hooks, clock)

        # The phases
        first = 0
        for index, phase in enumerate(train.phases):
            last = first + phase.steps
            if done < last:
                milestones.heldout = _heldout(experiment, program, phase, mesh)
                loader = stack.enter_context(
                    _loader(experiment, corpus, index, position if done > first else 0)
                )
                fields = batch_fields(program, loader)
                where = sharding.batch_sharding(mesh)
                clock.pause()
                step = compile_step(experiment, phase, program, optimizer, fields, abstract, mesh)
                clock.go()
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
                        flops=step_flops(experiment.program, phase),
                        put=lambda batch, fields=fields, where=where: sharding.put_batch(
                            {name: batch[name] for name in fields}, where
                        ),
                        hooks=hooks,
                        clock=clock,
                        after_step=milestones,
                    )
                except Preempted:
                    return EXIT_PREEMPTED
            first = last

        # The end
        checkpoints.wait()
        if jax.process_index() == 0:
            if milestones.metrics:
                run_folder.write_json(folder / run_folder.EVALUATION, milestones.metrics)
            write_report(folder)
    return EXIT_DONE


def _settle(
    stack: contextlib.ExitStack, experiment: Experiment, folder: Path, corpus: PreparedCorpus
) -> None:
    """Locks the folder, checks that corpus, model and folder belong together, leaves the config."""
    stack.enter_context(run_folder.locked(folder))
    model = experiment.program.model
    if corpus.manifest.vocabulary_size > model.vocab_size:
        raise UserError(
            f"{corpus.folder} was prepared with {corpus.manifest.vocabulary_size} ids, but "
            f"program.model.vocab_size is {model.vocab_size}; take the corpus's vocabulary size"
        )
    run_folder.settle_config(folder, experiment, may_differ=MAY_CHANGE_ON_RESUME)
    if not (folder / VOCABULARY).exists():
        aside = folder / f"{VOCABULARY}.tmp"
        shutil.copytree(corpus.folder / VOCABULARY, aside, dirs_exist_ok=True)
        aside.rename(folder / VOCABULARY)


def _fresh(experiment: Experiment, initialise: Any, abstract: State) -> State:
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    state = jax.jit(initialise, out_shardings=shardings)(jax.random.key(experiment.seed))
    if experiment.init_from:
        state["params"] = _start_from(experiment, state["params"])
    return state


def _start_from(experiment: Experiment, fresh: dict[str, Any]) -> dict[str, Any]:
    """Parameters of another model; heads that it lacks stay as they were initialised."""
    source = str(experiment.init_from)
    loaded = paths.flatten(load_any(source).params)
    chosen = {}
    for path, leaf in paths.flatten(fresh).items():
        found = loaded.get(path, leaf)
        if found.shape != leaf.shape:
            raise ConfigError(
                f"--init-from {source}: {path} has shape {list(found.shape)}, "
                f"this model needs {list(leaf.shape)}; make program.model the same"
            )
        chosen[path] = jax.device_put(found, leaf.sharding)
    return paths.unflatten(chosen)


def _checkpointer(experiment: Experiment, folder: Path) -> Checkpointer:
    kept = experiment.train.checkpoints
    return Checkpointer(
        folder / run_folder.CHECKPOINTS, keep_last=kept.keep_last, keep_best=kept.keep_best
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


def _heldout(
    experiment: Experiment, program: Program, phase: Phase, mesh: jax.sharding.Mesh
) -> HeldOut | None:
    evaluation = experiment.train.evaluation
    if evaluation is None:
        return None
    sharding.check_batch_size(evaluation.batch_size, 1, mesh)
    return HeldOut(program, evaluation, experiment.data, phase, mesh)


def _loader(
    experiment: Experiment, corpus: PreparedCorpus, index: int, position: int
) -> PretrainLoader:
    phase = experiment.train.phases[index]
    return PretrainLoader(
        corpus,
        experiment.data,
        length=phase.length,
        batch_size=phase.batch_size,
        max_predictions=phase.max_predictions,
        seed=experiment.seed + index,  # a later phase does not see the first one's order again
        host_index=jax.process_index(),
        host_count=jax.process_count(),
        start=position,
    )
