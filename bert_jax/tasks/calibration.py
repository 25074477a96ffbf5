"""Fits the temperature of a classifier, and divides its logits by it (Guo et al. 2017).

Dividing by a temperature changes the probabilities of an example but not their order, so the
predicted class stays the same, except where probabilities of windows are averaged. When a model is
loaded, its last layer is divided by the temperature, so every export format has the calibrated
probabilities without further code.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from bert_jax.models.heads.config import TaskHead
from bert_jax.tasks.base import SequenceOutputs

LARGEST_TEMPERATURE = 100.0
"""The temperature x is searched in [1 / LARGEST_TEMPERATURE, LARGEST_TEMPERATURE]."""


@dataclass(frozen=True, kw_only=True)
class FittedHead:
    """Holds a head with the values that were fitted on dev after training.

    Attributes:
      head: the head, with thresholds if some were chosen.
      temperature: the number that divides the trained logits; 1 if not calibrated.
    """

    head: TaskHead
    temperature: float = 1.0


def fit_temperature(mean_loss: Callable[[float], float]) -> float:
    """Returns the temperature that minimizes the loss; 1 if the loss has no minimum.

    It has none if every prediction is correct, so that it keeps falling toward temperature 0, or if
    the logits are no better than chance, so that it keeps falling as the temperature grows.

    Args:
      mean_loss: the negative log-likelihood of a labeled split as a function of the temperature.
    """
    limit = math.log(LARGEST_TEMPERATURE)
    found: Any = optimize.minimize_scalar(
        lambda log_temperature: mean_loss(math.exp(log_temperature)),
        bounds=(-limit, limit),
        method="bounded",
        options={"xatol": 1e-7},
    )
    if min(mean_loss(1 / LARGEST_TEMPERATURE), mean_loss(LARGEST_TEMPERATURE)) <= found.fun:
        return 1.0
    return math.exp(found.x)


def divide_outputs(outputs: SequenceOutputs, temperature: float) -> SequenceOutputs:
    """Divides the outputs of a head by a temperature, as float64; returns them unchanged for 1."""
    if temperature == 1:
        return outputs
    # float64: near the minimum, differences of the loss are below the precision of float32.
    return {
        name: [each.astype(np.float64) / temperature for each in rows]
        for name, rows in outputs.items()
    }


def divide_last_layer(params: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """Returns the parameters with the last layer of the classifier divided by a temperature."""
    classifier = params["classifier"]
    layer = classifier.get("out_proj", classifier)
    divided = {name: np.asarray(leaf) / np.float32(temperature) for name, leaf in layer.items()}
    changed = {**classifier, "out_proj": divided} if "out_proj" in classifier else divided
    return {**params, "classifier": changed}
