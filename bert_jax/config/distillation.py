"""Defines the configs of knowledge distillation: the teacher, its layers, and the loss weights.

Imports no jax.
"""

import math
from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.encoder import EncoderConfig

TEACHER_PARAMS = "teacher/**"
"""The path pattern of all parameters of the teacher; it must be in `train.tuning.frozen`."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Identifies the frozen model from whose outputs a smaller model, the student, learns.

    Attributes:
      path: run folder, Hugging Face folder or Google TF1 checkpoint. It is read when the run
        starts; checkpoints contain the teacher, so it is not needed to resume.
      model: the config of the teacher's encoder.
      layers: the teacher's layers from which the student's layers start, one for each, counted from
        0; embeddings and heads then start from the teacher's, too. (): the student starts from
        `init_from`, or from random parameters.
    """

    path: str
    model: EncoderConfig
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        available = self.model.num_hidden_layers
        for layer in self.layers:
            if not 0 <= layer < available:
                raise ConfigError(
                    f"objective.distillation.teacher.layers contains {layer}, but the teacher "
                    f"{self.path} has {available} layers; expected numbers from 0 to "
                    f"{available - 1}"
                )


@dataclass(frozen=True, kw_only=True)
class PretrainingDistillation:
    """Configures task-agnostic distillation, as of DistilBERT (Sanh et al. 2019, section 2).

    The loss gets `soft_weight` times the KL divergence of the student's masked-LM predictions from
    the teacher's, and `cosine_weight` times one minus the cosine of the last hidden states of both.
    The weight of the hard targets is `mlm_weight` of the objective. The defaults are those of the
    command in DistilBERT's README, in which `mlm_weight` is 2.

    Attributes:
      temperature: divides the logits of both models before the softmax; the soft loss is multiplied
        by its square, so that its gradient does not depend on it (Hinton et al. 2015, section 2).
      soft_targets: the tokens whose predictions are compared.
    """

    teacher: Teacher  # the model to learn from
    temperature: float = 2.0
    soft_weight: float = 5.0  # of the teacher's predictions; 0: not compared
    cosine_weight: float = 1.0  # of the last hidden states; 0: not compared
    # "all_tokens": the predictions for all tokens except padding, as in DistilBERT's training;
    # "masked_tokens": for the positions that masked LM predicts, about 15 %. DistilBERT's script
    # has this as `restrict_ce_to_mask`; the logits take a sixth of the memory and the time.
    soft_targets: Literal["all_tokens", "masked_tokens"] = "all_tokens"

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        for name in ("soft_weight", "cosine_weight"):
            check_range(f"objective.distillation.{name}", getattr(self, name), at_least=0)
        if not self.soft_weight + self.cosine_weight:
            raise ConfigError(
                "objective.distillation.soft_weight and cosine_weight are 0, so the teacher has no "
                "effect; expected one > 0, or set objective.distillation to null"
            )

    def check_student(self, student: EncoderConfig) -> None:
        """Raises a ConfigError if the student cannot learn from the teacher."""
        _check_sizes(self.teacher, student)
        if self.soft_weight and "masked_lm" not in student.pretraining_heads:
            raise ConfigError(
                f"objective.distillation.soft_weight is {self.soft_weight}, but {student.family} "
                "has no masked-LM head, whose predictions would be compared; expected 0"
            )
        widths = student.hidden_size, self.teacher.model.hidden_size
        # DistilBERT compares the hidden states directly, without a projection between the widths.
        if self.cosine_weight and widths[0] != widths[1]:
            raise ConfigError(
                f"objective.distillation.cosine_weight is {self.cosine_weight}, but the hidden "
                f"size of the student is {widths[0]} and that of the teacher {widths[1]}, so their "
                "hidden states cannot be compared; expected 0"
            )


@dataclass(frozen=True, kw_only=True)
class TaskDistillation:
    """Configures task-specific distillation from a teacher that was fine-tuned on the same task.

    The loss is `hard_weight` times the loss of the labels plus `soft_weight` times that of the
    teacher's predictions: for classes, answer spans and choices the KL divergence at `temperature`,
    times its square (Hinton et al. 2015, section 2); for a regression, the squared difference. The
    defaults are as in DistilBERT's distillation on SQuAD (Sanh et al. 2019, section 4.1).
    """

    teacher: Teacher  # the fine-tuned model to learn from
    temperature: float = 2.0  # divides the logits of both models before the softmax
    soft_weight: float = 0.5  # of the teacher's predictions
    hard_weight: float = 0.5  # of the labels

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        check_range("objective.distillation.hard_weight", self.hard_weight, at_least=0)
        check_range("objective.distillation.soft_weight", self.soft_weight, above=0)

    def check_student(self, student: EncoderConfig) -> None:
        """Raises a ConfigError if the student cannot learn from the teacher."""
        _check_sizes(self.teacher, student)


@dataclass(frozen=True, kw_only=True)
class SoftLabels:
    """Configures distillation from soft labels, logits that the training examples have.

    The loss is the KL divergence of the predictions from them at `temperature`, times its square.
    The labels are not used (PET, Schick and Schütze 2021, section 3.3).
    """

    temperature: float = 2.0  # divides the logits and the soft labels before the softmax

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            f"objective.distillation.temperature is {temperature}, expected a number > 0"
        )


def _check_sizes(teacher: Teacher, student: EncoderConfig) -> None:
    """Raises a ConfigError unless student and teacher have the same number of token ids.

    Whether the tokens are the same is checked when the run starts, because that needs files.
    """
    # The losses compare logits entry by entry.
    if student.vocab_size != teacher.model.vocab_size:
        raise ConfigError(
            f"the student has a vocabulary of {student.vocab_size:,} tokens, but the teacher "
            f"{teacher.path} has {teacher.model.vocab_size:,}; distillation needs the same "
            "vocabulary in both, because the student learns the teacher's output for each token id"
        )
    if teacher.layers and len(teacher.layers) != student.num_hidden_layers:
        raise ConfigError(
            f"objective.distillation.teacher.layers is {list(teacher.layers)}, but the student has "
            f"{student.num_hidden_layers} layers; expected one number for each of them, or ()"
        )
