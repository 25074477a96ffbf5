"""Defines what the training loop calls after a step: log, evaluate, save, and stop if asked to.

`make_hooks` makes the hooks that log and check metrics. `Evaluate` and `SaveCheckpoint` are state
hooks, whose order matters: a checkpoint is ranked by the evaluation of its own step, so `Evaluate`
comes before `SaveCheckpoint`.
"""

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from bert_jax.config.config_lib import to_json
from bert_jax.config.experiment import Experiment
from bert_jax.config.train import CheckpointConfig, TrainConfig
from bert_jax.errors import ConfigError
from bert_jax.parallel.devices import hardware_info, peak_flops
from bert_jax.parallel.processes import run_on_process_0
from bert_jax.pretrained.base_model import BASE, Base
from bert_jax.runs import run_folder
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.runs.checkpoints.step_folder import by_path
from bert_jax.runs.hooks import Hook, LimitInFlightSteps, SpikeGuard, TrainingHalted, restart_advice
from bert_jax.runs.messages import log_evaluation
from bert_jax.runs.metrics import MetricsLog
from bert_jax.runs.progress import ProgressLine
from bert_jax.runs.trackers import Track
from bert_jax.train.loop import StopReason, TrainingMeter, pause_seconds_left
from bert_jax.train.preemption import SAVED_MESSAGE, Preemption
from bert_jax.train.step import State, checkpointed_state
from bert_jax.train.watchdog import Watchdog
from bert_jax.train.workloads.base import Evaluator

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class BestEvaluation:
    """Holds the step and value of the best evaluation so far.

    `evals_since_best` counts the evaluations since the value last improved, for early stopping; a
    tie is no improvement.
    """

    step: int | None = None
    value: float | None = None
    evals_since_best: int = 0

    def update(self, step: int, value: float, mode: Literal["min", "max"]) -> None:
        """Records one evaluation; a value that is not finite counts as worse than any other.

        A value equal to the best one moves `step` forward, because the checkpointer keeps the
        latest of equal checkpoints, but it does not reset `evals_since_best`.
        """
        sign = 1 if mode == "max" else -1
        is_better = math.isfinite(value) and (
            self.value is None or sign * value > sign * self.value
        )
        self.evals_since_best = 0 if is_better else self.evals_since_best + 1
        if is_better or value == self.value:
            self.step, self.value = step, value


@dataclass(kw_only=True)
class EvaluationHistory:
    """Holds the results that `Evaluate` produces and `SaveCheckpoint` writes.

    Attributes:
      best: the best evaluation of the run, restored from the checkpoint of a resumed run.
      metrics: of the last evaluation in this process; empty before the first.
      step: the number of updates before that evaluation.
    """

    best: BestEvaluation
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None

    def should_stop_early(self, config: CheckpointConfig) -> bool:
        """Returns whether `early_stopping_patience` evaluations passed without a better one."""
        patience = config.early_stopping_patience
        return patience is not None and self.best.evals_since_best >= patience


class Evaluate:
    """Evaluates the parameters every `train.evaluation.eval_every` steps and after the last one.

    Args:
      hooks: those that log metrics also log the results of the evaluation.
      shown_metrics: the metrics that messages show; see `Objective`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        train: TrainConfig,
        history: EvaluationHistory,
        hooks: Sequence[Hook],
        meter: TrainingMeter,
        shown_metrics: Sequence[str] = (),
    ):
        self._evaluator, self._train, self._shown_metrics = evaluator, train, shown_metrics
        self._history, self._meter = history, meter
        self._metric_logs = [hook for hook in hooks if isinstance(hook, (MetricsLog, Track))]

    def check_best_metric(self, params: Any) -> None:
        """Checks before training that the evaluation has the metric that checkpoints are ranked by.

        If the evaluator cannot list the name in advance, one full evaluation is run to find it.

        Raises:
          ConfigError: the evaluation has no metric named `train.checkpoints.best_metric`.
        """
        name = self._train.checkpoints.best_metric
        # Checked before the first step: a run of days would otherwise fail at its first
        # evaluation.
        if name is None or name in self._evaluator.known_metrics:
            return
        with self._meter.paused("evaluate", 0):
            metrics = self._evaluator(params)
        if name not in metrics:
            raise ConfigError(
                f"train.checkpoints.best_metric is {name!r}, which is not a metric of the "
                f"evaluation; expected one of: {', '.join(sorted(metrics))}"
            )

    def __call__(self, step: int, state: State, position: int) -> None:
        """Evaluates the state after `step` updates if an evaluation is due."""
        evaluation = self._train.evaluation
        if evaluation is None or (step % evaluation.eval_every and step != self._train.steps):
            return
        jax.block_until_ready(state)  # steps in flight are training time
        with self._meter.paused("evaluate", step):
            metrics = self._evaluator(state["params"])
        self._history.metrics, self._history.step = metrics, step
        for metric_log in self._metric_logs:
            metric_log.write_evaluation(step, metrics)
        checkpoints, best = self._train.checkpoints, self._history.best
        if checkpoints.best_metric is not None and checkpoints.best_mode is not None:
            best.update(step, metrics[checkpoints.best_metric], checkpoints.best_mode)
        first_metrics = [checkpoints.best_metric] if checkpoints.best_metric else []
        log_evaluation(
            step,
            metrics,
            [*first_metrics, *self._evaluator.known_metrics],
            self._shown_metrics,
            best_metric=checkpoints.best_metric if best.step == step else None,
        )


class SaveCheckpoint:
    """Saves a checkpoint when one is due, and ends the loop on preemption or early stopping."""

    def __init__(
        self,
        experiment: Experiment,
        checkpointer: Checkpointer,
        preemption: Preemption,
        history: EvaluationHistory,
        meter: TrainingMeter,
        base: Base | None = None,
    ):
        """Saves the complete state, or with a `base` what is trained of it and the base's name."""
        self._experiment, self._checkpointer, self._base = experiment, checkpointer, base
        self._preemption, self._history, self._meter = preemption, history, meter

    def __call__(self, step: int, state: State, position: int) -> StopReason | None:
        """Saves the state after `step` updates if a checkpoint is due.

        A checkpoint is due every `save_every` steps, after the last step, after every evaluation
        if `best_metric` is set, and when the process was asked to stop.

        Returns:
          "preempted" or "early_stopping" if training must end; None to go on.

        Raises:
          UserError: the checkpoint could not be written.
          TrainingHalted: the state has values that are not finite.
        """
        train, history = self._experiment.train, self._history
        # Called exactly once after every step: with several processes it is a collective call.
        stop_requested = self._preemption.should_stop()
        is_last_step, is_evaluated = step == train.steps, history.step == step
        if not (
            stop_requested
            or is_last_step
            or step % train.checkpoints.save_every == 0
            or (is_evaluated and train.checkpoints.best_metric)
        ):
            return None
        jax.block_until_ready(state)  # steps in flight are training time
        with self._meter.paused("save", step):
            self._check_finite(step, state)
            self._checkpointer.save(
                step,
                checkpointed_state(train.tuning, state),
                self._checkpoint_info(step, position),
                metrics=history.metrics if is_evaluated else None,
            )
        # Early stopping needs `best_metric`, so that every evaluated step comes here.
        stop_early = history.should_stop_early(train.checkpoints)
        # After its last step a run ends normally, even if it was asked to stop.
        if is_last_step or not (stop_requested or stop_early):
            return None
        with self._meter.paused("save", step):
            self._checkpointer.wait()
        if not stop_requested:
            if jax.process_index() == 0:
                logger.info(
                    "stopped early after step %d: %s did not improve in %d evaluations; the best "
                    "step is %s",
                    step,
                    train.checkpoints.best_metric,
                    history.best.evals_since_best,
                    history.best.step,
                )
            return "early_stopping"
        logger.info("%s step %d; run the same command to resume", SAVED_MESSAGE, step)
        return "preempted"

    def _check_finite(self, step: int, state: State) -> None:
        """Raises TrainingHalted on every process if the state has a value that is not finite."""
        if path := find_non_finite(state):
            raise TrainingHalted(
                f"training stopped: after step {step} the array {path} has NaN or infinite values, "
                f"so this state was not saved; "
                f"{restart_advice(self._checkpointer.latest_valid_step())}"
            )

    def _checkpoint_info(self, step: int, position: int) -> dict[str, Any]:
        return {
            "step": step,
            "position": position,
            # The config is in each checkpoint, because config.json may be lost or replaced.
            "config": to_json(self._experiment),
            "versions": run_folder.package_versions(),
            "hardware": hardware_info(),
            "metrics": dict(self._history.metrics),
            "best": asdict(self._history.best),
            **({} if self._base is None else {BASE: asdict(self._base)}),
        }


def make_hooks(
    experiment: Experiment,
    folder: Path,
    start_step: int,
    checkpointer: Checkpointer,
    watchdog: Watchdog,
    meter: TrainingMeter,
) -> list[Hook]:
    """Makes the hooks in order: log, check the loss, limit queued steps, notify the watchdog."""
    hooks: list[Hook] = []
    train, config = experiment.train, experiment.train.logging
    device_peak_flops = peak_flops(jax.devices())
    settings: dict[str, Any] = {
        "every": config.log_every,
        "resume_step": start_step,
        "peak_flops": device_peak_flops,
    }
    if jax.process_index() == 0:
        hooks.append(
            ProgressLine(
                log_every=config.log_every,
                pauses_left=functools.partial(pause_seconds_left, train, meter),
                peak_flops=device_peak_flops,
            )
        )
        hooks.append(MetricsLog(folder, **settings))
    if (name := config.track) is not None:
        # The other processes end as well if the tracker does not start.
        run_on_process_0(lambda: hooks.append(Track(name, folder, to_json(experiment), **settings)))
    # On every process, because each of them must stop when the loss diverges.
    hooks.append(SpikeGuard(every=config.log_every, last_good_step=checkpointer.latest_valid_step))
    # The watchdog comes last: it restarts its timer when all other hooks of the step are done.
    return [*hooks, LimitInFlightSteps(), watchdog]


def find_non_finite(state: Any) -> str | None:
    """Returns the name of the first array with NaN or infinite values, on every process, or None.

    The name is a path in the state, such as "params/pooler/kernel".
    """
    leaves = {
        path: leaf
        for path, leaf in by_path(state).items()
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)
    }
    # Every process has all of the result, because a reduction over all devices is replicated.
    are_finite = np.asarray(_are_finite(list(leaves.values())).addressable_data(0))
    return next((path for path, value in zip(leaves, are_finite, strict=True) if not value), None)


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> jax.Array:
    # One program: on CPU, many queued programs with collectives can block each other.
    return jax.numpy.stack([jax.numpy.isfinite(leaf).all() for leaf in leaves])
