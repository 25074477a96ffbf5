"""Defines the config of MPNet and its published size. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import DenseClassifier, SequenceClassifier
from bert_jax.models.layers.config import Activation, PaddingOffsetPositions

PAD_TOKEN_ID = 1
"""The padding id from which positions are counted; a constant in Hugging Face's MPNet."""


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(TransformerConfig):
    """Configures an MPNet encoder (Song et al. 2020); default values are as in MPNet-base.

    They are the published model's, microsoft/mpnet-base. Hugging Face's `MPNetConfig()` has
    others: 512 positions and an epsilon of 1e-12.
    """

    family: ClassVar[str] = "MPNet"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier()

    vocab_size: int = 30527
    positions: PaddingOffsetPositions = PaddingOffsetPositions()
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions.pad_token_id != PAD_TOKEN_ID:
            raise ConfigError(
                f"model.positions.pad_token_id is {self.positions.pad_token_id}, expected "
                f"{PAD_TOKEN_ID}: Hugging Face's MPNet counts positions from this id only"
            )

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the exact GELU, whatever `hidden_act` is, as Hugging Face's `MPNetLMHead`."""
        return "gelu"
