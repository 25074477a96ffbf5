"""Defines the choices that layers of every family share: positions, activations, computation.

A choice is a type. A new kind of positions or activation is a new dataclass in the union of its
field, with fields of its own, never a flag next to the others. Imports no jax.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class NormalInit:
    """Initializes a position table with random vectors, as BERT does."""


@dataclass(frozen=True, kw_only=True)
class SinusoidalInit:
    """Initializes a position table with sines and cosines (Vaswani et al. 2017, section 3.5).

    The waves are scaled to the variance of BERT's random vectors. A shift by one position is then
    the same rotation everywhere in the table, which attention learns much sooner than it learns
    the relation of each pair of random vectors. Small models leave their first plateau earlier.
    """


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """Adds a learned vector for each absolute position 0, 1, 2, ..., as in BERT."""

    max_position_embeddings: int = 512
    init: NormalInit | SinusoidalInit = NormalInit()

    @property
    def max_length(self) -> int:
        """Returns the maximum sequence length in tokens."""
        return self.max_position_embeddings


@dataclass(frozen=True, kw_only=True)
class PaddingOffsetPositions:
    """Adds a learned vector for each position, counted from `pad_token_id` + 1, as in RoBERTa.

    The table keeps the rows 0 to `pad_token_id`, which no real token uses, so that it has the shape
    of the published files: 514 rows for 512 tokens. Padding is recognized by its token id.
    """

    max_position_embeddings: int = 514
    pad_token_id: int = 1
    init: NormalInit | SinusoidalInit = NormalInit()

    def __post_init__(self) -> None:
        if self.pad_token_id < 0:
            raise ConfigError(
                f"model.positions.pad_token_id is {self.pad_token_id}, expected a token id >= 0"
            )

    @property
    def offset(self) -> int:
        """Returns the row of the position table that a sequence's first token uses."""
        return self.pad_token_id + 1

    @property
    def max_length(self) -> int:
        """Returns the maximum sequence length in tokens."""
        return self.max_position_embeddings - self.offset


Positions = LearnedPositions | PaddingOffsetPositions


@dataclass(frozen=True, kw_only=True)
class Gelu:
    """Selects the exact GELU, computed with erf; Hugging Face's name is "gelu"."""


@dataclass(frozen=True, kw_only=True)
class GeluTanh:
    """Selects the tanh approximation of GELU; Hugging Face's name is "gelu_new"."""


Activation = Gelu | GeluTanh


@dataclass(frozen=True, kw_only=True)
class Unrolled:
    """Runs the layers in a Python loop: slower to compile, faster and with less memory to run."""


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """Runs the layers in one `lax.scan` over stacked parameters: compiles a single layer."""


@dataclass(frozen=True, kw_only=True)
class NoRemat:
    """Saves every activation for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class FullRemat:
    """Saves only the input of each layer and recomputes the layer in the backward pass."""


@dataclass(frozen=True, kw_only=True)
class SaveDots:
    """Saves the results of matrix products and recomputes everything else."""


@dataclass(frozen=True, kw_only=True)
class XlaAttention:
    """Computes scores, softmax and context as separate operations, which XLA fuses."""


@dataclass(frozen=True, kw_only=True)
class PallasAttention:
    """Saves no array of size L x L for the backward pass; one fused kernel on TPUs.

    Attention is `XlaAttention` where the kernel does not apply: with a causal mask, when attention
    weights are returned, and for lengths above 512 or not a multiple of 128.
    """


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Selects how a model is computed, which changes speed and memory but not the result.

    Parameters are always float32. `dtype` is the dtype of activations and matrix products; softmax,
    norms and losses stay in float32.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    layer_loop: Unrolled | Scanned = Unrolled()
    remat: NoRemat | FullRemat | SaveDots = NoRemat()
    attention: XlaAttention | PallasAttention = XlaAttention()


class TransformerConfig(Protocol):
    """Lists what the layers read from a family's config; field names are Hugging Face's."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def positions(self) -> Positions: ...
    @property
    def hidden_act(self) -> Activation: ...
    @property
    def type_vocab_size(self) -> int: ...
    @property
    def hidden_dropout_prob(self) -> float: ...
    @property
    def attention_probs_dropout_prob(self) -> float: ...
    @property
    def layer_norm_eps(self) -> float: ...
    @property
    def initializer_range(self) -> float: ...
    @property
    def tie_word_embeddings(self) -> bool: ...


# A larger size is a mistake, which is better refused than found when memory runs out.
_LARGEST_SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "num_hidden_layers": 1000,
    "num_attention_heads": 2**16,
    "intermediate_size": 2**22,
    "type_vocab_size": 2**16,
}
_LARGEST_SEQUENCE = 2**24
_LARGEST_MODEL = 10**13


def validate_transformer(config: TransformerConfig) -> None:
    """Raises a ConfigError that names the first size or dropout rate that cannot be used."""
    for name, limit in _LARGEST_SIZES.items():
        _check_size(f"model.{name}", getattr(config, name), limit)
    _check_size(
        "model.positions.max_position_embeddings",
        config.positions.max_position_embeddings,
        _LARGEST_SEQUENCE,
    )
    if config.positions.max_length < 1:
        raise ConfigError(
            "model.positions.max_position_embeddings is "
            f"{config.positions.max_position_embeddings}, which leaves no position for a token"
        )
    layer_params = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    num_params = config.num_hidden_layers * layer_params + config.vocab_size * config.hidden_size
    if num_params > _LARGEST_MODEL:
        raise ConfigError(
            f"the model has {num_params:.2g} parameters, expected at most {_LARGEST_MODEL:.0e}; "
            "check model.hidden_size, intermediate_size, num_hidden_layers and vocab_size"
        )
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"model.hidden_size {config.hidden_size} is not a multiple of "
            f"model.num_attention_heads {config.num_attention_heads}"
        )
    check_dropout("model.hidden_dropout_prob", config.hidden_dropout_prob)
    check_dropout("model.attention_probs_dropout_prob", config.attention_probs_dropout_prob)
    for name in ("layer_norm_eps", "initializer_range"):
        check_range(f"model.{name}", getattr(config, name), at_least=0)


def _check_size(field: str, value: object, limit: int) -> None:
    # `type` and not `isinstance`: True is an instance of int.
    if type(value) is not int or not 1 <= value <= limit:
        raise ConfigError(f"{field} is {value!r}, expected an integer from 1 to {limit:,}")


def check_dropout(field: str, rate: float) -> None:
    """Raises a ConfigError for a dropout rate that `layers/dropout.py` cannot apply in 256ths."""
    if rate and not (math.isfinite(rate) and 1 <= round(256 * rate) <= 255):
        raise ConfigError(f"{field} is {rate}, expected 0, or a rate from 1/256 to 255/256")
