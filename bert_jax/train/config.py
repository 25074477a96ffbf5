"""How a network is trained: optimizer, schedule, phases, what is kept and logged. No jax here."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.data.config import Masking
from bert_jax.errors import ConfigError
from bert_jax.tuning.config import TuningConfig


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay. `bias_correction=False` is BERT's own Adam."""

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True


@dataclass(frozen=True, kw_only=True)
class Lamb:
    """AdamW, each parameter's update scaled to its norm, for large batches (You et al. 2020)."""

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01


@dataclass(frozen=True, kw_only=True)
class WarmupLinear:
    """From 0 up to `peak` in `warmup_steps`, then straight down to 0 at the end of the run."""

    peak_learning_rate: float = 1e-4
    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.peak_learning_rate <= 0:
            raise ConfigError(
                f"schedule: peak_learning_rate {self.peak_learning_rate} and warmup_steps "
                f"{self.warmup_steps}; expected peak_learning_rate > 0 and warmup_steps >= 0"
            )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of the run with fixed shapes; each phase compiles its step once."""

    steps: int
    seq_length: int
    batch_size: int
    max_predictions_per_seq: int = 0  # of masked LM, in each row
    gradient_accumulation_steps: int = 1  # microbatches whose gradients are added up to one update

    def __post_init__(self) -> None:
        for name in ("steps", "seq_length", "batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"phase.{name} is {getattr(self, name)}, expected at least 1")
        if self.batch_size % self.gradient_accumulation_steps:
            raise ConfigError(
                f"phase.batch_size {self.batch_size} is not a multiple of "
                f"phase.gradient_accumulation_steps {self.gradient_accumulation_steps}"
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the letters of `bert_jax.batch`."""
        return {"B": self.batch_size, "L": self.seq_length, "P": self.max_predictions_per_seq}


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """A checkpoint every so many steps and at the end; the last few are kept, and the best one."""

    save_every: int = 1000
    keep_last: int = 3
    best_metric: str | None = None  # a metric of the evaluation, as "loss"; each one is then saved
    # Evaluations without a better one before the run ends early.
    early_stopping_patience: int | None = None

    def __post_init__(self) -> None:
        if self.early_stopping_patience is not None and (
            self.best_metric is None or self.early_stopping_patience < 1
        ):
            raise ConfigError(
                f"checkpoints.early_stopping_patience is {self.early_stopping_patience} and "
                f"best_metric is {self.best_metric!r}; expected at least 1, and the metric to "
                "watch in best_metric"
            )

    @property
    def best_mode(self) -> Literal["min", "max"]:
        """Whether a small or a large value of `keep_best` is best: losses and errors are small."""
        lower_is_better = any(word in (self.best_metric or "") for word in ("loss", "error", "mse"))
        return "min" if lower_is_better else "max"


@dataclass(frozen=True, kw_only=True)
class HeldOutEval:
    """A pass over a fixed number of held-out examples, with the same masks every time.

    `masking` is that of the pass, whatever the training's: runs with other rates still compare.
    """

    corpus: str  # folder of the held-out corpus, written by `bert-jax prepare`
    eval_every: int = 1000
    num_examples: int = 1024
    batch_size: int = 64
    masking: Masking = Masking()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, kw_only=True)
class LabeledEval:
    """Evaluation on the whole of a labelled split, by the metrics of its task."""

    split: str = "dev"
    eval_every: int = 1000
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """How often numbers are looked at; each look waits for the device."""

    log_every: int = 50
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run: phases one after another under one optimizer and one schedule."""

    phases: tuple[Phase, ...]
    optimizer: AdamW | Lamb = AdamW()
    schedule: WarmupLinear = WarmupLinear()
    max_grad_norm: float = 1.0
    checkpoints: CheckpointConfig = CheckpointConfig()
    evaluation: HeldOutEval | LabeledEval | None = None
    logging: LoggingConfig = LoggingConfig()
    tuning: TuningConfig = TuningConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("train.phases is empty, expected at least one phase")
        if self.schedule.warmup_steps >= self.steps:
            raise ConfigError(
                f"train.schedule.warmup_steps {self.schedule.warmup_steps} leaves no step of the "
                f"{self.steps} steps of train.phases to decay over"
            )

    @property
    def steps(self) -> int:
        """Updates in all phases together."""
        return sum(phase.steps for phase in self.phases)
