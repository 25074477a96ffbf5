"""Defines the fields that the configs of all encoder-decoders share, and checks them.

Imports no jax.
"""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import check_size, check_token_id
from bert_jax.models.layers.config import Activation, check_dropout


@dataclass(frozen=True, kw_only=True)
class DenseFeedForward:
    """Selects the feed-forward layer of two kernels: output(activation(intermediate(x)))."""

    activation: Activation = "relu"  # between the two kernels


@dataclass(frozen=True, kw_only=True)
class GatedFeedForward:
    """Selects output(activation(intermediate(x)) * gate(x)) of three kernels (Shazeer 2020)."""

    activation: Activation  # of the branch that the gate multiplies


FeedForward = DenseFeedForward | GatedFeedForward


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTransformerConfig:
    """Configures an encoder-decoder Transformer; the config of each family extends it.

    Attributes:
      family: the name of the family in text.
      hidden_size: D, `d_model` in Hugging Face's files.
      num_attention_heads: H, of every attention in encoder and decoder.
      intermediate_size: F, the width inside the feed-forward layers of both stacks.
      feed_forward: the kind of all feed-forward layers.
      dropout_rate: of embeddings, sublayer outputs and, in T5, all other dropouts.
      tie_word_embeddings: whether the logits use the table of the token embeddings.
      pad_token_id: the padding of encoder inputs.
      eos_token_id: the token that ends a target, and generation.
      decoder_start_token_id: the first decoder input.
      forced_bos_token_id: the token that generation begins with; None for any.
      forced_eos_token_id: the token that generation ends with at its largest length; None for any.
    """

    family: ClassVar[str]

    vocab_size: int  # V, the ids of the tokenizer
    hidden_size: int
    num_encoder_layers: int  # layers of the encoder
    num_decoder_layers: int  # layers of the decoder
    num_attention_heads: int
    intermediate_size: int
    feed_forward: FeedForward
    dropout_rate: float = 0.1
    tie_word_embeddings: bool = True
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def head_width(self) -> int:
        """Returns K, the width of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def max_length(self) -> int:
        """Returns the largest number of tokens of a source."""
        raise NotImplementedError

    @property
    def max_target_length(self) -> int:
        """Returns the largest number of tokens of a target: that of a source, unless LED's."""
        return self.max_length

    @property
    def attention_width(self) -> int:
        """Returns H x K, the width of all heads; T5 may have another one than D."""
        return self.num_attention_heads * self.head_width

    @property
    def num_feed_forward_kernels(self) -> int:
        """Returns the number of kernels of a feed-forward layer: 3 if it is gated, else 2."""
        return 3 if isinstance(self.feed_forward, GatedFeedForward) else 2

    def forward_flops(self, encoder_length: int, decoder_length: int) -> float:
        """Returns the forward FLOPs of one source and target: matrix products only, with logits.

        Each multiply-add counts as 2. Causal attention counts in full, as the hardware computes it.
        """
        inner = self.attention_width
        projection = self.hidden_size * inner
        feed_forward = self.num_feed_forward_kernels * self.hidden_size * self.intermediate_size
        encoder_layer = encoder_length * (4 * projection + feed_forward)
        decoder_layer = decoder_length * (
            6 * projection + feed_forward + 2 * inner * (decoder_length + encoder_length)
        )
        # Keys and values of cross-attention are computed for the source.
        decoder_layer += encoder_length * 2 * projection
        logits = decoder_length * self.hidden_size * self.vocab_size
        return 2.0 * (
            self.num_encoder_layers * encoder_layer
            + self.encoder_attention_products(encoder_length)
            + self.num_decoder_layers * decoder_layer
            + logits
        )

    def encoder_attention_products(self, length: int) -> float:
        """Returns the multiply-adds of scores and contexts of a source in the encoder's layers."""
        return self.num_encoder_layers * 2 * self.attention_width * length**2


_LARGEST_SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "num_encoder_layers": 1000,
    "num_decoder_layers": 1000,
    "num_attention_heads": 2**16,
    "intermediate_size": 2**22,
}


def _validate(config: Seq2SeqTransformerConfig) -> None:
    """Raises a ConfigError that names the first field that cannot be used."""
    for name, limit in _LARGEST_SIZES.items():
        check_size(f"model.{name}", getattr(config, name), limit)
    check_dropout("model.dropout_rate", config.dropout_rate)
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        check_token_id(f"model.{name}", getattr(config, name), config.vocab_size)
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        if (token_id := getattr(config, name)) is not None:
            check_token_id(f"model.{name}", token_id, config.vocab_size)


def check_heads(config: Seq2SeqTransformerConfig) -> None:
    """Raises a ConfigError unless the heads split the width D evenly."""
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"model.hidden_size {config.hidden_size} is not a multiple of "
            f"model.num_attention_heads {config.num_attention_heads}"
        )


def check_not_negative(field: str, value: float) -> None:
    """Raises a ConfigError for a number below 0."""
    check_range(field, value, at_least=0)
