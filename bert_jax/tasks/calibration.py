"""Fits the temperature of a classifier, and divides its logits by it (Guo et al. 2017).

A temperature changes probabilities, not their order, so the predicted class stays the same, except
where the probabilities of several windows of a text are averaged. In a loaded model the last layer
is divided by it, so that every format and reader has the calibrated probabilities without knowing
of it.
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
"""The temperature is searched from the inverse of this number to this number."""


@dataclass(frozen=True, kw_only=True)
class FittedHead:
    """Holds a head with what was chosen on dev after training.

    Attributes:
      head: the head, with thresholds if some were chosen.
      temperature: what divides the logits of the trained parameters; 1 without calibration.
    """

    head: TaskHead
    temperature: float = 1.0


def fit_temperature(mean_loss: Callable[[float], float]) -> float:
    """Returns the temperature with the lowest loss; 1 if there is no lowest one.

    There is none if every label is predicted right, where a smaller temperature is always better,
    or if the probabilities tell less than none, where a larger one is.

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
    """Returns the outputs of a head divided by a temperature, float64; unchanged for 1."""
    if temperature == 1:
        return outputs
    # In float64, because the loss changes by less than its rounding in float32 near the minimum.
    return {
        name: [each.astype(np.float64) / temperature for each in rows]
        for name, rows in outputs.items()
    }


def divide_last_layer(params: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """Returns the parameters of a model whose classifier gives logits divided by a temperature."""
    classifier = params["classifier"]
    layer = classifier.get("out_proj", classifier)
    divided = {name: np.asarray(leaf) / np.float32(temperature) for name, leaf in layer.items()}
    changed = {**classifier, "out_proj": divided} if "out_proj" in classifier else divided
    return {**params, "classifier": changed}
