"""Defines the configs of adapters: a few new parameters that are trained in a frozen encoder.

Imports no jax.
"""

from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.layers.config import check_dropout

_FIELD = "train.tuning.method"


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Configures low-rank adaptation (Hu et al. 2021): y = x W + bias + scale * dropout(x) A B.

    Of the encoder, only A [in, R] and B [R, out] are trained. B starts at zero, so that training
    starts from the base.

    Attributes:
      rank: R, the inner dimension of the product A B.
      alpha: numerator of the scale.
      dropout: rate of the dropout of x before A; it does not apply to token embeddings. The query,
        key and value of a layer have the same mask.
      targets: ends of the paths of the dense layers to adapt, such as "query", "attention/output"
        or "feed_forward/intermediate". A `*` matches one name in a path, and
        "layers/0/attention/query" selects one layer. "word_embeddings" adapts the token embeddings.
      scaling: how the scale follows from alpha and rank.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.1
    targets: tuple[str, ...] = ("query", "value")
    # The factor of the product: of Hu et al. 2021, section 4.1, or for large ranks that of rsLoRA
    # (Kalajdzievski 2023).
    scaling: Literal["alpha_over_rank", "alpha_over_sqrt_rank"] = "alpha_over_rank"

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.rank", self.rank, at_least=1)
        check_range(f"{_FIELD}.alpha", self.alpha, above=0)
        check_dropout(f"{_FIELD}.dropout", self.dropout)
        if not self.targets:
            raise ConfigError(
                f"{_FIELD}.targets is empty; expected the names of layers, such as query and value"
            )

    @property
    def scale(self) -> float:
        """Returns the factor of the product A B."""
        match self.scaling:
            case "alpha_over_rank":
                return self.alpha / self.rank
            case "alpha_over_sqrt_rank":
                return self.alpha / self.rank**0.5


@dataclass(frozen=True, kw_only=True)
class DoRA(LoRA):
    """Configures weight-decomposed LoRA (Liu et al. 2024): W' = magnitude * V / ||V||.

    V is W + scale * A B, and ||V|| the norm of each of its columns. The magnitude [out] is also
    trained, and starts at ||W||. As in peft, no gradient passes through the norm, and dropout
    applies to the input of the scaled W, too. If mesh.communication_dtype is bfloat16, ||V|| is
    computed from the rounded W, so that training starts close to the base, not exactly at it.
    """


@dataclass(frozen=True, kw_only=True)
class IA3:
    """Configures IA3 (Liu et al. 2022, section 3.3): trained vectors that scale activations."""

    # "paper": keys, values and the input of the second feed-forward layer (Liu et al. 2022);
    # "peft": what peft does for BERT, also the input of the output layer of attention.
    selection: Literal["paper", "peft"] = "paper"


@dataclass(frozen=True, kw_only=True)
class HoulsbyAdapter:
    """Configures the bottleneck adapters of Houlsby et al. 2019: two in each layer.

    As in their code, the activation is the tanh form of GELU, and LayerNorms are trained, too.

    Attributes:
      size: M, the width of the bottleneck.
    """

    size: int = 64

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.size", self.size, at_least=1)


@dataclass(frozen=True, kw_only=True)
class PfeifferAdapter:
    """Configures the bottleneck adapters of Pfeiffer et al. 2021: one after each feed-forward.

    The activation is ReLU, as in their code.

    Attributes:
      reduction_factor: D divided by the width of the bottleneck.
    """

    reduction_factor: int = 16

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.reduction_factor", self.reduction_factor, at_least=1)


@dataclass(frozen=True, kw_only=True)
class PrefixEncoder:
    """Computes keys and values during training with a small network of hidden width `size`."""

    size: int = 512  # hidden width of the network

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.reparametrization.size", self.size, at_least=1)


@dataclass(frozen=True, kw_only=True)
class PrefixTuning:
    """Configures prefix tuning (Li and Liang 2021): trained keys and values in each attention.

    Attributes:
      length: n, the number of keys and values in front of the text's.
      reparametrization: None trains them directly, as in P-tuning v2 (Liu et al. 2022).
    """

    length: int = 20
    reparametrization: PrefixEncoder | None = None

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.length", self.length, at_least=1)


@dataclass(frozen=True, kw_only=True)
class PromptTuning:
    """Configures prompt tuning (Lester et al. 2021): trained embeddings in front of the text.

    As in peft, a classifier that reads the first token reads the first of these vectors.

    Attributes:
      length: n, the number of vectors.
      initial_ids: tokens from whose embeddings the vectors start, repeated or cut to n as in peft;
        empty for random vectors.
    """

    length: int = 20
    initial_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.length", self.length, at_least=1)
        for token_id in self.initial_ids:
            check_range(f"{_FIELD}.initial_ids", token_id, at_least=0)


Adapter = LoRA | DoRA | IA3 | HoulsbyAdapter | PfeifferAdapter | PrefixTuning | PromptTuning
