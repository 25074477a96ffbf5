"""Defines the configs of a run: phases, optimizers and schedules, mesh, precision.

Imports no jax.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bert_jax.config.data import Denoising, Masking, MaskingConfig
from bert_jax.config.distillation import Teacher
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Configures Adam with decoupled weight decay; BERT's own Adam has no bias correction."""

    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.999  # decay of the mean of squared gradients
    epsilon: float = 1e-6  # added to the square root of the second moment
    weight_decay: float = 0.01  # times the learning rate; kernels and tables only
    bias_correction: bool = True  # whether moments are corrected for their start at 0

    def __post_init__(self) -> None:
        _check_moments(self)


@dataclass(frozen=True, kw_only=True)
class Lamb:
    """Configures LAMB (You et al. 2020): AdamW with updates scaled by a trust ratio per parameter.

    Used for large batches.
    """

    b1: float = 0.9  # as in `AdamW`
    b2: float = 0.999  # as in `AdamW`
    epsilon: float = 1e-6  # as in `AdamW`
    weight_decay: float = 0.01  # as in `AdamW`

    def __post_init__(self) -> None:
        _check_moments(self)


@dataclass(frozen=True, kw_only=True)
class StableAdamW:
    """Configures AdamW with update clipping (Wortsman et al. 2023, algorithm 2), as for ModernBERT.

    The update of a parameter is divided by RMS(gradient / sqrt(second moment)), the root mean
    square over its elements, if that is above 1. This replaces the clipping of gradients: set
    `max_grad_norm` to None.
    """

    b1: float = 0.9  # as in `AdamW`
    b2: float = 0.99  # as in `AdamW`
    epsilon: float = 1e-6  # as in `AdamW`
    weight_decay: float = 0.01  # as in `AdamW`

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
    clipping_threshold: float = 1.0  # root mean square above which an update is scaled down
    min_dim_size_to_factor: int = 128  # smaller matrices have one moment for each element

    def __post_init__(self) -> None:
        check_range("train.optimizer.decay_rate", self.decay_rate, above=0, below=1)
        name = "train.optimizer.clipping_threshold"
        check_range(name, self.clipping_threshold, above=0)
        name = "train.optimizer.min_dim_size_to_factor"
        check_range(name, self.min_dim_size_to_factor, at_least=1)


UpdateScale = Literal["adamw_rms", "shape"]


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Configures Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for the rest.

    The update of a matrix is its momentum with all singular values near 1 (five Newton-Schulz
    steps). Embeddings, heads, biases and norms are trained by AdamW.

    Attributes:
      update_scale: how large the update of a matrix [rows, columns] is. "adamw_rms" multiplies by
        0.2 * sqrt(max(rows, columns)), which gives the elements the root mean square of AdamW's
        updates, so that AdamW's rates and weight decay fit (Liu et al. 2025, "Muon is scalable
        for LLM training", section 2.2). "shape" multiplies by sqrt(max(1, columns / rows)) and
        needs a larger rate. Jordan's code has 0.02 for matrices and 3e-4 for the rest, which is
        the rate 0.02 with an `adamw_rate_factor` of 0.015.
      adamw_rate_factor: the learning rate of the parameters that AdamW trains, as a fraction of
        the rate of the schedule, which the matrices have.
    """

    momentum: float = 0.95  # decay of the mean of the gradients of matrices; Nesterov's
    update_scale: UpdateScale = "adamw_rms"
    adamw_rate_factor: float = 1.0
    b1: float = 0.9  # as in `AdamW`, for the rest
    b2: float = 0.999  # as in `AdamW`, for the rest
    epsilon: float = 1e-6  # as in `AdamW`, for the rest
    weight_decay: float = 0.01  # as in `AdamW`, for all kernels and tables

    def __post_init__(self) -> None:
        check_range("train.optimizer.momentum", self.momentum, at_least=0, below=1)
        check_range("train.optimizer.adamw_rate_factor", self.adamw_rate_factor, above=0)
        _check_moments(self)


Optimizer = AdamW | Lamb | StableAdamW | Adafactor | Muon


def _check_moments(optimizer: AdamW | Lamb | StableAdamW | Muon) -> None:
    for name in ("b1", "b2"):
        check_range(f"train.optimizer.{name}", getattr(optimizer, name), at_least=0, below=1)
    check_range("train.optimizer.epsilon", optimizer.epsilon, at_least=0)
    check_range("train.optimizer.weight_decay", optimizer.weight_decay, at_least=0)


@dataclass(frozen=True, kw_only=True)
class WarmupLinear:
    """Configures a learning rate that rises linearly for `warmup_steps` and then decays to 0."""

    peak_learning_rate: float = 1e-4  # reached at the end of the warmup
    warmup_steps: int = 10_000  # updates of the rise, fewer than the run has

    def __post_init__(self) -> None:
        _check_schedule(self)


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Configures a learning rate that rises linearly, stays at its peak, and decays at the end.

    In the last `decay_steps` it is the peak times 1 - sqrt(fraction of these steps), which ends at
    0 (Hägele et al. 2024). A run without decay can be continued, with or without decay.
    """

    peak_learning_rate: float = 1e-4  # reached at the end of the warmup
    warmup_steps: int = 10_000  # updates of the rise
    decay_steps: int = 0  # updates of the fall at the end; 0: no fall

    def __post_init__(self) -> None:
        _check_schedule(self)
        check_range("train.schedule.decay_steps", self.decay_steps, at_least=0)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot:
    """Configures the rate scale / sqrt(max(step, warmup_steps)), as for T5 (Raffel et al. 2020).

    The step counts from 0. The rate is constant in the first `warmup_steps`, and does not depend on
    the number of steps of the run.
    """

    scale: float = 1.0  # multiplies the rate
    warmup_steps: int = 10_000  # updates with a constant rate

    def __post_init__(self) -> None:
        check_range("train.schedule.scale", self.scale, above=0)
        check_range("train.schedule.warmup_steps", self.warmup_steps, at_least=1)


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    """Configures a constant learning rate, as for the fine-tuning of T5."""

    learning_rate: float = 1e-3  # of all updates

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


Parallelism = Literal["dp", "fsdp", "tp", "fsdp_tp"]
CommunicationDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Arranges the devices along three axes; one size may be -1, for all remaining devices.

    Attributes:
      data: splits the batch.
      fsdp: splits the batch, the parameters and the optimizer state.
      tensor: splits heads, feed-forward width and vocabulary within a layer; a divisor of the
        number of devices of a process.
      communication_dtype: the dtype of matrices sent between devices, as summed gradients and as
        gathered parameters. bfloat16 halves the traffic, and rounds each device's part of a
        gradient to 8 bits before the sum (see `parallel/sharding.py`).
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    communication_dtype: CommunicationDtype = "float32"

    def __post_init__(self) -> None:
        sizes = (self.data, self.fsdp, self.tensor)
        if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
            raise ConfigError(f"mesh {sizes}: expected sizes >= 1, and -1 at most once")

    def axis_sizes(self, num_devices: int, num_processes: int = 1) -> tuple[int, int, int]:
        """Returns the sizes (data, fsdp, tensor) on a number of devices.

        Args:
          num_processes: each reads other examples, and has equally many of the devices.

        Raises:
          ConfigError: the product of the sizes cannot be the number of devices, or the axis tensor
            goes beyond the devices of a process.
        """
        sizes = [self.data, self.fsdp, self.tensor]
        known = 1
        for size in sizes:
            known *= max(size, 1)
        # The axis of -1 counts as 1 in `known`, so the quotient is its size.
        if -1 in sizes and num_devices % known == 0:
            sizes[sizes.index(-1)] = num_devices // known
            known = num_devices
        if known != num_devices or -1 in sizes:
            raise ConfigError(
                f"mesh data={self.data} fsdp={self.fsdp} tensor={self.tensor} does not fit "
                f"{num_devices} devices: the product must be {num_devices} (-1 fills one axis)"
            )
        devices_per_process = num_devices // num_processes
        if devices_per_process % sizes[2]:
            raise ConfigError(
                f"mesh.tensor is {sizes[2]}, but a process has {devices_per_process} of the "
                f"devices; expected a divisor of {devices_per_process}"
            )
        return sizes[0], sizes[1], sizes[2]


def make_mesh_config(
    parallelism: Parallelism, communication_dtype: CommunicationDtype = "float32"
) -> MeshConfig:
    """Returns a preset: dp replicates the model, fsdp shards it, tp and fsdp_tp halve layers."""
    return {
        "dp": MeshConfig(communication_dtype=communication_dtype),
        "fsdp": MeshConfig(data=1, fsdp=-1, communication_dtype=communication_dtype),
        "tp": MeshConfig(tensor=2, communication_dtype=communication_dtype),
        "fsdp_tp": MeshConfig(data=1, fsdp=-1, tensor=2, communication_dtype=communication_dtype),
    }[parallelism]


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
    "Muon",
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


def num_predictions(mlm_probability: float, num_tokens: int) -> int:
    """Returns how many of a number of tokens are masked for prediction, at least one."""
    return max(1, round(mlm_probability * num_tokens))


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Configures consecutive steps of a run with one sequence length and one batch size.

    Attributes:
      batch_size: examples for one update, over all devices.
      max_predictions_per_seq: masked positions of a sequence; 0 for data without masked LM.
      target_length: tokens that the decoder predicts; 0 for models without a decoder.
      gradient_accumulation_steps: microbatches whose gradients are summed for one update.
      mlm_probability: fraction of the tokens that are predicted in this phase, instead of that of
        `data.masking`; None: the latter. mmBERT goes from 0.3 to 0.15 and 0.05 (Marone et al.
        2025).
      causal_lm: whether this phase predicts each next token with a causal mask, from unmasked text,
        instead of what is masked. Masked LM after some causal LM is better than masked LM alone at
        equal compute (Gisserot-Boukhlef et al. 2025). Held-out losses are those of masked LM.
      corpus_weights: the weight of each corpus of a `CorpusMixture` in this phase, in their order,
        instead of those of `data.corpus`; 0 leaves a corpus out, and null stands for the number of
        its tokens. (): the weights of the mixture.
      corpus_temperature: that of the mixture in this phase; None: `data.corpus.temperature`. mmBERT
        goes from 1 / 0.7 to 1 / 0.5 and 1 / 0.3, with more languages in each phase.
    """

    steps: int  # updates of this phase
    seq_length: int  # tokens of a sequence, special tokens and padding included
    batch_size: int
    max_predictions_per_seq: int = 0
    gradient_accumulation_steps: int = 1
    target_length: int = 0
    mlm_probability: float | None = None
    causal_lm: bool = False
    corpus_weights: tuple[float | None, ...] = ()
    corpus_temperature: float | None = None

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
        if predictions > self.seq_length:
            raise ConfigError(
                f"{phase} max_predictions_per_seq is {predictions}, but seq_length is "
                f"{self.seq_length}; expected at most as many predictions as tokens: lower "
                "max_predictions_per_seq or raise seq_length"
            )
        if self.corpus_temperature is not None:
            check_range(f"{phase} corpus_temperature", self.corpus_temperature, above=0)
        for weight in self.corpus_weights:
            if weight is not None:
                check_range(f"{phase} corpus_weights", weight, at_least=0)
        if self.corpus_weights and len({w is None for w in self.corpus_weights if w != 0}) != 1:
            raise ConfigError(
                f"{phase} corpus_weights is {list(self.corpus_weights)}; expected a number above 0 "
                "for some corpora, or null for some, and 0 for those that are left out"
            )
        rate = self.mlm_probability
        if self.causal_lm and rate is not None:
            raise ConfigError(
                f"{phase} causal_lm is true and mlm_probability is {rate}, but causal LM masks no "
                "tokens; expected one of them"
            )
        if rate is not None:
            check_range(f"{phase} mlm_probability", rate, above=0, at_most=1)
            if predictions < (needed := num_predictions(rate, self.seq_length)):
                raise ConfigError(
                    f"{phase} mlm_probability is {rate}, which predicts {needed} of "
                    f"{self.seq_length} tokens, but max_predictions_per_seq is {predictions}; "
                    f"expected at least {needed}"
                )
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

    save_every: int = 1000  # updates between two checkpoints
    keep_last: int = 3  # how many of the newest stay on disk
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
    eval_every: int = 1000  # updates between two evaluations
    num_examples: int = 1024  # examples of an evaluation, always the same
    batch_size: int = 64  # sequences computed at once
    masking: MaskingConfig | Denoising = Masking()

    def __post_init__(self) -> None:
        for name in ("eval_every", "num_examples", "batch_size"):
            check_range(f"train.evaluation.{name}", getattr(self, name), at_least=1)


@dataclass(frozen=True, kw_only=True)
class LabeledEval:
    """Configures the evaluation of fine-tuning on a labeled split, with the metrics of its task."""

    split: str = "dev"  # whose labels the metrics compare with
    eval_every: int = 1000  # updates between two evaluations
    batch_size: int = 64  # sequences computed at once
    # Whether a temperature for the probabilities of a classifier is fitted on dev after training,
    # and thresholds of two classes if checkpoints are ranked by f1, f1_macro or matthews.
    calibrate: bool = False

    def __post_init__(self) -> None:
        for name in ("eval_every", "batch_size"):
            check_range(f"train.evaluation.{name}", getattr(self, name), at_least=1)


TrackerName = Literal["wandb", "trackio", "mlflow", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Configures how often metrics are logged; each time the host waits for the device."""

    log_every: int = 50  # updates between two lines of metrics.jsonl
    track: TrackerName | None = None  # sends metrics to it, too; needs the extra of this name

    def __post_init__(self) -> None:
        check_range("train.logging.log_every", self.log_every, at_least=1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Configures a training run: its phases share one optimizer and one schedule."""

    phases: tuple[Phase, ...]  # one after another, such as short sequences and then long ones
    optimizer: Optimizer = AdamW()  # what turns gradients into updates
    schedule: Schedule = WarmupLinear()  # the learning rate of each update, over all phases
    max_grad_norm: float | None = 1.0  # None does not clip gradients
    checkpoints: CheckpointConfig = CheckpointConfig()  # what is saved, and when a run ends early
    evaluation: HeldOutEval | LabeledEval | None = None  # None: the run is not evaluated
    logging: LoggingConfig = LoggingConfig()  # how often metrics are written
    tuning: TuningConfig = TuningConfig()  # which parameters are trained, and how fast

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("train.phases is empty, expected at least one phase")
        check_range("the number of steps in train.phases", self.steps, at_most=LARGEST_NUM_STEPS)
        if self.max_grad_norm is not None:
            check_range("train.max_grad_norm", self.max_grad_norm, above=0)
        # These do not depend on the length of the run, so a short run may end within the warmup.
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


class ObjectiveBase:
    """Checks that a run can train an objective; the config of every objective extends it.

    Attributes:
      model: the config of the model.
      takes_methods: whether `TuningConfig.method` can select a part of the encoder to train.
    """

    model: Any
    takes_methods: ClassVar[bool] = False

    @property
    def teacher(self) -> Teacher | None:
        """Returns the teacher of an objective with distillation; None for other objectives."""
        return None

    def check_training(self, train: TrainConfig) -> None:
        """Raises a ConfigError if the model cannot be trained as `train` says."""
        seq_length, model = max(phase.seq_length for phase in train.phases), self.model
        if seq_length > model.max_length:
            raise ConfigError(
                f"train.phases has seq_length {seq_length}, but the model has positions for "
                f"{model.max_length} tokens (objective.model.positions.max_position_embeddings is "
                f"{model.positions.max_position_embeddings}); shorten the sequences or enlarge it"
            )
        teacher = self.teacher
        if teacher is not None and seq_length > teacher.model.max_length:
            raise ConfigError(
                f"train.phases has seq_length {seq_length}, but the teacher {teacher.path} has "
                f"positions for {teacher.model.max_length} tokens; shorten the sequences"
            )
