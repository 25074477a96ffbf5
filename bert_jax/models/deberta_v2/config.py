"""Defines the config of DeBERTa-v3 and its published sizes. Imports no jax.

Hugging Face's name of the architecture is deberta-v2. DeBERTa-v3 has the same encoder, with other
sizes and another vocabulary, and was pretrained with replaced-token detection.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    ReplacedTokenDetector,
    SequenceClassifier,
)
from bert_jax.models.layers.config import NoPositions

DebertaV3Size = Literal["xsmall", "small", "base", "large"]

# Layers, hidden size and heads (He et al. 2023, table 9, and the published configs).
_SIZES: dict[DebertaV3Size, tuple[int, int, int]] = {
    "xsmall": (12, 384, 6),
    "small": (6, 768, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class DebertaV2Config(TransformerConfig):
    """Configures a DeBERTa encoder (He et al. 2021, 2023); default values are DeBERTa-v3-base.

    They are the published models' values. Hugging Face's `DebertaV2Config()` has others, without
    relative attention.

    Attributes:
      position_buckets: number of buckets of the distances in one direction; distances up to half of
        it have a bucket each.
      max_relative_positions: the distance from which on all share the last bucket.
    """

    family: ClassVar[str] = "DeBERTa"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier(
        activation="gelu", input_dropout=False
    )
    multiple_choice_classifier: ClassVar[SequenceClassifier] = DenseClassifier(
        activation="gelu", input_dropout=False
    )
    replaced_token_detector: ClassVar[ReplacedTokenDetector | None] = "first_token"
    missing_masked_lm_reason: ClassVar[str] = (
        "DeBERTa-v3 was pretrained to find replaced tokens, and the published files have no head "
        "for the encoder that predicts tokens"
    )

    vocab_size: int = 128100
    positions: NoPositions = NoPositions()
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    position_buckets: int = 256
    max_relative_positions: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("model.position_buckets", self.position_buckets, at_least=4, at_most=2**16)
        if self.max_relative_positions <= self.position_buckets // 2 + 1:
            raise ConfigError(
                f"model.max_relative_positions is {self.max_relative_positions}, expected more "
                f"than half of model.position_buckets {self.position_buckets}, plus 1"
            )

    @classmethod
    def from_size(
        cls, size: DebertaV3Size, *, vocab_size: int = 128100, max_position_embeddings: int = 512
    ) -> Self:
        """Returns the config of a published size of DeBERTa-v3: xsmall, small, base or large."""
        layers, hidden, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=NoPositions(max_position_embeddings=max_position_embeddings),
        )

    def encoder_flops(self, seq_length: int) -> float:
        """Returns the forward FLOPs for one token: BERT's and products with relative positions.

        For each token these are 2 products with the relative embeddings of all 2 L - 1 differences,
        although the table has fewer rows for long sequences (see `deberta_v2/model.py`). The
        projections of the relative embeddings are left out: they are computed once for a batch.
        """
        relative = self.num_hidden_layers * 4 * (2 * seq_length - 1) * self.hidden_size
        return super().encoder_flops(seq_length) + relative
