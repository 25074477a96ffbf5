"""Defines the multi-task objective: one encoder, a head for each task, and batches that mix tasks.

Only the encoder is shared. A head that reads the pooler has a pooler of its own, so the encoder and
one head are a complete model of their task (`task_params`), which can be evaluated, exported and
used by itself. A pooler has less than a hundredth of the parameters of an encoder.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config.objectives import MultiTask, UncertaintyWeighting, UniformWeighting
from bert_jax.losses import WeightedMean, padding_fraction
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.heads.config import TaskHead
from bert_jax.objectives.base import Batch, LossOutput, Objective, TrainedModel
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params.functional import Params
from bert_jax.params.paths import ADAPTER

HEADS, LOG_VARIANCE = "heads", "log_variance"
EXAMPLE_FRACTION = "example_fraction"
"""Metric of each task: the fraction of the examples of a batch that belong to it."""
SHARED = ("encoder", ADAPTER)
"""Names of what all tasks share; there is an adapter only if the run trains one."""


def task_params(params: Params, name: str) -> Params:
    """Returns the parameters of the model of one task: encoder, adapter if any, and its head."""
    head = {part: tree for part, tree in params[HEADS][name].items() if part != LOG_VARIANCE}
    shared = {part: params[part] for part in SHARED if part in params}
    return {**shared, **head}


# All tasks share a batch, so that the step is compiled once for each length. Each head reads all
# examples, and examples of other tasks have weight 0. Each head has a pooler of its own, so that
# one task can be taken out as a complete model.
class MultiTaskObjective(Objective):
    """Implements the `Objective` of a `MultiTask` config.

    The encoder runs once for a batch, and every head is applied to all of its examples. An example
    only counts in the loss of the task in its `task_ids`.

    Attributes:
      tasks: name -> the objective of that task alone, for the parameters of `task_params`.
    """

    has_tasks = True

    def __init__(self, config: MultiTask, adapter: Adapter | None = None):
        self.config: MultiTask = config
        self.tasks = {
            name: FineTuningObjective(config.for_task(name), adapter) for name in config.task_names
        }

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        return self._merge_tasks([task.abstract() for task in self.tasks.values()], scalar)

    def init(self, key: jax.Array) -> Params:
        """Initializes new parameters, float32."""
        keys = jax.random.split(key, len(self.tasks))
        per_task_params = [
            task.init(key) for task, key in zip(self.tasks.values(), keys, strict=True)
        ]
        return self._merge_tasks(per_task_params, jnp.float32(0))

    def _merge_tasks(self, per_task_params: Iterable[Params], log_variance: Any) -> Params:
        """Returns {"encoder", "heads": {task: {"pooler", "classifier"/"span", "log_variance"}}}."""
        has_log_variance = isinstance(self.config.weighting, UncertaintyWeighting)
        heads, shared = {}, []
        for name, params in zip(self.tasks, per_task_params, strict=True):
            # A pooler for each task, so that the parameters of one task are a complete model,
            # which is all that evaluation, prediction and export know.
            heads[name] = {part: tree for part, tree in params.items() if part not in SHARED}
            heads[name] |= {LOG_VARIANCE: log_variance} if has_log_variance else {}
            shared.append({part: params[part] for part in SHARED if part in params})
        return {**shared[0], HEADS: heads}

    def batch_fields(self) -> tuple[str, ...]:
        """Returns the batch fields of all tasks, and the task ids."""
        fields = [field for task in self.tasks.values() for field in task.batch_fields()]
        return (*dict.fromkeys(fields), "task_ids")

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns what divides each task's summed loss.

        The result of the division is the mean loss of the task, times the fraction of the batch's
        examples that belong to it; 0 for a task without examples in the batch.
        """
        num_examples = jnp.maximum(jnp.sum(batch["example_weights"]), 1.0)
        denominators = {"num_examples": num_examples}
        for task_id, (name, task) in enumerate(self.tasks.items()):
            task_batch = _mask_other_tasks(task_id, task, batch)
            num_task_examples = jnp.maximum(jnp.sum(task_batch["example_weights"]), 1.0)
            denominators[f"{name}/loss"] = task.loss_denominators(task_batch)["loss"] * (
                # So all examples have the same weight, and a task's weight is its sampling rate.
                num_examples / num_task_examples
            )
        return denominators

    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the sum of the tasks' losses, weighted by `weighting`, and all metrics."""
        networks = {n: t.network.merge(task_params(params, n)) for n, t in self.tasks.items()}
        encoder_key = heads_key = None
        if dropout_key is not None:
            encoder_key, heads_key = jax.random.split(dropout_key)
        # Any of the networks: all of them have the same encoder, which is computed once for all
        # tasks.
        hidden = networks[self.config.task_names[0]].encode(batch, encoder_key).last_hidden_state
        loss = jnp.float32(0)
        metrics: dict[str, WeightedMean] = {"padding_fraction": padding_fraction(batch)}
        for task_id, (name, task) in enumerate(self.tasks.items()):
            task_batch = _mask_other_tasks(task_id, task, batch)
            key = None if heads_key is None else jax.random.fold_in(heads_key, task_id)
            weighted_loss, task_metrics = task.head_loss(networks[name], hidden, task_batch, key)
            task_loss = weighted_loss.total / loss_denominators[f"{name}/loss"]
            task_metrics[EXAMPLE_FRACTION] = WeightedMean(
                jnp.sum(task_batch["example_weights"]), jnp.sum(batch["example_weights"])
            )
            match self.config.weighting:
                case UniformWeighting():
                    loss += task_loss
                case UncertaintyWeighting(lr_multiplier=lr_multiplier):
                    s = _scaled_log_variance(params[HEADS][name][LOG_VARIANCE], lr_multiplier)
                    scale = task.spec.uncertainty_scale
                    example_fraction = (
                        jnp.sum(task_batch["example_weights"]) / loss_denominators["num_examples"]
                    )
                    # Kendall et al. 2018 learn log(sigma^2), here s, because it is stable and
                    # needs no division. The penalty counts by examples, so a task without
                    # examples in the batch moves nothing.
                    loss += scale * jnp.exp(-s) * task_loss + example_fraction * s / 2
                    task_metrics[LOG_VARIANCE] = WeightedMean(s, jnp.float32(1))
            metrics |= {f"{name}/{metric}": value for metric, value in task_metrics.items()}
        return LossOutput(loss, metrics)

    def pretrained_path(self, path: str, head: TaskHead | None) -> str | None:
        """Returns the path in a model of one task, where a head is at the root."""
        if not path.startswith(f"{HEADS}/"):
            return path
        _, name, single_task_path = path.split("/", 2)
        return self.tasks[name].pretrained_path(single_task_path, head)

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the encoder with the head of one task, or the encoder and the names of tasks."""
        if task is None:
            return TrainedModel(params={"encoder": params["encoder"]}, tasks=self.config.task_names)
        head = self.config.for_task(task).head
        return TrainedModel(params=task_params(params, task), head=head)


def _mask_other_tasks(task_id: int, task: FineTuningObjective, batch: Batch) -> Batch:
    """Returns the batch of one task: examples of other tasks have weight 0 and label 0.

    Their labels are cleared because a class id of another task may be out of range here.
    """
    in_task = batch["task_ids"] == task_id

    def zero_other_tasks(field: jax.Array) -> jax.Array:
        return jnp.where(
            in_task.reshape(-1, *(1,) * (field.ndim - 1)), field, jnp.zeros_like(field)
        )

    masked_fields = {*task.spec.label_fields, "example_weights"}
    return {
        name: zero_other_tasks(field) if name in masked_fields else field
        for name, field in batch.items()
    }


def _scaled_log_variance(parameter: jax.Array, lr_multiplier: float) -> jax.Array:
    """Returns `lr_multiplier` times the parameter, but with a gradient of 1.

    An optimizer that normalizes gradients, as Adam does, then moves the log-variance by
    `lr_multiplier` times the learning rate, and gradient clipping is not dominated by it.
    """
    return parameter + jax.lax.stop_gradient((lr_multiplier - 1) * parameter)
