"""Defines the choices that layers of every family share: positions, activations, computation.

A choice with fields is a type: a new kind of positions is a new dataclass in the union of its
field, with fields of its own, never a flag next to the others. A choice without fields is a
`Literal`. Imports no jax.
"""

import math
from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError, check_range

PositionInit = Literal["normal", "sinusoidal"]
"""How a position table is initialized: with random vectors, as in BERT, or with sines and cosines.

The waves (Vaswani et al. 2017, section 3.5) are scaled to the variance of BERT's random vectors. A
shift by one position is then the same rotation everywhere in the table, which attention learns much
sooner than it learns the relation of each pair of random vectors. Small models leave their first
plateau earlier.
"""


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """Adds a learned vector for each absolute position 0, 1, 2, ..., as in BERT."""

    max_position_embeddings: int = 512  # rows of the table: the maximum length in tokens
    init: PositionInit = "normal"  # how the table is initialized, see `PositionInit`

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

    # Rows of the table: the maximum length plus `pad_token_id` + 1.
    max_position_embeddings: int = 514
    pad_token_id: int = 1  # the id of padding, from which positions are counted
    init: PositionInit = "normal"  # how the table is initialized, see `PositionInit`

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


@dataclass(frozen=True, kw_only=True)
class NoPositions:
    """Adds nothing to the token embeddings; attention itself depends on the positions, if at all.

    DeBERTa, ModernBERT and EuroBERT compute attention from relative positions.
    """

    max_position_embeddings: int = 512  # the maximum length in tokens

    @property
    def max_length(self) -> int:
        """Returns the maximum sequence length in tokens."""
        return self.max_position_embeddings


@dataclass(frozen=True, kw_only=True)
class AlibiPositions(NoPositions):
    """Adds to each attention score a penalty that grows with the distance of query and key.

    Attention with linear biases (Press et al. 2022), the same in both directions as in MosaicBERT.
    """


@dataclass(frozen=True, kw_only=True)
class RotaryPositions(NoPositions):
    """Rotates queries and keys by their positions (RoPE, Su et al. 2021)."""

    rope_theta: float = 10_000.0  # base of the rotation angles

    def __post_init__(self) -> None:
        check_range("model.positions.rope_theta", self.rope_theta, above=0)


Positions = LearnedPositions | PaddingOffsetPositions | NoPositions | AlibiPositions


Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
"""An activation function: "gelu" is the exact GELU with erf; "gelu_tanh" its tanh approximation,
which Hugging Face calls "gelu_new"; "silu" is x times the sigmoid of x."""


@dataclass(frozen=True, kw_only=True)
class GlobalFirstToken:
    """Gives global attention to the first token of a sequence."""


@dataclass(frozen=True, kw_only=True)
class GlobalBeforeSeparator:
    """Gives global attention to the tokens before the first separator, such as a question."""

    sep_token_id: int


@dataclass(frozen=True, kw_only=True)
class GlobalAfterSeparator:
    """Gives global attention to the second text of a pair, such as a choice."""

    sep_token_id: int


GlobalTokens = GlobalFirstToken | GlobalBeforeSeparator | GlobalAfterSeparator
"""The tokens of a sequence that attend to all tokens, and to which all attend (Longformer)."""


Norm = Literal["layer_norm", "layer_norm_without_bias", "rms_norm"]
"""LayerNorm with scale and bias (BERT), with a scale only (ModernBERT), or division by the root
mean square and a scale (EuroBERT)."""


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Selects how a model is computed, which changes speed and memory but not the result.

    Parameters are always float32.

    Attributes:
      dtype: the dtype of activations and matrix products; softmax, norms and losses stay in
        float32.
      layer_loop: "unrolled" runs the layers in a Python loop, which compiles slower, but runs
        faster and with less memory; "scanned" runs them in one `lax.scan` over stacked
        parameters, which compiles a single layer.
      remat: what the backward pass computes again: nothing with "none"; with "full" everything but
        the input of each layer; with "save_dots" everything but the results of matrix products.
      attention: "xla" computes scores, softmax and context as separate operations, which XLA fuses.
        "pallas" saves no array of size L x L for the backward pass and is one fused kernel on TPUs.
        It is computed as "xla" where the kernel does not apply: with a causal mask, with a bias, in
        a window of tokens, when attention weights are returned, and for lengths above 512 or not a
        multiple of 128. "cudnn" is the fused kernel of cuDNN, for NVIDIA GPUs and bfloat16 only. It
        is computed as "xla" with dropout of attention weights, with a bias, in a window without a
        causal mask, and when attention weights are returned.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    layer_loop: Literal["unrolled", "scanned"] = "unrolled"
    remat: Literal["none", "full", "save_dots"] = "none"
    attention: Literal["xla", "pallas", "cudnn"] = "xla"

    def __post_init__(self) -> None:
        if self.attention == "cudnn" and self.dtype != "bfloat16":
            raise ConfigError(
                f'compute.attention is "cudnn", whose kernels compute in bfloat16, but '
                f'compute.dtype is "{self.dtype}"; set compute.dtype=bfloat16, or '
                "compute.attention=xla"
            )


def check_dropout(field: str, rate: float) -> None:
    """Raises a ConfigError for a dropout rate that `layers/dropout.py` cannot apply in 256ths."""
    if rate and not (math.isfinite(rate) and 1 <= round(256 * rate) <= 255):
        raise ConfigError(f"{field} is {rate}, expected 0, or a rate from 1/256 to 255/256")


_LANES = 128
"""The width of a tile on TPUs. The keys of a window are the minor axis of the scores."""


def block_shape(length: int, radius: int) -> tuple[int, int]:
    """Returns the number of queries in a block of local attention, and of keys on each side of it.

    The margin is the radius rounded up to half a tile, so that a window is a whole number of tiles:
    for a radius of 64, as in ModernBERT, blocks of 128 queries with windows of 256 keys. A sequence
    that is not longer than one window is a single block without margins.
    """
    half_tile = _LANES // 2
    margin = -(-radius // half_tile) * half_tile
    block = max(_LANES, margin)
    return (length, 0) if length <= block + 2 * margin else (block, margin)
