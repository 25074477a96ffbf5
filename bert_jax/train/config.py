"""Defines the training config: phases, checkpoints, evaluation, logging; see optimizer_config.py.

Imports no jax.
"""

from dataclasses import dataclass
from typing import Literal

from bert_jax.data.config import Masking, MaskingConfig
from bert_jax.data.pretraining.denoising.config import Denoising
from bert_jax.errors import ConfigError, check_range
from bert_jax.train.optimizer_config import (
    Adafactor,
    AdamW,
    ConstantRate,
    InverseSquareRoot,
    Lamb,
    Optimizer,
    Schedule,
    StableAdamW,
    WarmupLinear,
    WarmupStableDecay,
)
from bert_jax.tuning.config import TuningConfig

__all__ = [
    "Adafactor",
    "AdamW",
    "CheckpointConfig",
    "ConstantRate",
    "HeldOutEval",
    "InverseSquareRoot",
    "LabeledEval",
    "Lamb",
    "LoggingConfig",
    "Optimizer",
    "Phase",
    "Schedule",
    "StableAdamW",
    "TrainConfig",
    "WarmupLinear",
    "WarmupStableDecay",
]

LARGEST_BATCH_SIZE = 2**19
"""A larger batch is a mistake, which is refused before memory runs out."""
LARGEST_NUM_STEPS = 2**31 - 1
"""Updates are counted in int32."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Configures consecutive steps of a run with one sequence length and one batch size.

    Attributes:
      batch_size: examples for one update, over all devices.
      max_predictions_per_seq: masked positions of a sequence; 0 for data without masked LM.
      target_length: tokens that the decoder predicts; 0 for models without a decoder.
      gradient_accumulation_steps: microbatches whose gradients are summed for one update.
    """

    steps: int
    seq_length: int
    batch_size: int
    max_predictions_per_seq: int = 0
    gradient_accumulation_steps: int = 1
    target_length: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "seq_length", "batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"a phase of train.phases has {name} {getattr(self, name)}, expected at least 1"
                )
        phase = "a phase of train.phases:"
        check_range(f"{phase} batch_size", self.batch_size, at_most=LARGEST_BATCH_SIZE)
        predictions = self.max_predictions_per_seq
        check_range(f"{phase} max_predictions_per_seq", predictions, at_least=0)
        check_range(f"{phase} target_length", self.target_length, at_least=0)
        if remainder := self.batch_size % self.gradient_accumulation_steps:
            smaller = self.batch_size - remainder
            larger = smaller + self.gradient_accumulation_steps
            # A phase does not know its index, but its other fields identify it.
            raise ConfigError(
                f"the phase of train.phases with {self.steps} steps of sequence length "
                f"{self.seq_length} has batch_size {self.batch_size}, expected a multiple of its "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}; the nearest is "
                + (f"{smaller} or {larger}" if smaller else f"{larger}")
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the global size of each dimension of a batch: {"B": 32, "L": 128, "P": 20}.

        With a decoder also its length "T".
        """
        sizes = {"B": self.batch_size, "L": self.seq_length, "P": self.max_predictions_per_seq}
        return sizes | ({"T": self.target_length} if self.target_length else {})


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Configures when checkpoints are saved and which ones are kept.

    A checkpoint is saved every `save_every` steps and after the last step; with `best_metric` also
    after every evaluation. The `keep_last` newest are kept, and the best one.

    Attributes:
      best_metric: a metric of the evaluation, for example "mlm_loss"; None: no best checkpoint.
      best_mode: whether the smallest ("min") or the largest ("max") value of it is the best.
      early_stopping_patience: evaluations without a better one after which the run ends early.
    """

    save_every: int = 1000
    keep_last: int = 3
    best_metric: str | None = None
    best_mode: Literal["min", "max"] | None = None
    early_stopping_patience: int | None = None

    def __post_init__(self) -> None:
        check_range("train.checkpoints.save_every", self.save_every, at_least=1)
        check_range("train.checkpoints.keep_last", self.keep_last, at_least=1)
        if self.best_metric is not None and self.best_mode is None:
            raise ConfigError(
                f"train.checkpoints.best_metric is {self.best_metric!r}, but best_mode is None; "
                "set train.checkpoints.best_mode to 'min' (as for losses) or 'max' (as for "
                "accuracies)"
            )
        if self.early_stopping_patience is not None and (
            self.best_metric is None or self.early_stopping_patience < 1
        ):
            raise ConfigError(
                f"train.checkpoints.early_stopping_patience is {self.early_stopping_patience} and "
                f"best_metric is {self.best_metric!r}; expected a patience of at least 1 and the "
                "name of a metric in best_metric"
            )


@dataclass(frozen=True, kw_only=True)
class HeldOutEval:
    """Configures the evaluation of pretraining on fixed held-out examples with fixed masks.

    Attributes:
      corpus: folder of the held-out corpus, written by `bert-jax prepare`.
      masking: used instead of the masking of training, so that runs with different masking rates
        can be compared.
    """

    corpus: str
    eval_every: int = 1000
    num_examples: int = 1024
    batch_size: int = 64
    masking: MaskingConfig | Denoising = Masking()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        for name in ("eval_every", "num_examples", "batch_size"):
            check_range(f"train.evaluation.{name}", getattr(self, name), at_least=1)


@dataclass(frozen=True, kw_only=True)
class LabeledEval:
    """Configures the evaluation of fine-tuning on a labeled split, with the metrics of its task."""

    split: str = "dev"
    eval_every: int = 1000
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("eval_every", "batch_size"):
            check_range(f"train.evaluation.{name}", getattr(self, name), at_least=1)


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Configures how often metrics are logged; each time the host waits for the device."""

    log_every: int = 50
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check_range("train.logging.log_every", self.log_every, at_least=1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Configures a training run: its phases share one optimizer and one schedule."""

    phases: tuple[Phase, ...]
    optimizer: Optimizer = AdamW()  # noqa: RUF009 (frozen)
    schedule: Schedule = WarmupLinear()  # noqa: RUF009 (frozen)
    max_grad_norm: float | None = 1.0  # None does not clip gradients
    checkpoints: CheckpointConfig = CheckpointConfig()
    evaluation: HeldOutEval | LabeledEval | None = None
    logging: LoggingConfig = LoggingConfig()
    tuning: TuningConfig = TuningConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("train.phases is empty, expected at least one phase")
        check_range("the number of steps in train.phases", self.steps, at_most=LARGEST_NUM_STEPS)
        if self.max_grad_norm is not None:
            check_range("train.max_grad_norm", self.max_grad_norm, above=0)
        if isinstance(self.schedule, InverseSquareRoot | ConstantRate):
            return
        if self.schedule.warmup_steps >= self.steps:
            raise ConfigError(
                f"train.schedule.warmup_steps is {self.schedule.warmup_steps}, but train.phases "
                f"have {self.steps} steps in total; expected fewer warmup steps than that"
            )
        decay_steps = getattr(self.schedule, "decay_steps", 0)
        if self.schedule.warmup_steps + decay_steps > self.steps:
            raise ConfigError(
                f"train.schedule has {self.schedule.warmup_steps} warmup_steps and {decay_steps} "
                f"decay_steps, but train.phases have {self.steps} steps in total; expected at most "
                "that many together"
            )

    @property
    def steps(self) -> int:
        """Returns the number of updates in all phases."""
        return sum(phase.steps for phase in self.phases)
