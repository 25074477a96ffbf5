"""A split of a task, judged with given parameters: predictions of every example, and metrics."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.data.labelled.loader import Batch, evaluation_batches
from bert_jax.data.labelled.rows import Features
from bert_jax.data.labelled.task import Task
from bert_jax.evals import verdicts
from bert_jax.parallel.sharding import batch_sharding, put_batch, replicated
from bert_jax.programs.fine_tuning import FineTuningProgram


class Judged(NamedTuple):
    """What came of a split.

    Attributes:
      metrics: {} when the split has no labels.
      predictions: one JSON object for each example, in the split's order.
      decided: what `verdicts.decide` gives.
    """

    metrics: dict[str, float]
    predictions: list[dict[str, Any]]
    decided: Any


@functools.lru_cache(maxsize=16)
def _compiled(program: FineTuningProgram, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """One function for all splits of a task: a length that two of them have is compiled once."""
    # Every process gets all rows, and so the same metrics.
    return jax.jit(program.predict, out_shardings=replicated(mesh))


class TaskEvaluator:
    """Evaluates parameters on one split; compiles once for each length of its batches.

    Args:
      features: the split's rows; lengths: those that its batches may have, ascending.
      batch_size: rows of a batch over all hosts.
    """

    def __init__(
        self,
        program: FineTuningProgram,
        task: Task,
        split: str,
        features: Features,
        lengths: Sequence[int],
        *,
        batch_size: int,
        pad_id: int,
        mesh: jax.sharding.Mesh,
    ):
        self._task, self._examples, self._features = task, task.splits[split], features
        self._lengths, self._batch_size, self._pad_id = lengths, batch_size, pad_id
        self._sharding = batch_sharding(mesh)
        self._fields = (*program.input_fields(), *features.states)
        self._predict = _compiled(program, mesh)

    def __call__(self, params: Any) -> dict[str, float]:
        """The task's metrics."""
        return verdicts.metrics(self._task, self._examples, self._decided(params))

    def first(self, metrics: Mapping[str, float]) -> float:
        """The metric that the task reports first, as a share: those of questions are of 100."""
        value = metrics[self._task.metrics[0]]
        return value / 100 if self._task.kind == "question_answering" else value

    def judge(self, params: Any) -> Judged:
        """Metrics, where the split has labels, and the prediction of every example."""
        decided = self._decided(params)
        labelled = bool(self._features.targets)
        return Judged(
            verdicts.metrics(self._task, self._examples, decided) if labelled else {},
            verdicts.predictions(self._task, self._examples, decided),
            decided,
        )

    def _decided(self, params: Any) -> Any:
        outputs = self.outputs(params)
        return verdicts.decide(self._task, self._examples, self._features, outputs)

    def outputs(self, params: Any) -> dict[str, list[np.ndarray]]:
        """What the head says of each row, by the names of `program.predict`, padding cut off."""
        batches = evaluation_batches(
            self._features,
            self._lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        found = ((numbers, self._found(params, batch)) for numbers, batch in batches)
        return verdicts.gather(found, len(self._features))

    def _found(self, params: Any, batch: Batch) -> dict[str, np.ndarray]:
        fields = {name: batch[name] for name in self._fields}
        return jax.device_get(self._predict(params, put_batch(fields, self._sharding)))
