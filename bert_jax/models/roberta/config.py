"""Defines the config of RoBERTa and its published sizes. Imports no jax.

DistilRoBERTa, XLM-RoBERTa and CamemBERT are the same network with other sizes and tokenizers.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.models.heads.config import DenseClassifier, SequenceClassifier
from bert_jax.models.layers.config import (
    Activation,
    Gelu,
    PaddingOffsetPositions,
    validate_transformer,
)

RobertaSize = Literal["distil", "base", "large"]
RobertaModelType = Literal["roberta", "xlm-roberta", "camembert"]

# Layers, hidden size and heads: Liu et al. 2019, section 5, and DistilRoBERTa.
_SIZES: dict[RobertaSize, tuple[int, int, int]] = {
    "distil": (6, 768, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class RobertaConfig:
    """Configures a RoBERTa encoder (Liu et al. 2019); defaults are RoBERTa-base.

    The defaults are those of the published models. Hugging Face's `RobertaConfig()` has others:
    512 positions, 2 token types and an epsilon of 1e-12. Field names are Hugging Face's.
    """

    family: ClassVar[str] = "RoBERTa"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier()
    # Hugging Face's head has the exact GELU whatever `hidden_act` is (`RobertaLMHead`).
    masked_lm_activation: ClassVar[Activation] = Gelu()

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    positions: PaddingOffsetPositions = PaddingOffsetPositions()  # noqa: RUF009 (frozen)
    hidden_act: Activation = Gelu()  # noqa: RUF009 (frozen)
    type_vocab_size: int = 1
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    model_type: RobertaModelType = "roberta"  # which of the models Hugging Face calls it

    def __post_init__(self) -> None:
        validate_transformer(self)

    @classmethod
    def from_size(
        cls, size: RobertaSize, *, vocab_size: int = 50265, max_position_embeddings: int = 514
    ) -> Self:
        """Returns the config of a published size: distil, base or large.

        `max_position_embeddings` counts the rows of the table, which are two more than the tokens
        of the longest sequence.
        """
        layers, hidden, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=PaddingOffsetPositions(max_position_embeddings=max_position_embeddings),
        )

    @property
    def max_length(self) -> int:
        """Returns the maximum sequence length in tokens, special tokens included."""
        return self.positions.max_length
