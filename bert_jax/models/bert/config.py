"""Defines the config of BERT and its published sizes. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import PoolerClassifier, SequenceClassifier
from bert_jax.models.layers.config import AlibiPositions, LearnedPositions

BertSize = Literal["tiny", "mini", "small", "medium", "base", "large"]

# Layers, hidden size and heads: tiny to medium of Turc et al. 2019, base and large of
# Devlin et al. 2019, section 3.
_SIZES: dict[BertSize, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerConfig):
    """Configures a BERT encoder (Devlin et al. 2019, section 3); default values are BERT-base.

    Hugging Face has no format for `AlibiPositions` (MosaicBERT).
    """

    family: ClassVar[str] = "BERT"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("pooler", "masked_lm", "next_sentence")
    sequence_classifier: ClassVar[SequenceClassifier] = PoolerClassifier()

    positions: LearnedPositions | AlibiPositions = LearnedPositions()

    @classmethod
    def from_size(
        cls, size: BertSize, *, vocab_size: int = 30522, max_position_embeddings: int = 512
    ) -> Self:
        """Returns the config of a published size: tiny, mini, small, medium, base or large."""
        layers, hidden, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=LearnedPositions(max_position_embeddings=max_position_embeddings),
        )
