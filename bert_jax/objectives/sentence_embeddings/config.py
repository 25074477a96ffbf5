"""Defines the configs of training sentence encoders: the objective and its losses.

Names and defaults are those of sentence-transformers. Imports no jax.
"""

import math
from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig

_LOSS = "objective.loss"


@dataclass(frozen=True, kw_only=True)
class SoftmaxLoss:
    """Classifies pairs by (u, v, |u - v|) with a linear layer (SBERT, Reimers and Gurevych 2019).

    The linear layer is not part of the trained sentence encoder.
    """

    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.labels)) < 2 or len(set(self.labels)) < len(self.labels):
            raise ConfigError(
                f"{_LOSS}.labels is {list(self.labels)}, expected at least two different names"
            )


@dataclass(frozen=True, kw_only=True)
class CosineSimilarityLoss:
    """Fits the cosine of pairs to their scores from 0 to 1, by the squared error."""


@dataclass(frozen=True, kw_only=True)
class CoSENTLoss:
    """Puts the cosines of the pairs of a batch into the order of their scores (Su 2022)."""

    scale: float = 20.0

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale)


@dataclass(frozen=True, kw_only=True)
class MultipleNegativesRankingLoss:
    """Finds the positive of each anchor among the texts of the batch (Henderson et al. 2017).

    An example is an anchor, a positive and any number of hard negatives. The candidates are the
    positives and the hard negatives of all examples.

    Attributes:
      scale: multiplies the cosines; 1 / temperature.
      symmetric: also finds the anchor of each positive, and takes the mean of both losses.
    """

    scale: float = 20.0
    symmetric: bool = False

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale)


@dataclass(frozen=True, kw_only=True)
class TripletLoss:
    """Brings the positive of an anchor nearer to it than the negative, by a Euclidean margin."""

    margin: float = 5.0

    def __post_init__(self) -> None:
        _check_positive("margin", self.margin)


@dataclass(frozen=True, kw_only=True)
class ContrastiveLoss:
    """Brings pairs with label 1 together, and those with label 0 apart, up to a cosine margin."""

    margin: float = 0.5

    def __post_init__(self) -> None:
        _check_positive("margin", self.margin)


@dataclass(frozen=True, kw_only=True)
class UnsupervisedSimCSE:
    """Recognizes a text after other dropout among the texts of the batch (Gao et al. 2021, 3).

    Each text is in a batch twice; dropout makes its two vectors different.

    Attributes:
      mlp_only_train: whether the loss reads tanh(W v + b) in place of the vector v, with a layer
        that is trained and then left out, as in the paper with the pooling "cls" (section 6.3).
    """

    temperature: float = 0.05
    mlp_only_train: bool = False

    def __post_init__(self) -> None:
        _check_positive("temperature", self.temperature)


@dataclass(frozen=True, kw_only=True)
class SupervisedSimCSE:
    """Finds the entailed hypothesis among the hypotheses of the batch (Gao et al. 2021, 4).

    An example is a premise, an entailed hypothesis and a contradicting one.

    Attributes:
      hard_negative_weight: logarithm of the weight of an example's own contradiction in the
        softmax; 0 is the weight 1.
    """

    temperature: float = 0.05
    hard_negative_weight: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("temperature", self.temperature)
        if not math.isfinite(self.hard_negative_weight):
            raise ConfigError(
                f"{_LOSS}.hard_negative_weight is {self.hard_negative_weight}, expected a number"
            )


@dataclass(frozen=True, kw_only=True)
class MSELoss:
    """Fits the vectors of single texts to those of a teacher, by the mean squared error.

    Attributes:
      teacher: a model whose vectors have the same size; it is read when the run starts or resumes.
    """

    teacher: str


@dataclass(frozen=True, kw_only=True)
class MarginMSELoss:
    """Fits query . positive - query . negative to the same difference of a teacher.

    Attributes:
      teacher: a model with vectors of any size; it is read when the run starts or resumes.
    """

    teacher: str


SingleLoss = (
    SoftmaxLoss
    | CosineSimilarityLoss
    | CoSENTLoss
    | MultipleNegativesRankingLoss
    | TripletLoss
    | ContrastiveLoss
    | UnsupervisedSimCSE
    | SupervisedSimCSE
    | MSELoss
    | MarginMSELoss
)


@dataclass(frozen=True, kw_only=True)
class MatryoshkaLoss:
    """Sums a loss over vectors of several sizes, so that vectors can be shortened later.

    Each vector is cut to its first components and normalized (Kusupati et al. 2022). The vectors of
    a teacher are cut, too, and `SoftmaxLoss` uses the weights of these components alone (MRL-E).

    Attributes:
      dims: the sizes; the size of the vectors of the model should be one of them.
      weights: one for each size; () for equal weights of 1.
    """

    loss: SingleLoss
    dims: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.dims or min(self.dims) < 1 or len(set(self.dims)) < len(self.dims):
            raise ConfigError(
                f"{_LOSS}.dims is {list(self.dims)}, expected different sizes of at least 1"
            )
        if self.weights and len(self.weights) != len(self.dims):
            raise ConfigError(
                f"{_LOSS}.weights has {len(self.weights)} numbers, but {_LOSS}.dims has "
                f"{len(self.dims)}; expected one for each, or ()"
            )
        for weight in self.weights:
            _check_positive("weights", weight)


SentenceLoss = SingleLoss | MatryoshkaLoss


def single_loss(loss: SentenceLoss) -> SingleLoss:
    """Returns the loss itself, or the one that a `MatryoshkaLoss` sums."""
    return loss.loss if isinstance(loss, MatryoshkaLoss) else loss


def has_in_batch_negatives(loss: SentenceLoss) -> bool:
    """Returns whether texts of other examples are negatives, so that no text may occur twice."""
    return isinstance(
        single_loss(loss), MultipleNegativesRankingLoss | UnsupervisedSimCSE | SupervisedSimCSE
    )


def compares_examples(loss: SentenceLoss) -> bool:
    """Returns whether the loss of a batch is not the sum of the losses of its parts."""
    return has_in_batch_negatives(loss) or isinstance(single_loss(loss), CoSENTLoss)


def teacher_path(loss: SentenceLoss) -> str | None:
    """Returns the path of the teacher of a loss; None if it has none."""
    match single_loss(loss):
        case MSELoss(teacher=teacher) | MarginMSELoss(teacher=teacher):
            return teacher
        case _:
            return None


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """Configures the training of a sentence encoder: an encoder, pooling, and a loss of vectors.

    Attributes:
      chunk_size: examples whose texts are encoded at once, which must divide the batch size; None
        encodes the whole batch at once. Chunks are encoded one after another and again in the
        backward pass, so the memory is that of a chunk, and the loss and its gradients are those of
        the whole batch (GradCache, Gao et al. 2021). Dropout differs from that without chunks.
    """

    model: EncoderConfig
    sentence_encoder: SentenceEncoderConfig = SentenceEncoderConfig()  # noqa: RUF009 (frozen)
    loss: SentenceLoss
    chunk_size: int | None = None
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        size = self.embedding_size
        if isinstance(self.loss, MatryoshkaLoss) and max(self.loss.dims) > size:
            raise ConfigError(
                f"{_LOSS}.dims is {list(self.loss.dims)}, but vectors have {size} components"
            )
        if self.chunk_size is not None:
            check_range("objective.chunk_size", self.chunk_size, at_least=1)

    @property
    def embedding_size(self) -> int:
        """Returns the number of components of the vectors that the loss reads."""
        return self.sentence_encoder.embedding_size(self.model.hidden_size)

    def check_batch(self, batch_size: int, gradient_accumulation_steps: int) -> None:
        """Raises a ConfigError if the loss of a batch cannot be computed in these parts."""
        if self.chunk_size is not None and batch_size % self.chunk_size:
            raise ConfigError(
                f"objective.chunk_size is {self.chunk_size}, which does not divide the batch_size "
                f"{batch_size} of train.phases; expected a divisor of it"
            )
        if gradient_accumulation_steps == 1:
            return
        if compares_examples(self.loss):
            raise ConfigError(
                f"train.phases has gradient_accumulation_steps {gradient_accumulation_steps}, but "
                f"{type(single_loss(self.loss)).__name__} compares each example with all others of "
                "the batch; expected 1, and objective.chunk_size to save memory"
            )
        if self.chunk_size is not None:
            raise ConfigError(
                f"objective.chunk_size is {self.chunk_size} and train.phases has "
                f"gradient_accumulation_steps {gradient_accumulation_steps}; expected one of them"
            )


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{_LOSS}.{name} is {value}, expected a number > 0")
