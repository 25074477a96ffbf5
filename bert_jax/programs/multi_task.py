"""Several tasks on one encoder: mixed batches, a head for each task, one loss.

The encoder alone is shared. A head has a pooler of its own where it reads one, so encoder and head
are a whole model of their task (`single_task`), to be evaluated, exported and used by itself. A
pooler has less than a hundredth of the parameters of an encoder.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.config import RegressionHead
from bert_jax.nn import Params
from bert_jax.objectives.mean import Mean
from bert_jax.objectives.pretraining import padding_share
from bert_jax.programs.config import MultiTask, RowsAlike, Uncertainty
from bert_jax.programs.fine_tuning import FineTuningProgram
from bert_jax.programs.program import Batch, Losses

HEADS, LOG_VARIANCE = "heads", "log_variance"


def single_task(params: Params, name: str) -> Params:
    """The parameters of a model of one task: those of the encoder and of the task's head."""
    head = {part: tree for part, tree in params[HEADS][name].items() if part != LOG_VARIANCE}
    return {"encoder": params["encoder"], **head}


class MultiTaskProgram:
    """The `Program` of a `MultiTask` config.

    The encoder reads a batch once, every head reads all of its rows, and a row counts for the task
    in its `task_ids` alone.

    Attributes:
      tasks: name -> the program of that task alone, for the parameters that `single_task` gives.
    """

    def __init__(self, config: MultiTask):
        self.config = config
        self.tasks = {name: FineTuningProgram(config.single(name)) for name in config.names}

    def abstract(self) -> Params:
        """Parameters as shapes and dtypes."""
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        return self._together([task.abstract() for task in self.tasks.values()], scalar)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters, float32."""
        keys = jax.random.split(key, len(self.tasks))
        drawn = [task.init(key) for task, key in zip(self.tasks.values(), keys, strict=True)]
        return self._together(drawn, jnp.float32(0))

    def _together(self, alone: Iterable[Params], log_variance: Any) -> Params:
        """{"encoder", "heads": {task: {"pooler", "classifier" or "span", "log_variance"}}}."""
        learned = isinstance(self.config.weighting, Uncertainty)
        heads, encoders = {}, []
        for name, params in zip(self.tasks, alone, strict=True):
            heads[name] = {part: tree for part, tree in params.items() if part != "encoder"}
            heads[name] |= {LOG_VARIANCE: log_variance} if learned else {}
            encoders.append(params["encoder"])
        return {"encoder": encoders[0], HEADS: heads}

    def fields(self) -> tuple[str, ...]:
        """Those of all tasks, and the numbers of the tasks."""
        fields = [field for task in self.tasks.values() for field in task.fields()]
        return (*dict.fromkeys(fields), "task_ids")

    def normalisers(self, batch: Batch) -> dict[str, jax.Array]:
        """What makes the mean loss of each task's rows, times the share of its rows in the batch.

        A task without a row in the batch has a loss of 0.
        """
        rows = jnp.maximum(jnp.sum(batch["example_weights"]), 1.0)
        norms = {"rows": rows}
        for number, (name, task) in enumerate(self.tasks.items()):
            own = _rows_of(number, task, batch)
            count = jnp.maximum(jnp.sum(own["example_weights"]), 1.0)
            norms[f"{name}/loss"] = task.normalisers(own)["loss"] * (rows / count)
        return norms

    def losses(
        self,
        params: Params,
        batch: Batch,
        normalisers: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> Losses:
        """The sum of the tasks' losses, as `weighting` has it, and each task's own metrics."""
        networks = {n: t.network.bind(single_task(params, n)) for n, t in self.tasks.items()}
        encoder_key = heads_key = None
        if dropout_key is not None:
            encoder_key, heads_key = jax.random.split(dropout_key)
        hidden = networks[self.config.names[0]].encode(batch, encoder_key)
        loss = jnp.float32(0)
        metrics: dict[str, Mean] = {"padding_share": padding_share(batch)}
        for number, (name, task) in enumerate(self.tasks.items()):
            own = _rows_of(number, task, batch)
            key = None if heads_key is None else jax.random.fold_in(heads_key, number)
            part, found = task.head_loss(networks[name], hidden, own, key)
            share = part.total / normalisers[f"{name}/loss"]
            match self.config.weighting:
                case RowsAlike():
                    loss += share
                case Uncertainty(rate=rate):
                    s = _log_variance(params[HEADS][name][LOG_VARIANCE], rate)
                    scale = 0.5 if isinstance(task.config.head, RegressionHead) else 1.0
                    rows = jnp.sum(own["example_weights"]) / normalisers["rows"]
                    loss += scale * jnp.exp(-s) * share + rows * s / 2
                    found[LOG_VARIANCE] = Mean(s, jnp.float32(1))
            metrics |= {f"{name}/{metric}": mean for metric, mean in found.items()}
        return Losses(loss, metrics)


def _rows_of(number: int, task: FineTuningProgram, batch: Batch) -> Batch:
    """The batch as a task sees it: rows of others have no weight, and no label it does not know."""
    mine = batch["task_ids"] == number

    def only(field: jax.Array) -> jax.Array:
        return jnp.where(mine.reshape(-1, *(1,) * (field.ndim - 1)), field, jnp.zeros_like(field))

    labels = set(task.fields()) - set(task.input_fields())
    return {name: only(field) if name in labels else field for name, field in batch.items()}


def _log_variance(parameter: jax.Array, rate: float) -> jax.Array:
    """`rate` times the parameter, but with a gradient of 1.

    So an optimizer that scales gradients to the learning rate, as Adam does, moves the log-variance
    by `rate` times that, and a clipped gradient is not all log-variances.
    """
    return parameter + jax.lax.stop_gradient((rate - 1) * parameter)
