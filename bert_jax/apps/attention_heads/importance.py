"""Measures how much a task needs each attention head (Michel et al. 2019).

A head is masked by scaling its rows of the output projection of its layer, so that one compiled
program computes the model with any set of heads.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.objectives import FineTuning
from bert_jax.data.finetuning.example import Task
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import evaluation_batches, with_doubles
from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import task_parts
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.batches import compute_features, next_power_of_two, params_to_device
from bert_jax.predict.checks import check_fits_model
from bert_jax.predict.task_processor import TaskProcessor
from bert_jax.pretrained.load import AnyModel, require_encoder, require_no_adapter
from bert_jax.tasks.registry import compute_metrics

_CURVE_POINTS = 10


class HeadImportance(NamedTuple):
    """Holds the importance of N layers with H heads for a task.

    Attributes:
      metric: the name of the first metric of the task.
      value: the metric with all heads.
      gradient: float64 [N, H], the mean over examples of |d loss / d mask|, divided by the norm of
        its layer.
      ablation: float64 [N, H], `value` minus the metric without this head.
      curves: order in which heads are removed -> (number of removed heads, metric).
    """

    metric: str
    value: float
    gradient: np.ndarray
    ablation: np.ndarray
    curves: dict[str, list[tuple[int, float]]]


def head_importance(
    model: AnyModel,
    task: Task,
    split: str,
    *,
    limit: int | None = None,
    batch_size: int = 32,
    on_progress: Callable[[int], object] = lambda num_evaluations: None,
) -> HeadImportance:
    """Measures the importance of all heads for a labeled split of a task.

    Gradients are of the examples of the split "train" if the task has it, so that a curve is not
    measured on the examples that chose its order; else of `split`. "ablation" orders heads by
    their effect on `split` itself. "random" is one random order, to compare with.

    Args:
      limit: the number of examples of a split to read from the beginning; None for all.
      on_progress: called with 1 after each evaluation of the split, of which there are
        `num_evaluations`.

    Raises:
      ConfigError, UserError: the model does not fit the task, or its layers share their parameters.
    """
    splits = {name: examples[:limit] for name, examples in task.splits.items()}
    masked = MaskedModel(model, dataclasses.replace(task, splits=splits), batch_size)
    ordered_by = "train" if "train" in splits else split
    gradient = masked.gradient_importance(ordered_by)
    evaluate = masked.evaluator(split)

    def metric(mask: np.ndarray) -> float:
        value = evaluate(mask)
        on_progress(1)
        return value

    everything = np.ones(gradient.shape, np.float32)
    value = metric(everything)
    ablation = np.zeros(gradient.shape)
    for layer, head in np.ndindex(*gradient.shape):
        mask = everything.copy()
        mask[layer, head] = 0
        ablation[layer, head] = value - metric(mask)
    orders = {
        "gradient": gradient.ravel().argsort(kind="stable"),
        "ablation": ablation.ravel().argsort(kind="stable"),
        "random": np.random.default_rng(0).permutation(gradient.size),
    }
    curves: dict[str, list[tuple[int, float]]] = {}
    for name, order in orders.items():
        curves[name] = [(0, value)]
        for count in _removed_counts(gradient.size):
            mask = everything.copy()
            mask.ravel()[order[:count]] = 0
            curves[name].append((count, metric(mask)))
    return HeadImportance(masked.metric_name, value, gradient, ablation, curves)


def num_evaluations(config: EncoderConfig) -> int:
    """Returns how often `head_importance` evaluates the split."""
    num_heads = config.num_applied_layers * config.num_attention_heads
    return 1 + num_heads + 3 * len(_removed_counts(num_heads))


def _removed_counts(num_heads: int) -> list[int]:
    """Returns the numbers of removed heads of a curve: tenths, up to all heads."""
    tenths = {round(num_heads * step / _CURVE_POINTS) for step in range(1, _CURVE_POINTS + 1)}
    return sorted(tenths - {0})


def mask_heads(params: Mapping[str, Any], mask_NH: jax.Array) -> dict[str, Any]:
    """Returns parameters in which the output of each head is multiplied by its mask.

    The context vectors of the heads are the input of the output projection of a layer, so scaling
    K rows of its kernel scales a head. The bias belongs to no head.
    """
    num_heads = mask_NH.shape[1]
    layers: dict[str, Any] = {}
    for name, layer in params["encoder"]["layers"].items():
        attention = layer["attention"]
        kernel = attention["output"]["kernel"]
        scale = jnp.repeat(mask_NH[int(name)], kernel.shape[0] // num_heads)[:, None]
        output = {**attention["output"], "kernel": kernel * scale.astype(kernel.dtype)}
        layers[name] = {**layer, "attention": {**attention, "output": output}}
    return {**params, "encoder": {**params["encoder"], "layers": layers}}


class MaskedModel:
    """Computes metrics and gradients of a fine-tuned model with masked heads."""

    def __init__(self, model: AnyModel, task: Task, batch_size: int):
        """Copies the parameters to the device.

        Raises:
          UserError: the model has no head or no tokenizer, an adapter that cannot be merged, or
            layers that share their parameters.
        """
        encoder = require_encoder(model, "measure its attention heads")
        require_no_adapter(encoder, "measure its attention heads")
        if "layers" not in encoder.params["encoder"]:
            raise UserError(
                f"{encoder.path} is a model of {type(encoder.config).__name__}, whose layers share "
                "their parameters, so that a head of one layer cannot be masked; use another family"
            )
        self._processor = TaskProcessor(encoder)
        self._task, self._path, head = task, encoder.path, self._processor.head
        self.metric_name, self._batch_size = task.metrics[0], batch_size
        self._shape = (encoder.config.num_applied_layers, encoder.config.num_attention_heads)
        # In float32, whatever the run computed in.
        self._objective = FineTuningObjective(FineTuning(model=encoder.config, head=head))
        self._params = params_to_device(encoder, ("encoder", *task_parts(head, encoder.config)))
        max_length = self._processor.max_length
        lengths = with_doubles(self._processor.settings.bucket_lengths, max_length)
        self._lengths = (*lengths, max_length)

    def gradient_importance(self, split: str) -> np.ndarray:
        """Returns the mean over examples of |d loss / d mask|, float64 [N, H].

        The values of a layer are divided by their norm, as in the paper.
        """
        objective, features = self._objective, self._features(split)

        def loss(mask: jax.Array, params: Mapping[str, Any], batch: dict[str, jax.Array]) -> Any:
            masked = mask_heads(params, mask)
            denominators = objective.loss_denominators(batch)
            return objective.compute_loss(masked, batch, denominators, None).loss

        @jax.jit
        def total(params: Mapping[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
            def of_example(example: dict[str, jax.Array]) -> jax.Array:
                row = {name: field[None] for name, field in example.items()}
                gradient = jax.grad(loss)(jnp.ones(self._shape), params, row)
                return jnp.abs(gradient) * example["example_weights"]

            # One example at a time: the absolute value is taken before the mean.
            return jax.lax.map(of_example, batch).sum(0)

        importance, count = np.zeros(self._shape), 0
        batches = evaluation_batches(
            features,
            self._lengths,
            batch_size=min(self._batch_size, next_power_of_two(len(features))),
            pad_id=self._processor.tokenizer.pad_id,
        )
        for indices, batch in batches:
            fields = {name: batch[name] for name in objective.batch_fields()}
            importance += np.asarray(total(self._params, fields), np.float64)
            count += len(indices)
        importance /= count
        norms = np.linalg.norm(importance, axis=1, keepdims=True)
        return importance / np.where(norms > 0, norms, 1.0)

    def evaluator(self, split: str) -> Callable[[np.ndarray], float]:
        """Returns the first metric of a split as a function of the mask, float32 [N, H]."""
        features, examples = self._features(split), self._task.splits[split]
        objective, processor = self._objective, self._processor
        own_task = dataclasses.replace(self._task, labels=processor.labels)

        @jax.jit
        def predict(params: Mapping[str, Any], mask: jax.Array, batch: Any) -> Any:
            return objective.predict(mask_heads(params, mask), batch)

        def metric(mask: np.ndarray) -> float:
            outputs = compute_features(
                features,
                functools.partial(predict, self._params, mask),
                objective.input_fields(),
                bucket_lengths=self._lengths,
                batch_size=self._batch_size,
                pad_id=processor.tokenizer.pad_id,
            )
            predictions = processor.decode(examples, features, outputs)
            return compute_metrics(own_task, examples, predictions)[self.metric_name]

        return metric

    def _features(self, split: str) -> Features:
        processor = self._processor
        check_fits_model(self._task, split, processor.kind, processor.labels, self._path)
        examples: Sequence[Any] = self._task.splits[split]
        return processor.make_features(tuple(examples))
