"""How a network is trained: optimizer, schedule, phases, what is kept and logged. No jax here."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.data.config import Masking
from bert_jax.errors import ConfigError
from bert_jax.tuning.config import Tuning


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

    peak: float = 1e-4
    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.peak <= 0:
            raise ConfigError(
                f"schedule: peak {self.peak} and warmup_steps {self.warmup_steps}; "
                "expected peak > 0 and warmup_steps >= 0"
            )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of the run with fixed shapes; each phase compiles its step once."""

    steps: int
    length: int
    batch_size: int
    max_predictions: int = 0  # of masked LM, in each row
    accumulate: int = 1  # microbatches whose gradients are added up to one update

    def __post_init__(self) -> None:
        for name in ("steps", "length", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(f"phase.{name} is {getattr(self, name)}, expected at least 1")
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"phase.batch_size {self.batch_size} is not a multiple of "
                f"phase.accumulate {self.accumulate}"
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the letters of `bert_jax.batch`."""
        return {"B": self.batch_size, "L": self.length, "P": self.max_predictions}


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """A checkpoint every so many steps and at the end; the last few are kept, and the best one."""

    every: int = 1000
    keep_last: int = 3
    keep_best: str | None = None  # a metric of the evaluation, as "loss"; each one is then saved
    patience: int | None = None  # evaluations without a better one before the run ends early

    def __post_init__(self) -> None:
        if self.patience is not None and (self.keep_best is None or self.patience < 1):
            raise ConfigError(
                f"checkpoints.patience is {self.patience} and keep_best is {self.keep_best!r}; "
                "expected at least 1, and the metric to watch in keep_best"
            )

    @property
    def best_mode(self) -> Literal["min", "max"]:
        """Whether a small or a large value of `keep_best` is best: losses and errors are small."""
        falls = any(word in (self.keep_best or "") for word in ("loss", "error", "mse"))
        return "min" if falls else "max"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A pass over a fixed number of held-out examples, with the same masks every time.

    `masking` is that of the pass, whatever the training's: runs with other rates still compare.
    """

    prepared: str  # folder of the held-out corpus, written by `bert-jax prepare`
    every: int = 1000
    examples: int = 1024
    batch_size: int = 64
    masking: Masking = Masking()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, kw_only=True)
class DevSplit:
    """Evaluation on the whole of a labelled split, by the metrics of its task."""

    split: str = "dev"
    every: int = 1000
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class Logging:
    """How often numbers are looked at; each look waits for the device."""

    every: int = 50
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Train:
    """One run: phases one after another under one optimizer and one schedule."""

    phases: tuple[Phase, ...]
    optimizer: AdamW | Lamb = AdamW()
    schedule: WarmupLinear = WarmupLinear()
    clip_norm: float = 1.0
    checkpoints: Checkpoints = Checkpoints()
    evaluation: Evaluation | DevSplit | None = None
    logging: Logging = Logging()
    tuning: Tuning = Tuning()  # noqa: RUF009 (frozen)

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
