"""A split of a task, judged with given parameters: predictions of every example, and metrics."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.data.finetuning.loader import Batch, evaluation_batches
from bert_jax.data.finetuning.rows import Features
from bert_jax.data.finetuning.task import Task
from bert_jax.evals import decode_predictions
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.parallel.sharding import batch_sharding, put_batch, replicated


class SplitResult(NamedTuple):
    """What came of a split.

    Attributes:
      metrics: {} when the split has no labels.
      predictions: one JSON object for each example, in the split's order.
      decided: what `verdicts.decide` gives.
    """

    metrics: dict[str, float]
    prediction_records: list[dict[str, Any]]
    predictions: Any


@functools.lru_cache(maxsize=16)
def _jitted_predict(objective: FineTuningObjective, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """One function for all splits of a task: a length that two of them have is compiled once."""
    # Every process gets all rows, and so the same metrics.
    return jax.jit(objective.predict, out_shardings=replicated(mesh))


class TaskEvaluator:
    """Evaluates parameters on one split; compiles once for each length of its batches.

    Args:
      features: the split's rows; lengths: those that its batches may have, ascending.
      batch_size: rows of a batch over all hosts.
    """

    def __init__(
        self,
        objective: FineTuningObjective,
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
        self._fields = (*objective.input_fields(), *features.encoder_features)
        self._predict = _jitted_predict(objective, mesh)

    def __call__(self, params: Any) -> dict[str, float]:
        """The task's metrics."""
        return decode_predictions.compute_metrics(self._task, self._examples, self._decode(params))

    def primary_metric(self, metrics: Mapping[str, float]) -> float:
        """The metric that the task reports first, as a share: those of questions are of 100."""
        value = metrics[self._task.metrics[0]]
        return value / 100 if self._task.kind == "question_answering" else value

    def evaluate(self, params: Any) -> SplitResult:
        """Metrics, where the split has labels, and the prediction of every example."""
        predictions = self._decode(params)
        is_labeled = bool(self._features.targets)
        return SplitResult(
            decode_predictions.compute_metrics(self._task, self._examples, predictions)
            if is_labeled
            else {},
            decode_predictions.predictions_to_json(self._task, self._examples, predictions),
            predictions,
        )

    def _decode(self, params: Any) -> Any:
        outputs = self.outputs(params)
        return decode_predictions.decode(self._task, self._examples, self._features, outputs)

    def outputs(self, params: Any) -> dict[str, list[np.ndarray]]:
        """What the head says of each row, by the names of `program.predict`, padding cut off."""
        batches = evaluation_batches(
            self._features,
            self._lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        batch_outputs = (
            (sequence_indices, self._predict_batch(params, batch))
            for sequence_indices, batch in batches
        )
        return decode_predictions.gather_outputs(batch_outputs, len(self._features))

    def _predict_batch(self, params: Any, batch: Batch) -> dict[str, np.ndarray]:
        fields = {name: batch[name] for name in self._fields}
        return jax.device_get(self._predict(params, put_batch(fields, self._sharding)))
