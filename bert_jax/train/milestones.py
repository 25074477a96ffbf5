"""What is due after a step besides watching: evaluate, save, and leave when asked to."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bert_jax.config import to_json
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.train import run_folder
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.distributed import say
from bert_jax.train.hardware import hardware
from bert_jax.train.hooks import Hook
from bert_jax.train.loop import Meter
from bert_jax.train.metrics_log import MetricsLog, TensorBoard
from bert_jax.train.preemption import SAVED, Preemption
from bert_jax.train.source import Evaluator
from bert_jax.train.step import State
from bert_jax.train.watchdog import Watchdog


class Preempted(Exception):
    """The run was asked to stop, and everything is saved."""


class OutOfPatience(Exception):
    """Evaluations have not become better for long enough, and everything is saved."""


@dataclass(kw_only=True)
class Best:
    """The best evaluation so far: its step, its value, and how many worse ones came after it."""

    step: int | None = None
    value: float | None = None
    worse: int = 0

    def add(self, step: int, value: float, mode: Literal["min", "max"]) -> None:
        """Takes one evaluation into account; one that is not finite is a worse one.

        Of equal ones the last is the best, as the checkpointer has it, but it is no better.
        """
        sign = 1 if mode == "max" else -1
        better = self.value is None or sign * value > sign * self.value
        self.worse = 0 if math.isfinite(value) and better else self.worse + 1
        if math.isfinite(value) and (better or value == self.value):
            self.step, self.value = step, value


class Milestones:
    """Called after every step of every phase; `evaluator` is set anew for each phase."""

    def __init__(
        self,
        experiment: Experiment,
        checkpointer: Checkpointer,
        preemption: Preemption,
        hooks: Sequence[Hook],
        meter: Meter,
        best: Best,
        watchdog: Watchdog,
    ):
        self._experiment = experiment
        self._checkpointer = checkpointer
        self._preemption = preemption
        self._logs = [hook for hook in hooks if isinstance(hook, (MetricsLog, TensorBoard))]
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
    def out_of_patience(self) -> bool:
        """Whether `checkpoints.patience` evaluations in a row were not the best."""
        patience = self._experiment.train.checkpoints.patience
        return patience is not None and self.best.worse >= patience

    def __call__(self, step: int, state: State, position: int) -> None:
        """Evaluates, saves and leaves, in this order, where due after `step` updates.

        Raises:
          Preempted: asked to stop; saved.
          OutOfPatience: the run ends early; saved.
          UserError: the checkpoint could not be written.
        """
        train = self._experiment.train
        kept = train.checkpoints
        leaving, final = self._preemption.reached(), step == train.steps
        evaluating = bool(
            self.evaluator and train.evaluation and (step % train.evaluation.every == 0 or final)
        )
        saving = leaving or final or step % kept.every == 0 or (evaluating and kept.keep_best)
        if not (evaluating or saving):
            return
        self._meter.pause()
        ranked = None  # a checkpoint is ranked by an evaluation of its own step alone
        if self.evaluator and evaluating:
            with self._watchdog.doing("evaluate", step):
                ranked = self._metrics = self.evaluator(state["params"])
            for log in self._logs:
                log.write_evaluation(step, self._metrics)
            if kept.keep_best:
                self.best.add(step, self._value(kept.keep_best), kept.best_mode)
        if saving:
            with self._watchdog.doing("save", step):
                self._checkpointer.save(step, state, self._info(position), metrics=ranked)
        if (leaving or self.out_of_patience) and not final:
            with self._watchdog.doing("save", step):
                self._checkpointer.wait()
            if not leaving:
                raise OutOfPatience
            say(f"{SAVED} step {step}; the same command goes on from there")
            raise Preempted
        self._meter.go()

    def _value(self, name: str) -> float:
        if name not in self._metrics:
            raise ConfigError(
                f"train.checkpoints.keep_best is {name!r}, which the evaluation does not measure; "
                f"it measures {', '.join(sorted(self._metrics))}"
            )
        return self._metrics[name]

    def _info(self, position: int) -> dict[str, Any]:
        return {
            "position": position,
            "config": to_json(self._experiment),
            "versions": run_folder.versions(),
            "hardware": hardware(),
            "metrics": self.metrics,
            "best": asdict(self.best),
        }
