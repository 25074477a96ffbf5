"""What is due after a step besides watching: evaluate, save, and leave when asked to."""

from collections.abc import Sequence
from typing import Any

from bert_jax.config import to_json
from bert_jax.experiment import Experiment
from bert_jax.train import run_folder
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.heldout import HeldOut
from bert_jax.train.hooks import Hook
from bert_jax.train.loop import Clock
from bert_jax.train.metrics_log import MetricsLog, TensorBoard
from bert_jax.train.preemption import Preemption
from bert_jax.train.step import State


class Preempted(Exception):
    """The run was asked to stop, and everything is saved."""


class Milestones:
    """Called after every step of every phase; `heldout` is set anew for each phase."""

    def __init__(
        self,
        experiment: Experiment,
        checkpointer: Checkpointer,
        preemption: Preemption,
        hooks: Sequence[Hook],
        clock: Clock,
    ):
        self._experiment = experiment
        self._checkpointer = checkpointer
        self._preemption = preemption
        self._logs = [hook for hook in hooks if isinstance(hook, (MetricsLog, TensorBoard))]
        self._clock = clock
        self._metrics: dict[str, float] = {}
        self.heldout: HeldOut | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The last held-out evaluation; empty before the first."""
        return dict(self._metrics)

    def __call__(self, step: int, state: State, position: int) -> None:
        """Evaluates, saves and leaves, in this order, where due after `step` updates.

        Raises:
          Preempted: asked to stop; saved.
          UserError: the checkpoint could not be written.
        """
        train = self._experiment.train
        leaving, final = self._preemption.reached(step), step == train.steps
        evaluating = train.evaluation and (step % train.evaluation.every == 0 or final)
        saving = leaving or final or step % train.checkpoints.every == 0
        if not (evaluating or saving):
            return
        self._clock.pause()
        ranked = None  # a checkpoint is ranked by an evaluation of its own step alone
        if self.heldout and evaluating:
            ranked = self._metrics = self.heldout(state["params"])
            for log in self._logs:
                log.write_evaluation(step, self._metrics)
        if saving:
            self._checkpointer.save(step, state, self._info(position), metrics=ranked)
        if leaving and not final:
            self._checkpointer.wait()
            raise Preempted
        self._clock.go()

    def _info(self, position: int) -> dict[str, Any]:
        return {
            "position": position,
            "config": to_json(self._experiment),
            "versions": run_folder.versions(),
            "metrics": self.metrics,
        }
