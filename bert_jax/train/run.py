"""Runs an experiment from its config to its last checkpoint: `run`, from top to bottom, in order.

The run folder and the data; mesh, objective and optimizer; the state, restored or initialized; one
phase of training after another; the final evaluation with the best parameters.
"""

import contextlib
import dataclasses
import logging
import math
import shlex
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import jax
import numpy as np

from bert_jax.config.experiment import MAY_CHANGE_ON_RESUME, Experiment
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.objectives.base import BatchSizes, Objective
from bert_jax.parallel import sharding
from bert_jax.parallel.devices import hardware_info
from bert_jax.parallel.processes import barrier, run_on_process_0
from bert_jax.params import paths
from bert_jax.pretrained.folder import pin_revision
from bert_jax.report.run_report import write_report
from bert_jax.runs import run_folder
from bert_jax.runs.attempt_log import AttemptLog, Outcome
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.runs.messages import log_model, log_phase, log_results, log_token_rows
from bert_jax.runs.trackers import Track, check_tracker
from bert_jax.runs.training_data import check_fingerprint, write_fingerprint
from bert_jax.train.compilation_cache import persistent_compilation_cache
from bert_jax.train.evaluate_and_save import Evaluate, EvaluationHistory, SaveCheckpoint, make_hooks
from bert_jax.train.flops import step_flops
from bert_jax.train.initialize import check_existing_run, restore_or_initialize
from bert_jax.train.loop import (
    CompiledPhase,
    StateHook,
    TrainingMeter,
    remaining_phases,
    train_phase,
)
from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, START_MESSAGE, Preemption
from bert_jax.train.step import TrainSetup, checkpointed_state, complete_state
from bert_jax.train.tuning.freezing import lowest_trainable_depth, without_frozen
from bert_jax.train.tuning.token_rows import take_rows
from bert_jax.train.watchdog import Watchdog
from bert_jax.train.workloads import make_workload
from bert_jax.train.workloads.base import Workload

logger = logging.getLogger(__name__)


def run(experiment: Experiment, folder: Path, requested_checkpoint_dir: str | None = None) -> int:
    """Trains `experiment` in the run folder `folder`, resuming from its newest valid checkpoint.

    It is longer than other functions because it shows a whole run, in the order in which things
    happen.

    Args:
      requested_checkpoint_dir: folder or gs:// path of the checkpoints; None: in `folder`.

    Returns:
      The exit code: 0 when the run is complete or was stopped early, 75 when it was asked to stop
      and has saved.

    Raises:
      UserError: the message says what to do. Checkpoints saved before remain valid.
    """
    check_tracker(experiment.train.logging.track)
    experiment, started = _pin_initial_model(experiment, folder), time.monotonic()
    train = experiment.train
    with contextlib.ExitStack() as stack:
        # The data, and the run folder, which is locked, checked against both and completed.
        workload = make_workload(experiment)
        run_on_process_0(lambda: stack.enter_context(run_folder.lock_run_folder(folder)))
        checkpoint_dir = run_on_process_0(
            lambda: _prepare_run_folder(experiment, folder, workload, requested_checkpoint_dir)
        )
        stack.enter_context(persistent_compilation_cache(folder))
        watchdog = stack.enter_context(Watchdog())

        # The mesh; objective and optimizer, and the state as shapes and shardings only.
        mesh = sharding.make_mesh(experiment.mesh)
        for phase in train.phases:
            sharding.check_batch_size(phase.batch_size, phase.gradient_accumulation_steps, mesh)
        # The Pallas kernels look up the mesh, because XLA cannot partition them by itself.
        stack.enter_context(jax.set_mesh(mesh))
        setup = TrainSetup.from_experiment(experiment, mesh, workload.training_token_ids)
        # Each process may have tokenized all texts, and the next collective would time out.
        barrier("the token ids of the training texts")
        objective, abstract_params = setup.objective, setup.abstract["params"]

        # The state: restored from the newest valid checkpoint, or initialized.
        checkpointer = Checkpointer(
            checkpoint_dir or folder / run_folder.CHECKPOINTS,
            keep_last=train.checkpoints.keep_last,
            best_metric=train.checkpoints.best_metric,
            best_mode=train.checkpoints.best_mode or "min",
        )
        stack.enter_context(checkpointer)
        state, start = restore_or_initialize(setup, checkpointer, watchdog)
        workload.on_train_start(objective, state["params"], mesh, folder)

        # What is called after every step, and what is written about the run.
        preemption, meter = stack.enter_context(Preemption()), TrainingMeter(watchdog)
        hooks = make_hooks(experiment, folder, start.step, checkpointer, watchdog, meter)
        for hook in hooks:
            stack.callback(hook.close)
        history = EvaluationHistory(best=start.best)
        save = SaveCheckpoint(experiment, checkpointer, preemption, history, meter, start.base)
        trained_params = without_frozen(
            train.tuning, jax.eval_shape(take_rows, abstract_params, setup.token_rows)
        )
        log_model(experiment.objective.model, abstract_params, trained_params)
        if setup.token_rows is not None:
            log_token_rows(len(setup.token_rows), experiment.objective.model.vocab_size)
        if start.step or jax.process_count() > 1:
            logger.info("%s step %d of %d", START_MESSAGE, start.step, train.steps)
        leaves = jax.tree.leaves(paths.without_auxiliary_networks(abstract_params))
        num_parameters = sum(math.prod(leaf.shape) for leaf in leaves)
        attempt = stack.enter_context(
            RecordedAttempt(folder, start.step, started, num_parameters, workload.describe_data())
        )

        # Training, one phase after another.
        for index, steps, position in remaining_phases(train.phases, start.step, start.position):
            if history.should_stop_early(train.checkpoints):
                break
            phase = train.phases[index]
            phase_objective = setup.objective_of(phase)
            fields = workload.batch_fields(phase_objective)
            with contextlib.ExitStack() as phase_stack:
                with meter.paused():
                    evaluator = workload.evaluator(objective, index, mesh)
                    loader = phase_stack.enter_context(workload.loader(index, position))
                    shapes = workload.shapes(index)
                    log_phase(
                        phase.seq_length,
                        len(steps),
                        phase.batch_size,
                        max(_num_tokens(phase_objective, shapes).values()),
                        loader.examples_per_epoch,
                        is_packed="packing_ids" in fields,
                    )
                    # Collectives time out after 30 s, so no process may start long before others.
                    barrier(f"the data of phase {index + 1}")
                state_hooks: list[StateHook] = [save]
                if evaluator is not None:
                    shown = objective.shown_metrics
                    evaluate = Evaluate(evaluator, train, history, hooks, meter, shown)
                    # Before the step is compiled, so that a wrong name is reported at once.
                    evaluate.check_best_metric(state["params"])
                    state_hooks.insert(0, evaluate)  # a checkpoint has its step's evaluation
                compiled = _compiled_phase(setup, index, fields, shapes, steps)
                phase_stack.callback(compiled.compiled_step.close)
                watchdog.start("step", steps[0])
                state, stop = train_phase(compiled, state, loader, hooks, state_hooks, meter)
            if stop == "preempted":
                attempt.end("stopped by a signal")
                return EXIT_PREEMPTED

        # The final evaluation, with the best parameters if checkpoints are ranked.
        with watchdog.watching("conclude", train.steps):
            # Saves run in the background; results are written when the last checkpoint is on
            # disk.
            checkpointer.wait()
            if jax.process_index() == 0 and history.metrics:
                write_json(folder / run_folder.EVALUATION, history.metrics)
            last_step = int(state["step"])
            if history.best.step is not None:
                saved = checkpointed_state(train.tuning, setup.abstract)
                # The final results belong to the best checkpoint, which export and prediction
                # load, not to the last one.
                best, _, _ = checkpointer.restore(saved, history.best.step)
                state = complete_state(best, state)
            workload.on_train_end(objective, state["params"], mesh, folder, int(state["step"]))
            for hook in hooks:
                if isinstance(hook, Track) and (folder / run_folder.EVALUATION).is_file():
                    hook.write_final(read_json_object(folder / run_folder.EVALUATION))
        attempt.end("complete" if last_step >= train.steps else "stopped early")
        if jax.process_index() == 0:
            seconds, report = time.monotonic() - started, folder / run_folder.REPORT
            log_results(folder, report, seconds, objective.shown_metrics)
            logger.info("next: %s", workload.next_command.format(run=shlex.quote(str(folder))))
    return EXIT_DONE


def _pin_initial_model(experiment: Experiment, folder: Path) -> Experiment:
    """Adds the commit to the name of a model of the hub, which may have other weights tomorrow.

    A run that is resumed keeps the commit that it started from.
    """
    name = experiment.init_from
    if name is None:
        return experiment
    if (folder / run_folder.CONFIG).is_file():
        saved = run_folder.read_config(folder).get("init_from") or ""
        pinned = saved if saved.startswith(f"{name}@") else name
    else:
        pinned = pin_revision(name)
    return dataclasses.replace(experiment, init_from=pinned)


def _prepare_run_folder(
    experiment: Experiment, folder: Path, workload: Workload, requested_checkpoint_dir: str | None
) -> str | None:
    """Checks a locked run folder against data and model, and writes the config.

    Returns the folder of the checkpoints; None: inside the run folder.
    """
    has_checkpoints = check_existing_run(experiment, folder, requested_checkpoint_dir)
    replacement = run_folder.replaced_failed_start(
        folder, experiment, mutable_fields=MAY_CHANGE_ON_RESUME, tokenizer_folder=TOKENIZER_FOLDER
    )
    fingerprint = workload.data_fingerprint()
    if has_checkpoints:  # before the workload writes files of other data
        check_fingerprint(folder, fingerprint)
    with contextlib.nullcontext(False) if has_checkpoints else replacement as is_replaced:
        workload.prepare_run_folder(folder)
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


def _num_tokens(objective: Objective, shapes: list[dict[str, int]]) -> dict[int, int]:
    """Returns for each length the positions of a batch that the encoder computes."""
    return {dims["L"]: objective.encoded_positions(BatchSizes.from_dims(dims)) for dims in shapes}


def _compiled_phase(
    setup: TrainSetup,
    index: int,
    fields: tuple[str, ...],
    shapes: list[dict[str, int]],
    steps: range,
) -> CompiledPhase:
    train, phase = setup.experiment.train, setup.experiment.train.phases[index]
    input_sharding = sharding.batch_sharding(setup.mesh)
    objective = setup.objective_of(phase)
    lowest_trainable_layer = lowest_trainable_depth(
        paths.flatten(setup.abstract["params"]), train.tuning
    )

    def to_device(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return sharding.put_batch({name: batch[name] for name in fields}, input_sharding)

    return CompiledPhase(
        name=f"length-{phase.seq_length}",
        compiled_step=setup.compile_step(phase, fields, shapes),
        steps=steps,
        total_steps=train.steps,
        batch_size=phase.batch_size,
        tokens=_num_tokens(objective, shapes),
        flops={
            dims["L"]: step_flops(
                objective,
                phase,
                dims,
                tuning=train.tuning,
                lowest_trainable_layer=lowest_trainable_layer,
            )
            for dims in shapes
        },
        to_device=to_device,
    )


class RecordedAttempt:
    """Records the start and the end of this process in `attempts.jsonl`; a context manager.

    The caller calls `end` when training ends; an error that leaves the `with` block is recorded
    without it. Both write the report. Only JAX's process 0 writes; on the others nothing happens.

    Args:
      folder: the run folder.
      start_step: number of optimizer updates done before this attempt.
      started_at: `time.monotonic()` at the start of the process.
      num_parameters, data: see `Attempt`.
    """

    def __init__(
        self,
        folder: Path,
        start_step: int,
        started_at: float,
        num_parameters: int,
        data: dict[str, str],
    ):
        self._folder, self._log = folder, None
        if jax.process_index() == 0:
            self._log = AttemptLog(
                folder,
                started_at=started_at,
                step=start_step,
                num_parameters=num_parameters,
                data=data,
            )

    def end(self, outcome: Outcome, message: str = "") -> None:
        """Records how the process ends, and writes the report."""
        if self._log is None:
            return
        self._log.end(outcome, message)
        self._log = None  # nothing is recorded after the end
        try:
            write_report(self._folder)
        except UserError as error:
            logger.warning("the report of the run could not be written: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Records an error that ends the training."""
        if error is None:
            return
        # Only messages that are meant for users; the traceback of any other error is on the screen.
        message = str(error) if isinstance(error, UserError) else type(error).__name__
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            self.end("failed", message)
