"""Defines the configs of adapters, which train a few new parameters beside a frozen encoder.

Imports no jax.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range

_FIELD = "train.tuning.method"


@dataclass(frozen=True, kw_only=True)
class AlphaOverRank:
    """Scales the product of the matrices by alpha / rank (Hu et al. 2021, section 4.1)."""


@dataclass(frozen=True, kw_only=True)
class AlphaOverSqrtRank:
    """Scales the product by alpha / sqrt(rank), for large ranks: rsLoRA (Kalajdzievski 2023)."""


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Configures low-rank adaptation (Hu et al. 2021): y = x W + bias + scale * dropout(x) A B.

    Only A [in, R] and B [R, out] are trained. B starts at zero, so training starts from the base.

    Attributes:
      rank: R, the number of columns of A and rows of B.
      alpha: numerator of the scale.
      dropout: rate of the dropout of x before A.
      targets: dense layers to adapt: the end of their paths in the encoder, such as "query",
        "attention/output" or "feed_forward/intermediate". A `*` stands for any name, and
        "layers/0/attention/query" for one layer only. "word_embeddings" adapts the token
        embeddings.
      scaling: how the scale follows from alpha and rank.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.1
    targets: tuple[str, ...] = ("query", "value")
    scaling: AlphaOverRank | AlphaOverSqrtRank = AlphaOverRank()

    def __post_init__(self) -> None:
        check_range(f"{_FIELD}.rank", self.rank, at_least=1)
        check_range(f"{_FIELD}.dropout", self.dropout, at_least=0, below=1)
        if not self.targets:
            raise ConfigError(
                f"{_FIELD}.targets is empty; expected the names of layers, such as query and value"
            )

    @property
    def scale(self) -> float:
        """Returns the factor of the product A B."""
        match self.scaling:
            case AlphaOverRank():
                return self.alpha / self.rank
            case AlphaOverSqrtRank():
                return self.alpha / self.rank**0.5


@dataclass(frozen=True, kw_only=True)
class DoRA(LoRA):
    """Configures weight-decomposed LoRA (Liu et al. 2024): W' = magnitude * V / ||V||.

    V is W + scale * A B, and ||V|| the norm of each of its columns. The magnitude [out] is trained,
    too, and starts at ||W||. As in peft, the norm counts as a constant in gradients, and dropout
    applies to the input of the scaled W as well.
    """


Adapter = LoRA | DoRA
