"""Defines the configs of optimizers and of learning-rate schedules. Imports no jax."""

import math
from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Configures Adam with decoupled weight decay; BERT's own Adam has no bias correction."""

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True

    def __post_init__(self) -> None:
        _check_moments(self)


@dataclass(frozen=True, kw_only=True)
class Lamb:
    """Configures LAMB (You et al. 2020): AdamW with updates scaled by a trust ratio per parameter.

    Used for large batches.
    """

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_moments(self)


@dataclass(frozen=True, kw_only=True)
class StableAdamW:
    """Configures AdamW with update clipping (Wortsman et al. 2023, algorithm 2), as for ModernBERT.

    The update of a parameter is divided by RMS(gradient / sqrt(second moment)), the root mean
    square over its elements, if that is above 1. This replaces the clipping of gradients: set
    `max_grad_norm` to None.
    """

    b1: float = 0.9
    b2: float = 0.99
    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_moments(self)


@dataclass(frozen=True, kw_only=True)
class Adafactor:
    """Configures Adafactor (Shazeer and Stern 2018) as for T5: factored moments, no momentum.

    The update of a parameter is divided by its root mean square if that is above
    `clipping_threshold`, and multiplied by the root mean square of the parameter. There is no
    weight decay. Set `max_grad_norm` to None.
    """

    decay_rate: float = 0.8  # second moments decay by 1 - (number of the update) ** -decay_rate
    clipping_threshold: float = 1.0
    min_dim_size_to_factor: int = 128  # smaller matrices have one moment for each element

    def __post_init__(self) -> None:
        check_range("train.optimizer.decay_rate", self.decay_rate, above=0, below=1)
        name = "train.optimizer.clipping_threshold"
        check_range(name, self.clipping_threshold, above=0)
        name = "train.optimizer.min_dim_size_to_factor"
        check_range(name, self.min_dim_size_to_factor, at_least=1)


Optimizer = AdamW | Lamb | StableAdamW | Adafactor


def _check_moments(optimizer: AdamW | Lamb | StableAdamW) -> None:
    for name in ("b1", "b2"):
        check_range(f"train.optimizer.{name}", getattr(optimizer, name), at_least=0, below=1)
    check_range("train.optimizer.epsilon", optimizer.epsilon, at_least=0)
    check_range("train.optimizer.weight_decay", optimizer.weight_decay, at_least=0)


@dataclass(frozen=True, kw_only=True)
class WarmupLinear:
    """Configures a learning rate that rises linearly for `warmup_steps` and then decays to 0."""

    peak_learning_rate: float = 1e-4
    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        _check_schedule(self)


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Configures a learning rate that rises linearly, stays at its peak, and decays at the end.

    In the last `decay_steps` it is the peak times 1 - sqrt(fraction of these steps), which ends at
    0 (Hägele et al. 2024). A run without decay can be continued, with or without decay.
    """

    peak_learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    decay_steps: int = 0

    def __post_init__(self) -> None:
        _check_schedule(self)
        check_range("train.schedule.decay_steps", self.decay_steps, at_least=0)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot:
    """Configures the rate scale / sqrt(max(step, warmup_steps)), as for T5 (Raffel et al. 2020).

    The step counts from 0. The rate is constant in the first `warmup_steps`, and does not depend on
    the number of steps of the run.
    """

    scale: float = 1.0
    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        check_range("train.schedule.scale", self.scale, above=0)
        check_range("train.schedule.warmup_steps", self.warmup_steps, at_least=1)


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    """Configures a constant learning rate, as for the fine-tuning of T5."""

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        check_range("train.schedule.learning_rate", self.learning_rate, above=0)


Schedule = WarmupLinear | WarmupStableDecay | InverseSquareRoot | ConstantRate


def _check_schedule(schedule: WarmupLinear | WarmupStableDecay) -> None:
    peak = schedule.peak_learning_rate
    if schedule.warmup_steps < 0 or not (math.isfinite(peak) and peak > 0):
        raise ConfigError(
            f"train.schedule has peak_learning_rate {peak} and warmup_steps "
            f"{schedule.warmup_steps}; expected peak_learning_rate > 0 and warmup_steps >= 0"
        )
