"""Defines the configs of objectives: which network is trained, and with which losses.

Those of pretraining are in `pretraining_config.py` and `replaced_tokens/config.py`.
"""

import math
import re
from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range, did_you_mean
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
    label_tokens_of,
    window_encoder_of,
)
from bert_jax.models.layers.config import ComputeConfig, check_dropout
from bert_jax.objectives.distillation.config import SoftLabels, TaskDistillation, Teacher
from bert_jax.objectives.pretraining_config import (
    CausalLM,
    MaskedPermutedLM,
    Pretraining,
    Seq2Seq,
)
from bert_jax.objectives.replaced_tokens.config import ReplacedTokens
from bert_jax.objectives.sentence_embeddings.config import SentenceEmbedding

_TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Configures fine-tuning: an encoder with the head of a task (Devlin et al. 2019, section 4).

    The loss is the cross-entropy of the labels (binary for a `RankingHead`), and the squared error
    for a `RegressionHead`. With `distillation`, the outputs of a teacher with the same head are
    learned, too, or the soft labels of the training examples instead of their labels.
    """

    model: EncoderConfig
    head: TaskHead
    # Dropout on the input of the head; not used by `QuestionAnsweringHead`, as in BERT's release.
    classifier_dropout: float = 0.1
    label_smoothing: float = 0.0  # fraction of a label that is spread evenly over all classes
    class_weights: tuple[float, ...] = ()  # one for each label of the head; () for equal weights
    distillation: TaskDistillation | SoftLabels | None = None
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if isinstance(self.distillation, SoftLabels):
            if not isinstance(self.head, SequenceClassificationHead):
                raise ConfigError(
                    f"objective.distillation is SoftLabels, but objective.head is a "
                    f"{type(self.head).__name__}; expected a SequenceClassificationHead"
                )
        elif self.distillation is not None:
            self.distillation.check_student(self.model)
            if label_tokens_of(self.head) is not None:
                raise ConfigError(
                    "objective.head has label_tokens, so the task is trained with a prompt, and "
                    "objective.distillation is set; expected one of them"
                )
        check_dropout("objective.classifier_dropout", self.classifier_dropout)
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"objective.label_smoothing is {self.label_smoothing}, expected 0 <= "
                "label_smoothing < 1"
            )
        head_type = type(self.head).__name__
        without_classes = RegressionHead | RankingHead | QuestionAnsweringHead
        if self.label_smoothing and isinstance(self.head, without_classes):
            raise ConfigError(
                f"objective.label_smoothing is {self.label_smoothing}, but a {head_type} has no "
                "classes to smooth over; set it to 0"
            )
        if self.class_weights:
            _check_class_weights(self.class_weights, self.head)


def _check_class_weights(weights: tuple[float, ...], head: TaskHead) -> None:
    match head:
        case SequenceClassificationHead() | TokenClassificationHead():
            labels = head.labels
        case RegressionHead() | RankingHead() | QuestionAnsweringHead() | MultipleChoiceHead():
            raise ConfigError(
                f"objective.class_weights is {weights}, but a {type(head).__name__} has no "
                "classes; expected ()"
            )
    if len(weights) != len(labels):
        raise ConfigError(
            f"objective.class_weights has {len(weights)} weights, but objective.head has "
            f"{len(labels)} labels: {', '.join(labels)}"
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ConfigError(
            f"objective.class_weights is {weights}, expected numbers >= 0 and one of them > 0"
        )


@dataclass(frozen=True, kw_only=True)
class NamedHead:
    """Names the head of one of several tasks; metrics, files and parameters use the name."""

    name: str
    head: TaskHead


@dataclass(frozen=True, kw_only=True)
class UniformWeighting:
    """Gives all examples of a batch equal weight, so that a task counts as often as it is drawn."""


@dataclass(frozen=True, kw_only=True)
class UncertaintyWeighting:
    """Divides the loss of each task by a learned variance (Kendall et al. 2018, section 3.2).

    With s = log variance, the loss is exp(-s) loss + s / 2, and exp(-s) loss / 2 + s / 2 for a
    regression. Within a task, all examples have equal weight.
    """

    # Multiplies the learning rate of each s. At the learning rates of fine-tuning, s would not move
    # noticeably within a run.
    lr_multiplier: float = 100.0

    def __post_init__(self) -> None:
        check_range("objective.weighting.lr_multiplier", self.lr_multiplier, above=0)


@dataclass(frozen=True, kw_only=True)
class MultiTask:
    """Configures multi-task fine-tuning: one encoder with a head for each task.

    Like MT-DNN (Liu et al. 2019), but each batch mixes examples of all tasks.
    """

    model: EncoderConfig
    heads: tuple[NamedHead, ...]
    weighting: UniformWeighting | UncertaintyWeighting = UniformWeighting()
    classifier_dropout: float = 0.1  # of each head, see `FineTuning`
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if not self.heads:
            raise ConfigError("objective.heads is empty, expected a head for each task")
        for named_head in self.heads:
            if not _TASK_NAME.fullmatch(named_head.name):
                raise ConfigError(
                    f"objective.heads has a task {named_head.name!r}; expected a name of letters, "
                    "digits, '_', '-' and '.', because it is used in names of files and parameters"
                )
            if self.task_names.count(named_head.name) > 1:
                raise ConfigError(
                    f"objective.heads has two tasks {named_head.name!r}; expected different names"
                )
            if isinstance(named_head.head, MultipleChoiceHead):
                raise ConfigError(
                    f"objective.heads: {named_head.name!r} is multiple choice, whose examples "
                    "have several texts and cannot be in a batch with other tasks; fine-tune it in "
                    "a run of its own"
                )
            if window_encoder_of(named_head.head) is not None:
                raise ConfigError(
                    f"objective.heads: {named_head.name!r} has a window_encoder, whose examples "
                    "have several windows and cannot be in a batch with other tasks; fine-tune it "
                    "in a run of its own"
                )
            if label_tokens_of(named_head.head) is not None:
                raise ConfigError(
                    f"objective.heads: {named_head.name!r} has label_tokens, which read a prompt; "
                    "fine-tune it in a run of its own"
                )
            self.for_task(named_head.name)
        by_global_tokens = {self.model.global_tokens(each.head): each.name for each in self.heads}
        if len(by_global_tokens) > 1:
            raise ConfigError(
                f"objective.heads: the tasks {', '.join(map(repr, by_global_tokens.values()))} "
                f"give global attention to different tokens in {self.model.family}, but an encoder "
                "runs once for all tasks; fine-tune them in runs of their own"
            )

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of their `task_ids`."""
        return tuple(named_head.name for named_head in self.heads)

    def for_task(self, name: str) -> FineTuning:
        """Returns the objective config of one task alone.

        Raises:
          ConfigError: there is no such task; the message names the nearest.
        """
        for named_head in self.heads:
            if named_head.name == name:
                return FineTuning(
                    model=self.model,
                    head=named_head.head,
                    classifier_dropout=self.classifier_dropout,
                    compute=self.compute,
                )
        hint = did_you_mean(name, self.task_names)
        raise ConfigError(f"no task {name!r}; {hint}tasks here: {', '.join(self.task_names)}")


EncoderObjective = (
    Pretraining
    | ReplacedTokens
    | MaskedPermutedLM
    | CausalLM
    | FineTuning
    | MultiTask
    | SentenceEmbedding
)
"""The objectives of encoders; the model of `Seq2Seq` is an encoder-decoder."""

ObjectiveConfig = EncoderObjective | Seq2Seq


def teacher_of(objective: ObjectiveConfig) -> Teacher | None:
    """Returns the teacher of an objective with distillation; None for other objectives."""
    match objective:
        case Pretraining(distillation=distillation) | FineTuning(distillation=distillation):
            if distillation is None or isinstance(distillation, SoftLabels):
                return None
            return distillation.teacher
        case _:
            return None
