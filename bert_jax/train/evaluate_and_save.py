"""What is due after a step besides watching: evaluate, save, and leave when asked to."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bert_jax.checkpoints.checkpointer import Checkpointer
from bert_jax.config_lib import to_json
from bert_jax.distributed.processes import log
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.hardware.host import hardware_info
from bert_jax.runs import run_folder
from bert_jax.runs.hooks import Hook
from bert_jax.runs.metrics import MetricsLog, TensorBoard
from bert_jax.train.loop import Meter
from bert_jax.train.preemption import SAVED_MESSAGE, Preemption
from bert_jax.train.sources.base import Evaluator
from bert_jax.train.step import State
from bert_jax.train.watchdog import Watchdog


class Preempted(Exception):
    """The run was asked to stop, and everything is saved."""


class EarlyStop(Exception):
    """Evaluations have not become better for long enough, and everything is saved."""


@dataclass(kw_only=True)
class BestEvaluation:
    """The best evaluation so far: its step, its value, and how many worse ones came after it."""

    step: int | None = None
    value: float | None = None
    evals_since_best: int = 0

    def update(self, step: int, value: float, mode: Literal["min", "max"]) -> None:
        """Takes one evaluation into account; one that is not finite is a worse one.

        Of equal ones the last is the best, as the checkpointer has it, but it is no better.
        """
        sign = 1 if mode == "max" else -1
        is_better = self.value is None or sign * value > sign * self.value
        self.evals_since_best = (
            0 if math.isfinite(value) and is_better else self.evals_since_best + 1
        )
        if math.isfinite(value) and (is_better or value == self.value):
            self.step, self.value = step, value


class EvalAndCheckpoint:
    """Called after every step of every phase; `evaluator` is set anew for each phase."""

    def __init__(
        self,
        experiment: Experiment,
        checkpointer: Checkpointer,
        preemption: Preemption,
        hooks: Sequence[Hook],
        meter: Meter,
        best: BestEvaluation,
        watchdog: Watchdog,
    ):
        self._experiment = experiment
        self._checkpointer = checkpointer
        self._preemption = preemption
        self._metric_logs = [hook for hook in hooks if isinstance(hook, (MetricsLog, TensorBoard))]
        self._meter = meter
        self._metrics: dict[str, float] = {}
        self._watchdog = watchdog
        self.best = best
        self.evaluator: Evaluator | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The last evaluation; empty before the first."""
        return dict(self._metrics)

    @property
    def should_stop_early(self) -> bool:
        """Whether `checkpoints.patience` evaluations in a row were not the best."""
        patience = self._experiment.train.checkpoints.early_stopping_patience
        return patience is not None and self.best.evals_since_best >= patience

    def __call__(self, step: int, state: State, position: int) -> None:
        """Evaluates, saves and leaves, in this order, where due after `step` updates.

        Raises:
          Preempted: asked to stop; saved.
          OutOfPatience: the run ends early; saved.
          UserError: the checkpoint could not be written.
        """
        train = self._experiment.train
        checkpoints = train.checkpoints
        stop_requested, is_last_step = self._preemption.should_stop(), step == train.steps
        should_evaluate = bool(
            self.evaluator
            and train.evaluation
            and (step % train.evaluation.eval_every == 0 or is_last_step)
        )
        should_save = (
            stop_requested
            or is_last_step
            or step % checkpoints.save_every == 0
            or (should_evaluate and checkpoints.best_metric)
        )
        if not (should_evaluate or should_save):
            return
        self._meter.pause()
        step_metrics = None  # a checkpoint is ranked by an evaluation of its own step alone
        if self.evaluator and should_evaluate:
            with self._watchdog.watching("evaluate", step):
                step_metrics = self._metrics = self.evaluator(state["params"])
            for logger in self._metric_logs:
                logger.write_evaluation(step, self._metrics)
            if checkpoints.best_metric:
                self.best.update(
                    step, self._metric_value(checkpoints.best_metric), checkpoints.best_mode
                )
        if should_save:
            with self._watchdog.watching("save", step):
                self._checkpointer.save(
                    step, state, self._checkpoint_info(position), metrics=step_metrics
                )
        if (stop_requested or self.should_stop_early) and not is_last_step:
            with self._watchdog.watching("save", step):
                self._checkpointer.wait()
            if not stop_requested:
                raise EarlyStop
            log(f"{SAVED_MESSAGE} step {step}; the same command goes on from there")
            raise Preempted
        self._meter.resume()

    def _metric_value(self, name: str) -> float:
        if name not in self._metrics:
            raise ConfigError(
                f"train.checkpoints.best_metric is {name!r}, which the evaluation does not "
                f"measure; it measures {', '.join(sorted(self._metrics))}"
            )
        return self._metrics[name]

    def _checkpoint_info(self, position: int) -> dict[str, Any]:
        return {
            "position": position,
            "config": to_json(self._experiment),
            "versions": run_folder.package_versions(),
            "hardware": hardware_info(),
            "metrics": self.metrics,
            "best": asdict(self.best),
        }
