"""Defines the config of RoBERTa and its published sizes. Imports no jax.

DistilRoBERTa, XLM-RoBERTa and CamemBERT are the same network with other sizes and tokenizers.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import DenseClassifier, SequenceClassifier
from bert_jax.models.layers.config import Activation, PaddingOffsetPositions

RobertaSize = Literal["distil", "base", "large"]
RobertaModelType = Literal["roberta", "xlm-roberta", "camembert"]

# Layers, hidden size and heads: Liu et al. 2019, section 5, and DistilRoBERTa.
_SIZES: dict[RobertaSize, tuple[int, int, int]] = {
    "distil": (6, 768, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(TransformerConfig):
    """Configures a RoBERTa encoder (Liu et al. 2019); default values are RoBERTa-base.

    They are the published models' values. Hugging Face's `RobertaConfig()` has others: 512
    positions, 2 token types and an epsilon of 1e-12.
    """

    family: ClassVar[str] = "RoBERTa"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier()

    vocab_size: int = 50265
    positions: PaddingOffsetPositions = PaddingOffsetPositions()
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    model_type: RobertaModelType = "roberta"  # which of the models Hugging Face calls it

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
    def masked_lm_activation(self) -> Activation:
        """Returns the exact GELU, whatever `hidden_act` is, as Hugging Face's `RobertaLMHead`."""
        return "gelu"
