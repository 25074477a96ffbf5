"""Defines what an objective is: a loss, the network that it needs, and all that depends on both.

The training loop needs the loss and the parameters. Other modules ask an objective for its FLOPs,
for where its parameters come from, and for the model that a run of it has trained, so that none of
them has to know which objectives there are.
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax

from bert_jax.losses import WeightedMean
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.sentence_encoder.config import EmbeddingConfig
from bert_jax.params import paths
from bert_jax.params.functional import Network, Params

Batch = dict[str, jax.Array]


class LossOutput(NamedTuple):
    """Holds the loss of a microbatch, to be added to the losses of the batch's other microbatches.

    Attributes:
      loss: float32 scalar. The losses of all microbatches add up to the loss of the batch exactly,
        because each is divided by the denominators of the whole batch.
      metrics: sums with weights, to be added first and then divided.
      statistics: arrays of sums with weights, added in the same way, from which
        `Objective.update_statistics` computes running averages.
    """

    loss: jax.Array
    metrics: dict[str, WeightedMean]
    statistics: dict[str, WeightedMean] = {}  # noqa: RUF012 (never changed)


class BatchSizes(NamedTuple):
    """Holds the sizes of a batch from which FLOPs are computed; `bert_jax.batch` has the letters.

    Attributes:
      examples: B.
      sequences: B, or B x A for choices, windows and texts to embed, or R for packed texts.
      length: L.
      predictions: P.
      target_length: T.
      is_packed: whether the sequences are rows with several texts of the examples.
    """

    examples: int
    sequences: int
    length: int
    predictions: int = 0
    target_length: int = 0
    is_packed: bool = False

    @classmethod
    def from_dims(cls, dims: Mapping[str, int]) -> "BatchSizes":
        """Returns the sizes of a batch with these dimensions, such as {"B": 32, "L": 128}."""
        return cls(
            examples=dims["B"],
            sequences=dims.get("R", dims["B"] * dims.get("A", 1)),
            length=dims["L"],
            predictions=dims.get("P", 0),
            target_length=dims.get("T", 0),
            is_packed="R" in dims,
        )


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """Holds the model of a run, without the second networks and heads of its training.

    Attributes:
      params: nested dict of the encoder and its heads.
      head: the head of the task; None for a pretrained model or a sentence encoder.
      tasks: the names of the tasks, for a multi-task run of which no task was chosen.
      sentence_encoder: the config of what makes vectors of hidden states, in a run that trained an
        encoder of texts.
      sentence_head: its parameters, nested; {} if it has none.
    """

    params: dict[str, Any]
    head: TaskHead | None = None
    tasks: tuple[str, ...] = ()
    sentence_encoder: EmbeddingConfig | None = None
    sentence_head: dict[str, Any] = field(default_factory=dict[str, Any])


class Objective(abc.ABC):
    """Computes a loss from parameters and a batch; it owns the network.

    Attributes:
      config: the config of the objective.
      network: what `abstract` and `init` describe, if there is one network only.
      makes_encoder: whether a run makes an encoder that `load_model` can load.
      starts_from: the kind of pretrained model from which a run can start.
      has_tasks: whether a run has several tasks, of which `trained_model` selects one.
      shown_metrics: the metrics that messages show, in this order, as far as an evaluation has
        them; () for all. The report of a run has the others, too.
    """

    config: Any
    network: Network[Any]
    makes_encoder: ClassVar[bool] = True
    starts_from: ClassVar[Literal["encoder", "sentence encoder", "encoder-decoder"]] = "encoder"
    has_tasks: ClassVar[bool] = False
    shown_metrics: ClassVar[tuple[str, ...]] = ()

    def abstract(self) -> Params:
        """Returns the parameters as shapes and dtypes."""
        return self.network.abstract()

    def init(self, key: jax.Array) -> Params:
        """Returns newly initialized parameters, float32."""
        return self.network.init(key)

    @abc.abstractmethod
    def batch_fields(self) -> tuple[str, ...]:
        """Returns the batch fields that the loss needs; see `bert_jax.batch`."""

    # Known before the loss: every microbatch divides its sum by the count of the whole batch, so
    # that the parts add up exactly, even for two losses with different counts.
    @abc.abstractmethod
    def loss_denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the divisor of each loss's sum: float32 scalars that depend on the batch only."""

    @abc.abstractmethod
    def compute_loss(
        self,
        params: Params,
        batch: Batch,
        loss_denominators: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> LossOutput:
        """Computes the loss of a batch, or of a part of the batch of `loss_denominators`."""

    def update_statistics(self, params: Params, statistics: dict[str, WeightedMean]) -> Params:
        """Returns the parameters after an update, with running averages of its batch.

        The averages are parameters without a gradient, so that sharding, checkpoints and planning
        need no rules of their own. They are not part of the model that a run makes.
        """
        del statistics
        return params

    def encoded_sequences(self, sizes: BatchSizes) -> tuple[tuple[int, int], ...]:
        """Returns (number, length) of the sequences that the encoder computes in a step."""
        return ((sizes.sequences, sizes.length),)

    def encoded_positions(self, sizes: BatchSizes) -> int:
        """Returns how many positions the encoder computes in a step, padding included."""
        return sum(number * length for number, length in self.encoded_sequences(sizes))

    def encoder_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of the encoder, which adaptation methods can make cheaper."""
        return sum(
            number * length * self.config.model.encoder_flops(length)
            for number, length in self.encoded_sequences(sizes)
        )

    def head_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of what is trained besides; task heads, under 0.1 %, are 0."""
        del sizes
        return 0.0

    def teacher_flops(self, sizes: BatchSizes) -> float:
        """Returns the forward FLOPs of networks that are not trained."""
        del sizes
        return 0.0

    def summed_vectors(self, sizes: BatchSizes) -> int:
        """Returns how many hidden vectors of a batch tensor parallelism sums over devices.

        Each vector has `model.hidden_size` components. A layer sums the outputs of attention and of
        the feed-forward network, and in the backward pass the gradients of their inputs (Shoeybi et
        al. 2019, section 3).
        """
        return 4 * self.config.model.num_applied_layers * self.encoded_positions(sizes)

    def pretrained_path(self, path: str, head: TaskHead | None) -> str | None:
        """Returns the parameter of a pretrained model from which a parameter starts; None: random.

        Args:
          path: a parameter of this objective.
          head: the task head of the pretrained model, if it has one.
        """
        del head
        return path

    def masked_lm_purpose(self) -> str | None:
        """Returns why a pretrained model must have a masked-LM head, to follow "it cannot"."""
        return None

    def check_teacher(self, path: str, head: TaskHead | None, missing: tuple[str, ...]) -> None:
        """Checks that a teacher predicts what the student learns.

        Args:
          path: the folder of the teacher, for messages.
          head: the teacher's task head, if it has one.
          missing: the pretraining heads that its files do not have.
        """
        del path, head, missing

    def trained_model(self, params: Params, task: str | None) -> TrainedModel:
        """Returns the model that a run of the objective trained, from a checkpoint's parameters.

        Args:
          task: the task to select; None unless `has_tasks`, where it selects no head.

        Raises:
          ConfigError: there is no such task.
        """
        del task
        return TrainedModel(params=paths.without_auxiliary_networks(params))


def masked_lm_flops(model: EncoderConfig) -> int:
    """Returns the forward FLOPs of the masked-LM head for a prediction: its layers, and E x V."""
    width = model.word_embedding_size
    match model.masked_lm_transform:
        case "own" | "shared":
            layers = width * model.hidden_size
        case "two_layers":
            layers = 2 * width * model.masked_lm_size
        case "none":
            layers = 0
    return 2 * (layers + width * model.vocab_size)
