"""Evaluates parameters on one split of a task: predictions for every example, and metrics."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.data.finetuning.example import Task
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import Batch, evaluation_batches, gather_outputs
from bert_jax.models.heads.config import TaskHead
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.parallel.sharding import batch_sharding, put_batch, replicated
from bert_jax.params.functional import Params
from bert_jax.tasks.base import SequenceOutputs
from bert_jax.tasks.calibration import FittedHead, divide_outputs, fit_temperature
from bert_jax.tasks.metrics.classification import CALIBRATION_METRICS
from bert_jax.tasks.registry import compute_metrics, kind_of


class SplitResult(NamedTuple):
    """Holds the results of a split.

    Attributes:
      fitted: the head with which the outputs were decoded, and their temperature.
      metrics: {} if the split has no labels. With a temperature, also loss, Brier score and
        calibration error without it, as "loss_uncalibrated".
      prediction_records: one JSON object for each example, in the order of the split.
      predictions: the result of `TaskKind.decode`.
      uncalibrated: the same without the temperature; None if there is none.
    """

    fitted: FittedHead
    metrics: dict[str, float]
    prediction_records: list[dict[str, Any]]
    predictions: Any
    uncalibrated: Any


@functools.lru_cache(maxsize=16)
def _jitted_predict(objective: FineTuningObjective, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Compiles `predict` once for all splits of a task that have batches of the same length."""
    # Replicated outputs give every process all rows, so that all compute the same metrics.
    return jax.jit(objective.predict, out_shardings=replicated(mesh))


class TaskEvaluator:
    """Evaluates parameters on one split; compiles once for each batch length.

    Args:
      features: the sequences of the split.
      bucket_lengths: the lengths that a batch may have, ascending.
      batch_size: rows of a batch over all processes.
    """

    def __init__(
        self,
        objective: FineTuningObjective,
        task: Task,
        split: str,
        features: Features,
        bucket_lengths: Sequence[int],
        *,
        batch_size: int,
        pad_id: int,
        mesh: jax.sharding.Mesh,
    ):
        self._task, self._kind = task, kind_of(task)
        self._examples, self._features = task.splits[split], features
        self._bucket_lengths, self._batch_size, self._pad_id = bucket_lengths, batch_size, pad_id
        self._sharding = batch_sharding(mesh)
        self._fields = objective.input_fields()
        self._head = objective.config.head
        self._predict = _jitted_predict(objective, mesh)

    @property
    def known_metrics(self) -> Sequence[str]:
        """Returns the metrics that the task reports; `__call__` may give others."""
        return self._task.metrics

    def __call__(self, params: Params) -> dict[str, float]:
        """Computes the metrics of the split."""
        return self._metrics(self._decode(self.outputs(params), FittedHead(head=self._head)))

    def primary_metric(self, metrics: Mapping[str, float]) -> float:
        """Returns the first metric of the task, scaled so that the best value is 1."""
        # SQuAD's metrics are from 0 to 100 and those of other tasks from 0 to 1; a mean over
        # tasks needs one scale.
        return metrics[self._task.metrics[0]] / self._kind.metric_maximum

    def evaluate(
        self,
        params: Params,
        fitted: FittedHead,
        *,
        fit_head: bool = False,
        calibrate: bool = False,
        threshold_metric: str | None = None,
    ) -> SplitResult:
        """Predicts every example, and computes metrics if the split has labels.

        Args:
          fitted: the head of the objective, or what was fitted on another split.
          fit_head: whether to call `TaskKind.fit_head` with this split, if it has labels.
          calibrate: whether to fit a temperature before that.
          threshold_metric: the metric for which `fit_head` chooses the thresholds of two classes.
        """
        outputs = self.outputs(params)
        is_labeled = bool(self._features.targets)
        if fit_head and is_labeled:
            references = self._kind.get_references(self._examples, self._task.labels)
            if calibrate:
                fitted = self._with_temperature(outputs, fitted.head, references)
            predictions = self._decode(outputs, fitted)
            head = self._kind.fit_head(fitted.head, references, predictions, threshold_metric)
            fitted = FittedHead(head=head, temperature=fitted.temperature)
        predictions = self._decode(outputs, fitted)
        records = self._kind.predictions_to_json(self._examples, predictions, self._task.labels)
        metrics, uncalibrated = self._metrics(predictions) if is_labeled else {}, None
        if is_labeled and fitted.temperature != 1:
            uncalibrated = self._decode(outputs, FittedHead(head=fitted.head))
            before = self._metrics(uncalibrated)
            metrics |= {f"{n}_uncalibrated": before[n] for n in CALIBRATION_METRICS if n in before}
        return SplitResult(fitted, metrics, records, predictions, uncalibrated)

    def _with_temperature(
        self, outputs: SequenceOutputs, head: TaskHead, references: Any
    ) -> FittedHead:
        def mean_loss(temperature: float) -> float:
            fitted = FittedHead(head=head, temperature=temperature)
            return self._kind.mean_loss(references, self._decode(outputs, fitted))

        return FittedHead(head=head, temperature=fit_temperature(mean_loss))

    def outputs(self, params: Params) -> dict[str, list[np.ndarray]]:
        """Computes the head outputs of each sequence, by the names of `objective.predict`."""
        batches = evaluation_batches(
            self._features,
            self._bucket_lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        outputs = ((indices, self._predict_batch(params, batch)) for indices, batch in batches)
        return gather_outputs(outputs, len(self._features))

    def _predict_batch(self, params: Params, batch: Batch) -> dict[str, np.ndarray]:
        fields = {name: batch[name] for name in self._fields}
        return jax.device_get(self._predict(params, put_batch(fields, self._sharding)))

    def _decode(self, outputs: SequenceOutputs, fitted: FittedHead) -> Any:
        return self._kind.decode(
            self._examples,
            self._features,
            divide_outputs(outputs, fitted.temperature),
            fitted.head,
            allow_no_answer=self._kind.allows_no_answer(self._task),
        )

    def _metrics(self, predictions: Any) -> dict[str, float]:
        return compute_metrics(self._task, self._examples, predictions)
