"""Defines the configs of task heads, and the layers that families have under their heads.

Imports no jax. The modules are in `heads/modules.py`.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.layers.config import Activation

SPAN_POSITION_EMBEDDING_SIZE = 200
"""Width of the position embeddings of the span boundary head (SpanBERT's release)."""


MaskedLMTransform = Literal["own", "shared", "two_layers", "none"]
"""The layers between the encoder and the masked-LM logits.

own         a dense layer and a norm, which no task head uses (BERT)
shared      the prediction head, which the task heads use as well (ModernBERT)
two_layers  two dense layers and activations without biases; the table has no bias (UltraBERT)
none        the head's own table alone, without a dense layer, a norm or a bias (EuroBERT)
"""


ReplacedTokenDetector = Literal["dense", "first_token"]
"""The layers that a family puts on its encoder to detect replaced tokens in pretraining.

dense        dense, activation, linear to one logit (ELECTRA)
first_token  sum with the first token, norm, dense, activation, linear: the layers of
             `LMMaskPredictionHead` in DeBERTa-v3's release
"""


LARGEST_NUM_LABELS = 2**20
"""More labels than this are a mistake, which is refused before memory runs out."""

HEADS = (
    "pooler",
    "prediction_head",
    "masked_lm",
    "next_sentence",
    "sentence_order",
    "span_boundary",
    "replaced_token",
)
"""Names of the heads that pretraining trains; a family or an objective has some of them."""

WINDOW_ENCODER = "window_encoder"
"""The name of the Transformer over windows in the parameters."""

Scope = Literal["sequence", "choices", "tokens", "span"]
"""What a head scores: a whole sequence, each choice of an example (a sequence of its own), every
token, or every token as the start and the end of a span."""


@dataclass(frozen=True, kw_only=True)
class WindowEncoder:
    """Configures the Transformer over the windows of a long text (Pappagari et al. 2019).

    The encoder encodes each window, and this Transformer encodes one vector of each window (that
    of the first token, unless the family pools otherwise) into one vector of the text, which the
    head classifies. All of it is trained end to end.
    """

    num_windows: int = 8  # windows of a text that are read, which has fewer if it is shorter
    num_layers: int = 2  # layers of the Transformer over windows, of the encoder's width

    def __post_init__(self) -> None:
        name = "objective.head.window_encoder"
        check_range(f"{name}.num_windows", self.num_windows, at_least=2, at_most=4096)
        check_range(f"{name}.num_layers", self.num_layers, at_least=1, at_most=24)


@dataclass(frozen=True, kw_only=True)
class LabelTokens:
    """Lists the tokens whose masked-LM logits at the mask score the classes of a task.

    The logit of a class is the mean over its words of the mean over the tokens of a word.
    """

    mask_token_id: int  # the id at whose position logits are read
    token_ids: tuple[tuple[tuple[int, ...], ...], ...]  # class -> words -> tokens


# Label names are part of the head, so that checkpoint, export and prediction always have the same
# ones.
@dataclass(frozen=True, kw_only=True)
class SequenceClassificationHead:
    """Predicts one of C labels for a text or a pair of texts.

    With `label_tokens`, the pretrained masked-LM head scores label words at the mask of a prompt.
    """

    scope: ClassVar[Scope] = "sequence"
    labels: tuple[str, ...]  # label i is class i
    # From 0 to 1, for two classes, with the sum 1: a class is predicted if its probability is above
    # its threshold; () for the class with the highest probability. Chosen on dev after training.
    thresholds: tuple[float, ...] = field(default=(), compare=False)
    window_encoder: WindowEncoder | None = None  # None: a text is one sequence
    label_tokens: LabelTokens | None = None  # None: a new classifier is trained

    def __post_init__(self) -> None:
        _check_labels(self.labels)
        _check_thresholds(self.labels, self.thresholds)
        if self.thresholds and len(self.labels) != 2:
            raise ConfigError(
                f"head.thresholds is {self.thresholds} for {len(self.labels)} classes; expected "
                "two classes, or ()"
            )
        words = self.label_tokens.token_ids if self.label_tokens else ()
        if words and (self.window_encoder or len(words) != len(self.labels)):
            raise ConfigError(
                f"objective.head.label_tokens has tokens for {len(words)} labels; expected all "
                f"{len(self.labels)} labels, and no window_encoder"
            )


DEFAULT_THRESHOLD = 0.5
"""The threshold of a label for which none was chosen: where the logit is 0."""


@dataclass(frozen=True, kw_only=True)
class MultiLabelHead:
    """Predicts which of C labels a text or a pair of texts has: any number of them, or none.

    Each label has a logit, whose sigmoid is its probability, and is predicted if that is above its
    threshold. Thresholds are chosen on dev after training, so the config of a run has none.
    """

    scope: ClassVar[Scope] = "sequence"
    labels: tuple[str, ...]  # label i has logit i
    # From 0 to 1, one for each label; () for 0.5. Not compared: a head with other thresholds has
    # the same parameters, so another run can start from them or learn from them as a teacher.
    thresholds: tuple[float, ...] = field(default=(), compare=False)
    window_encoder: WindowEncoder | None = None  # None: a text is one sequence

    def __post_init__(self) -> None:
        _check_labels(self.labels)
        _check_thresholds(self.labels, self.thresholds)


@dataclass(frozen=True, kw_only=True)
class RegressionHead:
    """Predicts one number for a text or a pair of texts."""

    scope: ClassVar[Scope] = "sequence"
    window_encoder: WindowEncoder | None = None  # None: a text is one sequence


RankingActivation = Literal["sigmoid", "identity"]
"""What maps the output of a cross-encoder to a score: from 0 to 1, or the output itself, where a
larger score is more relevant."""


@dataclass(frozen=True, kw_only=True)
class RankingHead:
    """Scores how relevant a text is to a query: a cross-encoder (Nogueira and Cho 2019).

    It has one output, trained with binary cross-entropy on labels from 0 to 1.
    """

    scope: ClassVar[Scope] = "sequence"
    # What maps the output to a score, see `RankingActivation`.
    activation: RankingActivation = "sigmoid"
    window_encoder: WindowEncoder | None = None  # None: a pair is one sequence


@dataclass(frozen=True, kw_only=True)
class TokenClassificationHead:
    """Predicts one of C labels for every token: dropout, linear."""

    scope: ClassVar[Scope] = "tokens"
    labels: tuple[str, ...]  # label i is class i

    def __post_init__(self) -> None:
        _check_labels(self.labels)


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringHead:
    """Predicts the span of an answer: a start and an end score for every token, linear."""

    scope: ClassVar[Scope] = "span"


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceHead:
    """Predicts one of A texts, each of which gets a score of its own."""

    scope: ClassVar[Scope] = "choices"


TaskHead = (
    SequenceClassificationHead
    | MultiLabelHead
    | RegressionHead
    | RankingHead
    | TokenClassificationHead
    | QuestionAnsweringHead
    | MultipleChoiceHead
)


@dataclass(frozen=True, kw_only=True)
class PoolerClassifier:
    """Classifies the output of the pretrained pooler: dropout, linear (BERT)."""


@dataclass(frozen=True, kw_only=True)
class DenseClassifier:
    """Classifies the first token: dropout, dense, activation, dropout, linear (RoBERTa).

    The layers of Hugging Face's `RobertaClassificationHead`, and with another activation of
    ELECTRA's. DistilBERT, DeBERTa and EuroBERT have no dropout before the dense layer. Instead of
    the first token, EuroBERT classifies what `TransformerConfig.sequence_pooling` selects.
    """

    activation: Activation = "tanh"
    input_dropout: bool = True  # whether dropout is applied before the dense layer


Pooling = Literal["first_token", "mean", "late"]
"""What the heads on a whole sequence read.

first_token  the hidden state of the first token
mean         the mean of the hidden states of all tokens that are not padding
late         the mean of all tokens' logits (EuroBERT); one vector is the mean of their states
"""


@dataclass(frozen=True, kw_only=True)
class PredictionHeadClassifier:
    """Classifies the output of the prediction head: dense, activation, norm, dropout, linear.

    ModernBERT's masked LM has the same dense layer and norm, so a task starts with pretrained ones.
    For a whole sequence, the input of the prediction head is `TransformerConfig.sequence_pooling`.
    """


@dataclass(frozen=True, kw_only=True)
class LinearClassifier:
    """Classifies every token: dropout, linear (BERT).

    For a whole sequence, what `TransformerConfig.sequence_pooling` selects (UltraBERT).
    """


SequenceClassifier = (
    PoolerClassifier | DenseClassifier | PredictionHeadClassifier | LinearClassifier
)
"""The layers that a family puts on its encoder to classify a sequence or to score a choice."""


TokenClassifier = LinearClassifier | PredictionHeadClassifier
"""The layers that a family puts on its encoder to label every token."""


SpanClassifier = Literal["linear", "feed_forward"]
"""The layers that a family puts on its encoder to answer questions.

linear        a linear layer on every token scores start and end of an answer (BERT)
feed_forward  dropout, feed-forward, residual, norm, linear (BigBird): the layers of Hugging Face's
              `BigBirdForQuestionAnsweringHead`, without its mask of the question tokens: answers
              are taken from the context only when predictions are decoded
"""


class FamilyClassifiers(Protocol):
    """Tells which layers a family has for sequences and for choices; every encoder config does."""

    sequence_classifier: ClassVar[SequenceClassifier]
    multiple_choice_classifier: ClassVar[SequenceClassifier]
    token_classifier: ClassVar[TokenClassifier]
    masked_lm_transform: ClassVar[MaskedLMTransform]


def head_param_name(head: TaskHead) -> str:
    """Returns the name of a head in the parameters, as in "classifier/kernel"."""
    return "span" if head.scope == "span" else "classifier"


def window_encoder_of(head: TaskHead) -> WindowEncoder | None:
    """Returns the config of the Transformer over windows, or None for a head without one."""
    return getattr(head, "window_encoder", None)


def class_labels(head: TaskHead) -> tuple[str, ...]:
    """Returns the class names of a head; () for a head without named classes."""
    return getattr(head, "labels", ())


def label_thresholds(head: TaskHead) -> tuple[float, ...]:
    """Returns the threshold of each label; () for a head without, which predicts one class."""
    if isinstance(head, MultiLabelHead) and not head.thresholds:
        return (DEFAULT_THRESHOLD,) * len(head.labels)
    return getattr(head, "thresholds", ())


def has_temperature(head: TaskHead) -> bool:
    """Returns whether the probabilities of a head can be calibrated by dividing its last layer."""
    is_classifier = isinstance(head, SequenceClassificationHead | MultiLabelHead)
    # Label words have no last layer of their own.
    return is_classifier and label_tokens_of(head) is None


def label_tokens_of(head: TaskHead | None) -> LabelTokens | None:
    """Returns the label tokens of a head that scores label words at a mask; None for others."""
    return getattr(head, "label_tokens", None)


def scores_relevance(head: TaskHead) -> bool:
    """Returns whether a head scores a text for a query, so that texts of a query are compared."""
    return isinstance(head, RankingHead)


def num_outputs(head: TaskHead) -> int:
    """Returns the number of outputs of a head's last linear layer."""
    return len(class_labels(head)) or (2 if head.scope == "span" else 1)


def classifier_layers(
    head: TaskHead, family: FamilyClassifiers
) -> SequenceClassifier | TokenClassifier:
    """Returns the layers of a task head in a family."""
    match head.scope:
        case "sequence":
            return family.sequence_classifier
        case "choices":
            return family.multiple_choice_classifier
        case "tokens" | "span":
            return family.token_classifier


def reads_one_vector(head: TaskHead) -> bool:
    """Returns whether a head reads one vector of a sequence, or the states of all tokens."""
    return head.scope in ("sequence", "choices")


def task_parts(head: TaskHead, family: FamilyClassifiers) -> tuple[str, ...]:
    """Returns the parts that a head needs besides the encoder, as ("classifier", "pooler")."""
    if label_tokens_of(head) is not None:
        return masked_lm_parts(family)
    windows = () if window_encoder_of(head) is None else (WINDOW_ENCODER,)
    match classifier_layers(head, family):
        case PoolerClassifier():
            return (head_param_name(head), "pooler", *windows)
        case PredictionHeadClassifier():
            return (head_param_name(head), "prediction_head", *windows)
        case DenseClassifier() | LinearClassifier():
            return (head_param_name(head), *windows)


def masked_lm_parts(family: FamilyClassifiers) -> tuple[str, ...]:
    """Returns the parts that masked LM needs besides the encoder."""
    match family.masked_lm_transform:
        case "own" | "two_layers" | "none":
            return ("masked_lm",)
        case "shared":
            return ("prediction_head", "masked_lm")


def _check_thresholds(labels: tuple[str, ...], thresholds: tuple[float, ...]) -> None:
    if thresholds and len(thresholds) != len(labels):
        raise ConfigError(
            f"head.thresholds has {len(thresholds)} numbers; expected one for each of the "
            f"{len(labels)} labels, or ()"
        )
    for label, threshold in zip(labels, thresholds, strict=False):
        if not 0 <= threshold <= 1:  # false for NaN, too
            raise ConfigError(
                f"head.thresholds has {threshold} for the label {label!r}; expected a "
                "probability from 0 to 1"
            )


def _check_labels(labels: tuple[str, ...]) -> None:
    if len(labels) > LARGEST_NUM_LABELS:
        raise ConfigError(
            f"head.labels has {len(labels):,} labels, expected at most {LARGEST_NUM_LABELS:,}"
        )
    if len(labels) < 2:
        raise ConfigError(f"head.labels is {labels}, expected at least two labels")
    if duplicates := sorted(label for label, count in Counter(labels).items() if count > 1):
        raise ConfigError(
            f"head.labels has {duplicates[0]!r} more than once, expected different labels"
        )
