"""Defines the config of LED and its published sizes. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.models.bart.config import BartConfig
from bert_jax.models.config import check_size
from bert_jax.models.longformer.config import check_attention_window


@dataclass(frozen=True, kw_only=True)
class LedConfig(BartConfig):
    """Configures LED (Beltagy et al. 2020, section 7); default values are as in LED-base.

    It is BART with Longformer's attention in the encoder.

    Attributes:
      max_position_embeddings: the largest number of tokens of a source.
      max_decoder_position_embeddings: the largest number of tokens of a target.
      attention_window: the number of tokens in the window of each encoder layer, as in
        `LongformerConfig`. The default, (), stands for 1,024 in all layers.
    """

    family: ClassVar[str] = "LED"
    position_offset: ClassVar[int] = 0

    max_position_embeddings: int = 16_384
    max_decoder_position_embeddings: int = 1024
    attention_window: tuple[int, ...] = ()
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    forced_eos_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.num_encoder_layers
        if not self.attention_window:
            object.__setattr__(self, "attention_window", (1024,) * layers)
        check_attention_window(self.attention_window, layers, self.max_length)
        name = "max_decoder_position_embeddings"
        check_size(f"model.{name}", self.max_decoder_position_embeddings, 2**24)

    @property
    def max_target_length(self) -> int:
        """Returns the largest number of tokens of a target."""
        return self.max_decoder_position_embeddings

    def encoder_attention_products(self, length: int) -> float:
        """Returns the multiply-adds of scores and contexts, and of the global keys and values.

        A token attends to its window and to the global token, which attends to all tokens.
        """
        keys = sum(min(window + 1, length) + 2 for window in self.attention_window)
        projections = self.num_encoder_layers * 2 * length * self.hidden_size**2
        return projections + 2.0 * self.hidden_size * length * keys
