"""Defines the configs of all objectives: what is minimized, for which model.

Imports no jax.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.config.distillation import (
    PretrainingDistillation,
    SoftLabels,
    TaskDistillation,
    Teacher,
)
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.config.train import ObjectiveBase, Phase, TrainConfig
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError, check_range, did_you_mean
from bert_jax.models.config import check_token_id
from bert_jax.models.encoder import EncoderConfig, EncoderDecoderConfig
from bert_jax.models.heads.config import (
    TaskHead,
    class_labels,
    label_tokens_of,
    scores_relevance,
    window_encoder_of,
)
from bert_jax.models.layers.config import ComputeConfig, check_dropout
from bert_jax.models.mpnet.config import MPNetConfig


@dataclass(frozen=True, kw_only=True)
class TokenDropping:
    """Configures token dropping (Hou et al. 2022): middle layers read the important tokens only.

    A token is important if masked LM predicts its id badly, on a running average. In training the
    others skip the middle layers; evaluation, and every later use, run all layers on all tokens.
    """

    allow_list: tuple[int, ...] = ()  # ids that are never dropped, as of [CLS], [SEP] and [UNK]
    keep_fraction: float = 0.5  # of the tokens of a sequence in the middle layers
    # The first of the middle layers, from 0; the last layer follows them. None: N / 2 - 1.
    first_layer: int | None = None
    beta: float = 0.995  # decay of the running average of the losses of an id
    initial_loss: float = 10.0  # the average of an id that was never predicted

    def __post_init__(self) -> None:
        name = "objective.token_dropping"
        check_range(f"{name}.keep_fraction", self.keep_fraction, above=0, below=1)
        check_range(f"{name}.beta", self.beta, at_least=0, below=1)
        check_range(f"{name}.initial_loss", self.initial_loss, at_least=0)

    def middle_layers(self, num_layers: int) -> range:
        """Returns the layers that read important tokens only, of a number of layers."""
        first = num_layers // 2 - 1 if self.first_layer is None else self.first_layer
        return range(first, num_layers - 1)


@dataclass(frozen=True, kw_only=True)
class Pretraining(ObjectiveBase):
    """Configures pretraining: a weighted sum of losses (`objectives/pretraining.py`).

    A loss of weight 0 is not computed. The network has the pretraining heads of the model's family
    and the heads of the losses. With `distillation`, the outputs of a teacher are learned, too.
    """

    model: EncoderConfig  # the encoder to pretrain
    mask_token_id: int  # the id of [MASK] in the tokenizer of the corpus
    mlm_weight: float = 1.0  # masked LM
    diffusion_weight: float = 0.0  # masked diffusion (MDLM); needs `DiffusionMasking`
    nsp_weight: float = 1.0  # next-sentence prediction (BERT)
    sop_weight: float = 0.0  # sentence-order prediction (ALBERT)
    sbo_weight: float = 0.0  # span boundary objective (SpanBERT)
    # Whether a masked token is predicted at the position before it, as the next one, by the head of
    # masked LM (MNTP; BehnamGhader et al. 2024, Charpentier and Samuel 2024).
    masked_next_token: bool = False
    distillation: PretrainingDistillation | None = None  # the teacher to learn from; None: none
    token_dropping: TokenDropping | None = None  # which tokens skip layers; None: no token
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

    def __post_init__(self) -> None:
        weights = self.loss_weights.values()
        if self.distillation is not None:
            self.distillation.check_student(self.model)
        if min(weights) < 0 or (sum(weights) == 0 and self.distillation is None):
            listed = ", ".join(f"{name}_weight {w}" for name, w in self.loss_weights.items())
            raise ConfigError(f"objective has {listed}: expected all >= 0 and one > 0")
        if self.model.is_decoder:
            raise ConfigError(
                f"objective.model is a {self.model.family}, which reads left to right; expected an "
                "encoder, or the objective CausalLM"
            )
        if self.masked_next_token and (self.distillation is not None or self.diffusion_weight):
            raise ConfigError(
                "objective.masked_next_token is true, but objective has a distillation or a "
                "diffusion_weight; expected masked LM without them"
            )
        if self.token_dropping is not None:
            self._check_token_dropping(self.token_dropping)
        if self.nsp_weight and "next_sentence" not in self.model.pretraining_heads:
            raise ConfigError(
                f"objective.nsp_weight is {self.nsp_weight}, but {self.model.family} is pretrained "
                "without next-sentence prediction; expected 0"
            )
        if self.sop_weight and "pooler" not in self.model.pretraining_heads:
            raise ConfigError(
                f"objective.sop_weight is {self.sop_weight}, but {self.model.family} has no "
                "pooler, whose output sentence-order prediction uses; expected 0"
            )
        check_token_id("objective.mask_token_id", self.mask_token_id, self.model.vocab_size)

    def _check_token_dropping(self, dropping: TokenDropping) -> None:
        name, num_layers = "objective.token_dropping", self.model.num_applied_layers
        if not self.model.drops_tokens:
            raise ConfigError(
                f"{name} is set, but the layers of {self.model.family} read whole sequences; "
                "expected null, or a BERT, RoBERTa, ModernBERT or another family with their layers"
            )
        if self.distillation is not None or self.masked_next_token or not self.mlm_weight:
            raise ConfigError(
                f"{name} is set, but objective has a distillation, masked_next_token or no "
                "mlm_weight; expected masked LM without them, whose losses select the tokens"
            )
        layers = dropping.middle_layers(num_layers)
        if layers.start < 0 or not layers:
            raise ConfigError(
                f"{name}.first_layer is {dropping.first_layer}, but objective.model has "
                f"{num_layers} layers, of which the last reads all tokens; expected a layer from 0 "
                f"to {num_layers - 2}, and at least 2 layers"
            )
        for token_id in dropping.allow_list:
            check_token_id(f"{name}.allow_list contains", token_id, self.model.vocab_size)

    @property
    def teacher(self) -> Teacher | None:
        """Returns the teacher, if there is one."""
        return None if self.distillation is None else self.distillation.teacher

    @property
    def is_masked_lm_alone(self) -> bool:
        """Returns whether masked LM or masked diffusion is the only loss."""
        others = self.nsp_weight + self.sop_weight + self.sbo_weight
        return not others and self.distillation is None

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each loss by its name."""
        return {
            "mlm": self.mlm_weight,
            "diffusion": self.diffusion_weight,
            "nsp": self.nsp_weight,
            "sop": self.sop_weight,
            "sbo": self.sbo_weight,
        }


@dataclass(frozen=True, kw_only=True)
class MaskedPermutedLM(ObjectiveBase):
    """Configures MPNet's own pretraining: masked and permuted LM (Song et al. 2020)."""

    model: MPNetConfig  # the encoder to pretrain
    mask_token_id: int  # the id of the mask token in the tokenizer of the corpus
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

    def __post_init__(self) -> None:
        check_token_id("objective.mask_token_id", self.mask_token_id, self.model.vocab_size)


@dataclass(frozen=True, kw_only=True)
class CausalLM(ObjectiveBase):
    """Configures the paper's left-to-right ablation: next-token prediction with a causal mask."""

    model: EncoderConfig  # the encoder to pretrain
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step


def objective_of_phase(objective: "ObjectiveConfig", phase: Phase) -> "ObjectiveConfig":
    """Returns what is minimized in a phase of a run with an objective."""
    if isinstance(objective, Pretraining) and phase.causal_lm:
        return CausalLM(model=objective.model, compute=objective.compute)
    return objective


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(ObjectiveBase):
    """Configures an encoder-decoder that predicts targets: denoising, or a task as text to text."""

    model: EncoderDecoderConfig  # the encoder-decoder
    label_smoothing: float = 0.0  # fraction of a target that is spread evenly over the vocabulary
    # Weight of the squared logarithm of the softmax's denominator; 1e-4 for the published T5.
    z_loss: float = 0.0
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

    def __post_init__(self) -> None:
        check_range("objective.label_smoothing", self.label_smoothing, at_least=0, below=1)
        check_range("objective.z_loss", self.z_loss, at_least=0)

    def check_training(self, train: TrainConfig) -> None:
        """Raises a ConfigError if the encoder-decoder cannot be trained as `train` says."""
        model = self.model
        limits = {"seq_length": model.max_length, "target_length": model.max_target_length}
        for phase in train.phases:
            for name, limit in limits.items():
                if not 1 <= getattr(phase, name) <= limit:
                    raise ConfigError(
                        f"a phase of train.phases has {name} {getattr(phase, name)}, expected 1 to "
                        f"{limit}, the positions of objective.model"
                    )
        if train.tuning != TuningConfig(frozen=train.tuning.frozen):
            raise ConfigError(
                "train.tuning has settings for encoders, but objective is Seq2Seq; expected the "
                "default values, except for train.tuning.frozen"
            )


EmbeddingSharing = Literal["shared", "gradient_disentangled"]
"""How generator and discriminator share embeddings; None where each has its own.

shared                  both have the same tables and norm, as in ELECTRA; both losses train them.
gradient_disentangled   The discriminator's table of words is stop_gradient(the generator's table) +
                        difference, and so is its table of positions, if the family has one
                        (DeBERTa-v3's GDES, He et al. 2023, section 3.3). The differences are
                        trained and start at 0. The generator's tables are trained by its own loss
                        only.
"""


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens(ObjectiveBase):
    """Configures replaced-token detection (Clark et al. 2020): a generator and a discriminator.

    `model` is what the run makes: the discriminator.
    """

    model: EncoderConfig  # the discriminator
    generator: EncoderConfig  # the smaller encoder that proposes tokens for masked positions
    mask_token_id: int  # the id of the mask token in the tokenizer of the corpus
    # How both networks share embeddings; None: each has its own.
    embedding_sharing: EmbeddingSharing | None = "shared"
    mlm_weight: float = 1.0  # of the generator's loss
    rtd_weight: float = 50.0  # of the discriminator's loss
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

    def __post_init__(self) -> None:
        check_range("objective.mlm_weight", self.mlm_weight, at_least=0)
        check_range("objective.rtd_weight", self.rtd_weight, at_least=0)
        check_token_id("objective.mask_token_id", self.mask_token_id, self.model.vocab_size)
        if self.model.replaced_token_detector is None:
            raise ConfigError(
                f"objective.model is {self.model.family}, which has no head that detects replaced "
                "tokens; expected ELECTRA or DeBERTa, or another objective"
            )
        if self.generator.hidden_size > self.model.hidden_size:
            raise ConfigError(
                f"objective.generator.hidden_size is {self.generator.hidden_size}, which is wider "
                f"than the discriminator's objective.model.hidden_size {self.model.hidden_size}; "
                "expected at most that, usually 1/4 to 1/3 of it"
            )
        for name, reason in self._equal_fields().items():
            values = [getattr(config, name) for config in (self.generator, self.model)]
            if values[0] != values[1]:
                # Families without factorized embeddings have no field for their width.
                has_width = hasattr(self.generator, "embedding_size")
                width = "embedding_size" if has_width else "hidden_size"
                field = width if name == "word_embedding_size" else name
                raise ConfigError(
                    f"objective.generator.{field} is {values[0]}, but objective.model.{field} is "
                    f"{values[1]}; expected the same, because {reason}"
                )

    def _equal_fields(self) -> dict[str, str]:
        """Returns the fields that both networks must agree on, with the reason."""
        fields = {"vocab_size": "the discriminator reads tokens that the generator samples"}
        match self.embedding_sharing:
            case "shared":
                tables = ("word_embedding_size", "positions", "type_vocab_size", "layer_norm_eps")
                return dict.fromkeys(("vocab_size", *tables), "both use the same embeddings")
            case "gradient_disentangled":
                reason = "the discriminator's embeddings are the generator's plus a change"
                return fields | dict.fromkeys(("word_embedding_size", "positions"), reason)
            case None:
                return fields


_TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


ListwiseLoss = Literal["listnet", "ranknet", "lambdaloss"]
"""A loss of a reranker that compares the texts of a query; see `bert_jax.tasks.listwise_losses`."""
LISTWISE_LOSSES: tuple[ListwiseLoss, ...] = get_args(ListwiseLoss)


@dataclass(frozen=True, kw_only=True)
class FineTuning(ObjectiveBase):
    """Configures fine-tuning: an encoder with the head of a task (Devlin et al. 2019, section 4).

    The loss is the cross-entropy of the labels (binary for a `RankingHead` or a `MultiLabelHead`),
    and the squared error for a `RegressionHead`. With `distillation`, the outputs of a teacher with
    the same head are learned, too, or the soft labels of the training examples instead of their
    labels.
    """

    takes_methods = True

    model: EncoderConfig  # the encoder to adapt
    head: TaskHead  # what is predicted, with the names of the labels
    # Dropout on the input of the head; not used by `QuestionAnsweringHead`, as in BERT's release.
    classifier_dropout: float = 0.1
    label_smoothing: float = 0.0  # fraction of a label that is spread evenly over all classes
    # One for each label of the head; () for equal weights. Those of a `MultiLabelHead` weight texts
    # that have the label (`pos_weight` in PyTorch).
    class_weights: tuple[float, ...] = ()
    # The fraction of the training texts that have each label of a `MultiLabelHead`, from which its
    # bias starts; () for a bias of 0.
    label_frequencies: tuple[float, ...] = ()
    # A teacher or soft labels to learn from; None: the labels alone.
    distillation: TaskDistillation | SoftLabels | None = None
    # For a `RankingHead`: compares the texts of a query; None: the loss of each text alone.
    listwise_loss: ListwiseLoss | None = None
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

    def __post_init__(self) -> None:
        if isinstance(self.distillation, SoftLabels):
            if self.head.scope != "sequence" or not class_labels(self.head):
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
        if self.listwise_loss is not None:
            self._check_listwise_loss()
        check_dropout("objective.classifier_dropout", self.classifier_dropout)
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"objective.label_smoothing is {self.label_smoothing}, expected 0 <= "
                "label_smoothing < 1"
            )
        head_type = type(self.head).__name__
        has_classes = bool(class_labels(self.head)) or self.head.scope == "choices"
        if self.label_smoothing and not has_classes:
            raise ConfigError(
                f"objective.label_smoothing is {self.label_smoothing}, but a {head_type} has no "
                "classes to smooth over; set it to 0"
            )
        if self.class_weights:
            _check_class_weights(self.class_weights, self.head)
        found = self.label_frequencies
        is_valid = len(found) == len(class_labels(self.head)) and all(0 < x < 1 for x in found)
        if found and not is_valid:
            raise ConfigError(
                f"objective.label_frequencies is {found}; expected a number between 0 and 1 for "
                "each label of the head, or ()"
            )

    def _check_listwise_loss(self) -> None:
        name = f"objective.listwise_loss (--loss) is {self.listwise_loss!r}"
        if self.listwise_loss not in LISTWISE_LOSSES:
            raise ConfigError(f"{name}; expected one of {', '.join(LISTWISE_LOSSES)}, or null")
        if not scores_relevance(self.head):
            raise ConfigError(
                f"{name}, but objective.head is a {type(self.head).__name__}; expected "
                "that of a reranker (--kind ranking), or no loss"
            )
        if self.distillation is not None:
            raise ConfigError(f"{name} and objective.distillation is set; expected one of them")

    @property
    def teacher(self) -> Teacher | None:
        """Returns the teacher, if there is one."""
        if isinstance(self.distillation, TaskDistillation):
            return self.distillation.teacher
        return None

    def check_training(self, train: TrainConfig) -> None:
        """Raises a ConfigError if the texts of a query would be in several microbatches."""
        super().check_training(train)
        microbatches = max(phase.gradient_accumulation_steps for phase in train.phases)
        if self.listwise_loss is not None and microbatches > 1:
            raise ConfigError(
                f"objective.listwise_loss (--loss) is {self.listwise_loss!r}, which compares the "
                f"texts of a query, and train.phases has gradient_accumulation_steps "
                f"{microbatches}; expected 1, and objective.compute.remat=full to save memory"
            )


def _check_class_weights(weights: tuple[float, ...], head: TaskHead) -> None:
    labels = class_labels(head)
    if not labels:
        raise ConfigError(
            f"objective.class_weights is {weights}, but a {type(head).__name__} has no classes; "
            "expected ()"
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

    name: str  # as in `NamedTask`
    head: TaskHead  # what is predicted for this task


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
class MultiTask(ObjectiveBase):
    """Configures multi-task fine-tuning: one encoder with a head for each task.

    Like MT-DNN (Liu et al. 2019), but each batch mixes examples of all tasks.
    """

    takes_methods = True

    model: EncoderConfig  # the encoder that all tasks share
    heads: tuple[NamedHead, ...]  # one for each task, in the order of their ids
    # How the losses of the tasks add up.
    weighting: UniformWeighting | UncertaintyWeighting = UniformWeighting()
    classifier_dropout: float = 0.1  # of each head, see `FineTuning`
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

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
            if named_head.head.scope == "choices":
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
        # Longformer's heads give global attention to the first token, the question or none.
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
