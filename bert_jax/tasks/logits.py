"""Defines what kinds share whose head gives one logit for each class, or for each choice."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from bert_jax.data.finetuning.features import Features
from bert_jax.tasks.base import HeadOutputs
from bert_jax.tasks.descriptions import Json, as_dicts
from bert_jax.tasks.long_texts import pool_windows
from bert_jax.tasks.metrics import classification
from bert_jax.tasks.metrics.bootstrap import bootstrap_interval


class LogitsKind:
    """Implements a kind whose references are class ids int [n] and predictions logits [n, C]."""

    def decode(
        self,
        examples: Sequence[Any],
        features: Features,
        outputs: HeadOutputs,
        labels: Sequence[str],
        *,
        allow_no_answer: bool = False,
    ) -> np.ndarray:
        """Returns the logits, float [n, C]; those of several windows of a text are pooled."""
        return pool_windows(outputs, "logits", features)

    def resampled_interval(
        self,
        metric: str,
        references: np.ndarray,
        predictions: np.ndarray,
        *,
        n_resamples: int,
        seed: int,
    ) -> tuple[float, float]:
        """Bootstraps one metric."""
        arrays, score = classification.metric_for_resampling(
            metric, np.asarray(references), np.asarray(predictions, np.float64)
        )
        return bootstrap_interval(score, *arrays, n_resamples=n_resamples, seed=seed)

    def error_losses(self, references: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Returns float64 [n]: the cross-entropy of wrong predictions, 0 for correct ones."""
        logits = predictions.astype(np.float64)
        losses = -log_softmax(logits, axis=1)[np.arange(len(references)), references]
        return np.where(logits.argmax(axis=1) == references, 0.0, losses)


def calibration_table(references: np.ndarray, logits: np.ndarray) -> Json:
    """Returns {"error": expected calibration error, "bins": see `CalibrationBin`}."""
    bins = classification.calibration_bins(references, logits.astype(np.float64))
    error = sum(b.count * abs(b.accuracy - b.confidence) for b in bins) / len(references)
    return {"error": error, "bins": as_dicts(bins)}


def max_probability(logits: np.ndarray) -> float:
    """Returns the probability of the predicted class, from logits [C]."""
    return float(softmax(logits.astype(np.float64)).max())
