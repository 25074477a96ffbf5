"""Defines the config of T5 and its published sizes, versions 1.0 and 1.1. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.models.config import check_size
from bert_jax.models.seq2seq.config import (
    DenseFeedForward,
    FeedForward,
    GatedFeedForward,
    Seq2SeqTransformerConfig,
    check_not_negative,
)

T5Size = Literal["small", "base", "large", "3b", "11b"]
T5V11Size = Literal["small", "base", "large", "xl", "xxl"]

# D, F, layers of each stack and heads: Raffel et al. 2020, section 3.7. Heads have width 64, in the
# two largest models 128.
_SIZES: dict[T5Size, tuple[int, int, int, int, int]] = {
    "small": (512, 2048, 6, 8, 64),
    "base": (768, 3072, 12, 12, 64),
    "large": (1024, 4096, 24, 16, 64),
    "3b": (1024, 16384, 24, 32, 128),
    "11b": (1024, 65536, 24, 128, 128),
}
_V1_1_SIZES: dict[T5V11Size, tuple[int, int, int, int]] = {
    "small": (512, 1024, 8, 6),
    "base": (768, 2048, 12, 12),
    "large": (1024, 2816, 24, 16),
    "xl": (2048, 5120, 24, 32),
    "xxl": (4096, 10240, 24, 64),
}

_NO_LIMIT = 2**20
"""The maximum length: T5 has no table of positions, so memory alone limits the length."""


@dataclass(frozen=True, kw_only=True)
class T5Config(Seq2SeqTransformerConfig):
    """Configures T5 (Raffel et al. 2020); default values are as in T5-small, version 1.0.

    Attributes:
      d_kv: K, the width of a head; H x K may differ from D.
      relative_attention_num_buckets: rows of the relative bias of each stack.
      relative_attention_max_distance: distances from here on share the last bucket.
      scale_decoder_outputs: whether logits are divided by the square root of D. Version 1.0 does,
        because it shares the table of the token embeddings, whose values have deviation 1.
    """

    family: ClassVar[str] = "T5"

    vocab_size: int = 32128
    hidden_size: int = 512
    d_kv: int = 64
    intermediate_size: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    num_attention_heads: int = 8
    feed_forward: FeedForward = DenseFeedForward()
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6  # added to the mean square in each norm
    initializer_factor: float = 1.0  # multiplies the deviations of all random parameters
    scale_decoder_outputs: bool = True
    pad_token_id: int = 0
    eos_token_id: int = 1
    decoder_start_token_id: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("model.d_kv", self.d_kv, 2**16)
        # The encoder splits the buckets by sign, and half of each part has logarithmic sizes.
        check_size(
            "model.relative_attention_num_buckets",
            self.relative_attention_num_buckets,
            2**16,
            smallest=4,
        )
        check_size(
            "model.relative_attention_max_distance",
            self.relative_attention_max_distance,
            2**24,
            smallest=self.relative_attention_num_buckets // 2 + 1,
        )
        check_not_negative("model.layer_norm_epsilon", self.layer_norm_epsilon)
        check_not_negative("model.initializer_factor", self.initializer_factor)

    @classmethod
    def from_size(cls, size: T5Size, *, vocab_size: int = 32128) -> Self:
        """Returns the config of a published size of version 1.0."""
        width, intermediate, layers, heads, d_kv = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=width,
            d_kv=d_kv,
            intermediate_size=intermediate,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            num_attention_heads=heads,
        )

    @classmethod
    def v1_1(cls, size: T5V11Size, *, vocab_size: int = 32128, dropout_rate: float = 0.1) -> Self:
        """Returns the config of a published size of version 1.1.

        It has gated feed-forward layers and an output table of its own. Its pretraining had no
        dropout; fine-tuning has 0.1.
        """
        width, intermediate, layers, heads = _V1_1_SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=intermediate,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            num_attention_heads=heads,
            feed_forward=GatedFeedForward(activation="gelu_tanh"),
            dropout_rate=dropout_rate,
            tie_word_embeddings=False,
            scale_decoder_outputs=False,
        )

    @property
    def head_width(self) -> int:
        """Returns K, the width of a head."""
        return self.d_kv

    @property
    def max_length(self) -> int:
        """Returns a length that no sequence reaches: relative positions have no limit."""
        return _NO_LIMIT
