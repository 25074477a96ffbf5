"""What an encoder is (`BertConfig`), its task heads, how it is computed (`Compute`). No jax here.

Choices are types: a new kind of positions or feed-forward is a new dataclass in the union of its
field, with its own fields, never a flag beside the others.
"""

from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NormalInit:
    """A table that starts from random vectors, as in BERT."""


@dataclass(frozen=True, kw_only=True)
class SinusoidalInit:
    """A table that starts from sines and cosines (Vaswani et al. 2017, 3.5) of BERT's variance.

    "One place to the left" is then the same rotation everywhere, which attention learns long before
    it has learned it for every pair of random vectors: a small model leaves its plateau early.
    """


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """One learned vector for each absolute position, as in BERT."""

    max_position_embeddings: int = 512
    init: NormalInit | SinusoidalInit = NormalInit()


@dataclass(frozen=True, kw_only=True)
class Gelu:
    """Feed-forward with the exact (erf) GELU; Hugging Face calls it "gelu"."""


@dataclass(frozen=True, kw_only=True)
class GeluTanh:
    """Feed-forward with the tanh approximation of GELU; "gelu_new" at Hugging Face."""


Positions = LearnedPositions
Activation = Gelu | GeluTanh


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """A post-norm BERT encoder (Devlin et al. 2019, section 3). Field names are Hugging Face's."""

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    positions: Positions = LearnedPositions()
    hidden_act: Activation = Gelu()
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}, expected at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"model.hidden_size {self.hidden_size} is not a multiple of "
                f"model.num_attention_heads {self.num_attention_heads}"
            )
        check_dropout("model.hidden_dropout_prob", self.hidden_dropout_prob)
        check_dropout("model.attention_probs_dropout_prob", self.attention_probs_dropout_prob)


def check_dropout(field: str, rate: float) -> None:
    """Raises a ConfigError for a rate that `layers/dropout.py` cannot apply: it has 256ths."""
    if rate and not 1 <= round(256 * rate) <= 255:
        raise ConfigError(f"{field} is {rate}, expected 0, or a rate from 1/256 to 255/256")


# Layers, hidden size and heads of Turc et al. 2019 (tiny .. medium) and Devlin et al. 2019.
_SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
BertSize = Literal["tiny", "mini", "small", "medium", "base", "large"]


def bert_config(
    size: BertSize, *, vocab_size: int = 30522, max_position_embeddings: int = 512
) -> BertConfig:
    """The published BERT of that size: tiny, mini, small, medium, base or large."""
    layers, hidden, heads = _SIZES[size]
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        positions=LearnedPositions(max_position_embeddings=max_position_embeddings),
    )


@dataclass(frozen=True, kw_only=True)
class SequenceClassificationHead:
    """One of C classes for a text or a pair: pooler, dropout, linear."""

    labels: tuple[str, ...]  # in the order of their numbers

    def __post_init__(self) -> None:
        _check_labels(self.labels)


@dataclass(frozen=True, kw_only=True)
class RegressionHead:
    """One number for a text or a pair: pooler, dropout, linear."""


@dataclass(frozen=True, kw_only=True)
class TokenClassificationHead:
    """One of C tags for every token: dropout, linear."""

    labels: tuple[str, ...]  # in the order of their numbers

    def __post_init__(self) -> None:
        _check_labels(self.labels)


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringHead:
    """Where an answer starts and ends: two scores for every token, linear."""


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceHead:
    """One of A texts, each scored by itself: pooler, dropout, linear to one score."""


TaskHead = (
    SequenceClassificationHead
    | RegressionHead
    | TokenClassificationHead
    | QuestionAnsweringHead
    | MultipleChoiceHead
)


def head_param_name(head: TaskHead) -> str:
    """The name of a head's linear layer in the parameters, as in "classifier/kernel"."""
    return "span" if isinstance(head, QuestionAnsweringHead) else "classifier"


def num_outputs(head: TaskHead) -> int:
    """How many numbers a head's linear layer gives for a text, or for each of its tokens."""
    match head:
        case SequenceClassificationHead() | TokenClassificationHead():
            return len(head.labels)
        case QuestionAnsweringHead():
            return 2
        case RegressionHead() | MultipleChoiceHead():
            return 1


def uses_pooler(head: TaskHead) -> bool:
    """Whether a head reads the pooled first token; otherwise it reads every token's state."""
    return not isinstance(head, TokenClassificationHead | QuestionAnsweringHead)


def _check_labels(labels: tuple[str, ...]) -> None:
    if len(labels) < 2:
        raise ConfigError(f"head.labels is {labels}, expected at least two labels")
    if duplicates := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"head.labels has {duplicates[0]!r} more than once, expected different labels"
        )


@dataclass(frozen=True, kw_only=True)
class Unrolled:
    """Layers as a Python loop: longer to compile, faster and leaner to run."""


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """Layers as one `lax.scan` over stacked parameters: one is compiled, whatever the depth."""


@dataclass(frozen=True, kw_only=True)
class NoRemat:
    """Keep every activation for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class FullRemat:
    """Keep only each layer's input and compute the layer again in the backward pass."""


@dataclass(frozen=True, kw_only=True)
class SaveDots:
    """Keep the results of matrix products, compute everything between them again."""


@dataclass(frozen=True, kw_only=True)
class XlaAttention:
    """Scores, softmax and context as operations of their own; XLA fuses what it can."""


@dataclass(frozen=True, kw_only=True)
class PallasAttention:
    """Keeps nothing of size L x L for the backward pass; on TPUs, one kernel for all of it.

    Where the kernel does not fit (a causal mask, attention maps asked for, rows of more than 512
    or not a multiple of 128), attention is plain.
    """


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How a network is computed; changes speed and memory, never what is computed.

    Parameters are float32 always; `dtype` is that of activations and matrix products, while
    softmax, norms and losses stay in float32.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    layer_loop: Unrolled | Scanned = Unrolled()
    remat: NoRemat | FullRemat | SaveDots = NoRemat()
    attention: XlaAttention | PallasAttention = XlaAttention()
