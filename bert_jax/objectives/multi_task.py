"""Several tasks on one encoder: mixed batches, a head for each task, one loss.

The encoder alone is shared. A head has a pooler of its own where it reads one, so encoder and head
are a whole model of their task (`single_task`), to be evaluated, exported and used by itself. A
pooler has less than a hundredth of the parameters of an encoder.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.functional import Params
from bert_jax.models.heads.config import RegressionHead
from bert_jax.objectives.base import Batch, LossOutput
from bert_jax.objectives.config import MultiTask, UncertaintyWeighting, UniformWeighting
from bert_jax.objectives.fine_tuning import FineTuningObjective, encode
from bert_jax.objectives.pretraining_losses import padding_fraction
from bert_jax.objectives.weighted_mean import WeightedMean

HEADS, LOG_VARIANCE = "heads", "log_variance"


def task_params(params: Params, name: str) -> Params:
    """The parameters of a model of one task: those of the encoder and of the task's head."""
    head = {part: tree for part, tree in params[HEADS][name].items() if part != LOG_VARIANCE}
    return {"encoder": params["encoder"], **head}


class MultiTaskObjective:
    """The `Program` of a `MultiTask` config.

    The encoder reads a batch once, every head reads all of its rows, and a row counts for the task
    in its `task_ids` alone.

    Attributes:
      tasks: name -> the program of that task alone, for the parameters that `single_task` gives.
    """

    def __init__(self, config: MultiTask):
        self.config = config
        self.tasks = {
            name: FineTuningObjective(config.for_task(name)) for name in config.task_names
        }

    def abstract(self) -> Params:
        """Parameters as shapes and dtypes."""
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        return self._merge_tasks([task.abstract() for task in self.tasks.values()], scalar)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32."""
        keys = jax.random.split(key, len(self.tasks))
        per_task_params = [
            task.init(key) for task, key in zip(self.tasks.values(), keys, strict=True)
        ]
        return self._merge_tasks(per_task_params, jnp.float32(0))

    def _merge_tasks(self, per_task_params: Iterable[Params], log_variance: Any) -> Params:
        """{"encoder", "heads": {task: {"pooler", "classifier" or "span", "log_variance"}}}."""
        has_log_variance = isinstance(self.config.weighting, UncertaintyWeighting)
        heads, encoders = {}, []
        for name, params in zip(self.tasks, per_task_params, strict=True):
            heads[name] = {part: tree for part, tree in params.items() if part != "encoder"}
            heads[name] |= {LOG_VARIANCE: log_variance} if has_log_variance else {}
            encoders.append(params["encoder"])
        return {"encoder": encoders[0], HEADS: heads}

    def batch_fields(self) -> tuple[str, ...]:
        """Those of all tasks, and the numbers of the tasks."""
        fields = [field for task in self.tasks.values() for field in task.batch_fields()]
        return (*dict.fromkeys(fields), "task_ids")

    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """What makes the mean loss of each task's rows, times the share of its rows in the batch.

        A task without a row in the batch has a loss of 0.
        """
        num_examples = jnp.maximum(jnp.sum(batch["example_weights"]), 1.0)
        denominators = {"num_examples": num_examples}
        for task_id, (name, task) in enumerate(self.tasks.items()):
            task_batch = _mask_other_tasks(task_id, task, batch)
            num_task_examples = jnp.maximum(jnp.sum(task_batch["example_weights"]), 1.0)
            denominators[f"{name}/loss"] = task.loss_denominators(task_batch)["loss"] * (
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
        """The sum of the tasks' losses, as `weighting` has it, and each task's own metrics."""
        networks = {n: t.network.merge(task_params(params, n)) for n, t in self.tasks.items()}
        encoder_key = heads_key = None
        if dropout_key is not None:
            encoder_key, heads_key = jax.random.split(dropout_key)
        hidden = encode(networks[self.config.task_names[0]], batch, encoder_key)
        loss = jnp.float32(0)
        metrics: dict[str, WeightedMean] = {"padding_fraction": padding_fraction(batch)}
        for task_id, (name, task) in enumerate(self.tasks.items()):
            task_batch = _mask_other_tasks(task_id, task, batch)
            key = None if heads_key is None else jax.random.fold_in(heads_key, task_id)
            weighted_loss, task_metrics = task.head_loss(networks[name], hidden, task_batch, key)
            task_loss = weighted_loss.total / loss_denominators[f"{name}/loss"]
            match self.config.weighting:
                case UniformWeighting():
                    loss += task_loss
                case UncertaintyWeighting(lr_multiplier=lr_multiplier):
                    s = _scaled_log_variance(params[HEADS][name][LOG_VARIANCE], lr_multiplier)
                    scale = 0.5 if isinstance(task.config.head, RegressionHead) else 1.0
                    example_fraction = (
                        jnp.sum(task_batch["example_weights"]) / loss_denominators["num_examples"]
                    )
                    loss += scale * jnp.exp(-s) * task_loss + example_fraction * s / 2
                    task_metrics[LOG_VARIANCE] = WeightedMean(s, jnp.float32(1))
            metrics |= {f"{name}/{metric}": value for metric, value in task_metrics.items()}
        return LossOutput(loss, metrics)


def _mask_other_tasks(task_id: int, task: FineTuningObjective, batch: Batch) -> Batch:
    """The batch as a task sees it: rows of others have no weight, and no label it does not know."""
    in_task = batch["task_ids"] == task_id

    def zero_other_tasks(field: jax.Array) -> jax.Array:
        return jnp.where(
            in_task.reshape(-1, *(1,) * (field.ndim - 1)), field, jnp.zeros_like(field)
        )

    label_fields = set(task.batch_fields()) - set(task.input_fields())
    return {
        name: zero_other_tasks(field) if name in label_fields else field
        for name, field in batch.items()
    }


def _scaled_log_variance(parameter: jax.Array, lr_multiplier: float) -> jax.Array:
    """`rate` times the parameter, but with a gradient of 1.

    So an optimizer that scales gradients to the learning rate, as Adam does, moves the log-variance
    by `rate` times that, and a clipped gradient is not all log-variances.
    """
    return parameter + jax.lax.stop_gradient((lr_multiplier - 1) * parameter)
