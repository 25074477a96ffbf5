"""Defines the losses of sentence-embedding training as configs.

Names and defaults are as in sentence-transformers. Imports no jax.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.errors import ConfigError, check_range

_LOSS = "objective.loss"


@dataclass(frozen=True, kw_only=True)
class SoftmaxLoss:
    """Classifies pairs by (u, v, |u - v|) with a linear layer (SBERT, Reimers and Gurevych 2019).

    The linear layer is not part of the trained sentence encoder.
    """

    labels: tuple[str, ...]  # the classes of pairs, in the order of their logits

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

    scale: float = 20.0  # multiplies the differences of cosines; 1 / temperature

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale)


@dataclass(frozen=True, kw_only=True)
class AnglELoss:
    """Puts the angles of the pairs of a batch into the order of their scores (Li and Li 2024).

    The two halves of a vector are the real and the imaginary parts of complex numbers. Angles have
    a gradient where that of the cosine vanishes.
    """

    scale: float = 20.0  # multiplies the differences of similarities; 1 / temperature

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
class GISTEmbedLoss:
    """Finds the positive of each anchor, without the negatives that a guide finds too similar.

    The examples are those of `MultipleNegativesRankingLoss`. Other anchors are candidates, too, and
    so are the cosines of an anchor's positive with other positives. A candidate that a guide model
    finds more similar than anchor and positive is left out (Solatorio 2024, "GISTEmbed").

    Attributes:
      guide: a model with vectors of any size; it is read when the run starts or resumes.
      temperature: divides the cosines.
      margin: a candidate is left out if its cosine by the guide is larger than that of the positive
        minus the margin.
    """

    guide: str
    temperature: float = 0.01
    margin: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("temperature", self.temperature)
        check_range(f"{_LOSS}.margin", self.margin, at_least=-2, at_most=2)


@dataclass(frozen=True, kw_only=True)
class TripletLoss:
    """Brings the positive of an anchor nearer to it than the negative, by a Euclidean margin."""

    margin: float = 5.0  # Euclidean distance by which the negative should be farther away

    def __post_init__(self) -> None:
        _check_positive("margin", self.margin)


@dataclass(frozen=True, kw_only=True)
class ContrastiveLoss:
    """Brings pairs with label 1 together, and those with label 0 apart, up to a cosine margin."""

    margin: float = 0.5  # cosine distance from which pairs with label 0 no longer count

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

    temperature: float = 0.05  # divides the cosines
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

    temperature: float = 0.05  # divides the cosines
    hard_negative_weight: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("temperature", self.temperature)
        if not math.isfinite(self.hard_negative_weight):
            raise ConfigError(
                f"{_LOSS}.hard_negative_weight is {self.hard_negative_weight}, expected a number"
            )


@dataclass(frozen=True, kw_only=True)
class MSELoss:
    """Fits the vectors of single texts to a teacher's vectors, by the mean squared error.

    Attributes:
      teacher: a model whose vectors have the same size; it is read when the run starts or resumes.
    """

    teacher: str


TeacherDistance = Literal["cosine", "mse"]
"""How a vector is compared with a teacher's: 1 - cosine, or the mean squared difference."""
TEACHER_DISTANCES: tuple[TeacherDistance, ...] = get_args(TeacherDistance)


@dataclass(frozen=True, kw_only=True)
class EmbedDistillLoss:
    """Fits the vectors of single texts, after a linear layer, to a teacher's of any size.

    The layer is trained with the model and then left out, as in jina-embeddings-v5.

    Attributes:
      teacher: a model of vectors; it is read when the run starts or resumes.
      projection_size: the number of components of the teacher's vectors, to which the layer maps.
        None: no layer, for a teacher with vectors of the same size.
    """

    teacher: str
    distance: TeacherDistance = "cosine"  # how vectors are compared, see `TeacherDistance`
    projection_size: int | None = None

    def __post_init__(self) -> None:
        if self.distance not in TEACHER_DISTANCES:
            raise ConfigError(
                f"{_LOSS}.distance is {self.distance!r}; expected one of "
                f"{', '.join(TEACHER_DISTANCES)}"
            )
        if self.projection_size is not None:
            check_range(f"{_LOSS}.projection_size", self.projection_size, at_least=1)


# A cross-encoder's output before its activation, because the sigmoid makes all margins small.
@dataclass(frozen=True, kw_only=True)
class MarginMSELoss:
    """Fits query . positive - query . negative to the same difference of a teacher.

    An example is a query, a positive and one or more negatives (Hofstätter et al. 2020). Sparse and
    multi-vector models have their own scores in place of the dot products.

    Attributes:
      teacher: a cross-encoder, whose outputs are the scores, or a model with vectors of any size,
        whose dot products are; it is read when the run starts or resumes. None: the data has them.
    """

    teacher: str | None = None


@dataclass(frozen=True, kw_only=True)
class DistillKLDivLoss:
    """Fits the softmax over the scores of a query's own texts to that of a teacher's scores.

    The loss is the KL divergence at `temperature`, times its square (Lin et al. 2020, "Distilling
    Dense Representations for Ranking using Tightly-Coupled Teachers"). The examples are those of
    `MarginMSELoss`.

    Attributes:
      teacher: see `MarginMSELoss`.
    """

    teacher: str | None = None
    temperature: float = 1.0  # divides the scores of both models

    def __post_init__(self) -> None:
        _check_positive("temperature", self.temperature)


DistillationLoss = MarginMSELoss | DistillKLDivLoss
"""The losses that compare scores of a query's own texts with those of a teacher."""


@dataclass(frozen=True, kw_only=True)
class SpladeLoss:
    """Finds the positive of each query by dot products of sparse vectors (Formal et al. 2021).

    The examples are those of `MultipleNegativesRankingLoss`. The FLOPS regularization (Paria et al.
    2020) is added: the sum over tokens of the squared mean weight in the batch, for queries and for
    positives with hard negatives.

    Attributes:
      scale: multiplies the dot products; 1 / temperature.
      distillation: compares the dot products with the scores of a teacher, instead of finding the
        positive.
      document_regularizer_weight: of the regularization of positives and hard negatives.
      query_regularizer_weight: of the regularization of queries; 0 for none, as with static
        queries.
      regularizer_warmup_ratio: the part of the run in which both weights grow from 0, with the
        square of the update's number.
    """

    scale: float = 1.0
    distillation: DistillationLoss | None = None
    document_regularizer_weight: float = 3e-5
    query_regularizer_weight: float = 5e-5
    regularizer_warmup_ratio: float = 1 / 3

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale)
        for field in ("document_regularizer_weight", "query_regularizer_weight"):
            weight = getattr(self, field)
            if not (math.isfinite(weight) and weight >= 0):
                raise ConfigError(f"{_LOSS}.{field} is {weight}, expected a number of at least 0")
        if not 0 <= self.regularizer_warmup_ratio <= 1:
            raise ConfigError(
                f"{_LOSS}.regularizer_warmup_ratio is {self.regularizer_warmup_ratio}, expected a "
                "number from 0 to 1"
            )


@dataclass(frozen=True, kw_only=True)
class MaxSimRankingLoss:
    """Finds the positive of each query by late interaction (Khattab and Zaharia 2020).

    The examples are those of `MultipleNegativesRankingLoss`.

    Attributes:
      distillation: compares the scores of late interaction with those of a teacher, instead of
        finding the positive.
    """

    scale: float = 1.0  # multiplies the scores; 1 / temperature
    distillation: DistillationLoss | None = None

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale)


@dataclass(frozen=True, kw_only=True)
class DenoisingAutoEncoderLoss:
    """Predicts single texts from the vectors of a part of their words (TSDAE, Wang et al. 2021).

    The decoder sees the vector and the tokens before each token. It has the weights of the encoder
    and of its masked-LM head; in each layer it has attention to the vector besides, which is
    trained with them and then left out.
    """

    deletion_ratio: float = 0.6  # probability with which a word is deleted, drawn for each epoch

    def __post_init__(self) -> None:
        check_range(f"{_LOSS}.deletion_ratio", self.deletion_ratio, at_least=0, at_most=1)


SingleLoss = (
    SoftmaxLoss
    | CosineSimilarityLoss
    | CoSENTLoss
    | AnglELoss
    | MultipleNegativesRankingLoss
    | GISTEmbedLoss
    | TripletLoss
    | ContrastiveLoss
    | UnsupervisedSimCSE
    | SupervisedSimCSE
    | MSELoss
    | EmbedDistillLoss
    | MarginMSELoss
    | DistillKLDivLoss
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

    loss: SingleLoss  # summed over the sizes
    dims: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.loss, EmbedDistillLoss) and self.loss.projection_size is not None:
            raise ConfigError(
                f"{_LOSS}.loss.projection_size is {self.loss.projection_size}, but vectors of "
                "several sizes (--matryoshka-dims) have no common layer; expected null, or one size"
            )
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


@dataclass(frozen=True, kw_only=True)
class AdaptiveLayerLoss:
    """Adds a loss over the vectors of each earlier layer, so that layers can be left out later.

    With a `MatryoshkaLoss` it is 2D Matryoshka (Li et al. 2024, "2D Matryoshka Sentence
    Embeddings"). The vectors of an earlier layer also learn those of the last one: the KL
    divergence between the softmaxes over their components. The layers are the input of the first
    layer and the outputs of all others, all of them at every update.

    Attributes:
      loss: of the vectors of each layer.
      prior_layers_weight: of the mean of the losses over the layers before the last.
      kl_div_weight: of the sum over these layers of the KL divergence, times the temperature.
    """

    loss: SingleLoss | MatryoshkaLoss
    prior_layers_weight: float = 1.0
    kl_div_weight: float = 1.0
    kl_temperature: float = 0.3  # divides the components before the softmax

    def __post_init__(self) -> None:
        for name in ("prior_layers_weight", "kl_div_weight", "kl_temperature"):
            _check_positive(name, getattr(self, name))


DenseLoss = SingleLoss | MatryoshkaLoss | AdaptiveLayerLoss
"""The losses that compare dense vectors, one for each text."""

UnsummedLoss = SpladeLoss | MaxSimRankingLoss | DenoisingAutoEncoderLoss
"""The losses that cannot be summed over sizes of vectors or layers."""

SentenceLoss = DenseLoss | UnsummedLoss


def single_loss(loss: SentenceLoss) -> SingleLoss | UnsummedLoss:
    """Returns the loss itself, or the one that is summed over sizes of vectors and layers."""
    of_layer = layer_loss(loss)
    return of_layer.loss if isinstance(of_layer, MatryoshkaLoss) else of_layer


def layer_loss(loss: SentenceLoss) -> SingleLoss | MatryoshkaLoss | UnsummedLoss:
    """Returns the loss itself, or the one that an `AdaptiveLayerLoss` sums over layers."""
    return loss.loss if isinstance(loss, AdaptiveLayerLoss) else loss


def distillation_loss(loss: SentenceLoss) -> DistillationLoss | None:
    """Returns the loss that compares scores with those of a teacher; None for other losses."""
    match single_loss(loss):
        case MarginMSELoss() | DistillKLDivLoss() as distillation:
            return distillation
        case SpladeLoss(distillation=distillation) | MaxSimRankingLoss(distillation=distillation):
            return distillation
        case _:
            return None


def has_in_batch_negatives(loss: SentenceLoss) -> bool:
    """Returns whether texts of other examples are negatives, so that no text may occur twice."""
    return distillation_loss(loss) is None and isinstance(
        single_loss(loss),
        MultipleNegativesRankingLoss
        | GISTEmbedLoss
        | UnsupervisedSimCSE
        | SupervisedSimCSE
        | SpladeLoss
        | MaxSimRankingLoss,
    )


def compares_examples(loss: SentenceLoss) -> bool:
    """Returns whether the loss of a batch is not the sum of the losses of its parts."""
    # The regularization of `SpladeLoss` squares the mean over the batch.
    return has_in_batch_negatives(loss) or isinstance(
        single_loss(loss), CoSENTLoss | AnglELoss | SpladeLoss
    )


def teacher_path(loss: SentenceLoss) -> str | None:
    """Returns the path of the teacher or guide of a loss; None if it has none."""
    match single_loss(loss):
        case MSELoss(teacher=path) | EmbedDistillLoss(teacher=path) | GISTEmbedLoss(guide=path):
            return path
        case _:
            return getattr(distillation_loss(loss), "teacher", None)


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{_LOSS}.{name} is {value}, expected a number > 0")
