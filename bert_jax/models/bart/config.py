"""Defines the config of BART and its published sizes. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.models.config import check_size
from bert_jax.models.layers.config import check_dropout
from bert_jax.models.seq2seq.config import (
    DenseFeedForward,
    FeedForward,
    Seq2SeqTransformerConfig,
    check_heads,
    check_not_negative,
)

BartSize = Literal["base", "large"]

# D, layers of each stack and heads: Lewis et al. 2020, section 2.1.
_SIZES: dict[BartSize, tuple[int, int, int]] = {"base": (768, 6, 12), "large": (1024, 12, 16)}


@dataclass(frozen=True, kw_only=True)
class BartConfig(Seq2SeqTransformerConfig):
    """Configures BART (Lewis et al. 2020); default values are as in BART-base.

    Attributes:
      position_offset: the row of the position tables that the first token uses, a constant in
        Hugging Face's class.
      max_position_embeddings: the largest number of tokens; the table has `position_offset` more
        rows. Padding counts, unlike in RoBERTa.
      attention_dropout: the dropout rate of attention weights.
      activation_dropout: the dropout rate inside the feed-forward layers.
      init_std: the deviation of initial kernels and tables.
    """

    family: ClassVar[str] = "BART"
    position_offset: ClassVar[int] = 2

    vocab_size: int = 50265
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    num_attention_heads: int = 12
    feed_forward: FeedForward = DenseFeedForward(activation="gelu")
    max_position_embeddings: int = 1024
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    init_std: float = 0.02
    pad_token_id: int = 1
    bos_token_id: int = 0  # the token that begins a text
    eos_token_id: int = 2
    decoder_start_token_id: int = 2
    forced_eos_token_id: int | None = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)
        check_size("model.max_position_embeddings", self.max_position_embeddings, 2**24)
        check_dropout("model.attention_dropout", self.attention_dropout)
        check_dropout("model.activation_dropout", self.activation_dropout)
        check_not_negative("model.init_std", self.init_std)

    @classmethod
    def from_size(cls, size: BartSize, *, vocab_size: int = 50265) -> Self:
        """Returns the config of a published size, base or large."""
        width, layers, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=4 * width,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            num_attention_heads=heads,
        )

    @property
    def max_length(self) -> int:
        """Returns the largest number of tokens of a source and of a target."""
        return self.max_position_embeddings
