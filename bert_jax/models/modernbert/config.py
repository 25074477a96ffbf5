"""Defines the config of ModernBERT and the published sizes of ModernBERT and Ettin. No jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import check_range
from bert_jax.models.heads.config import (
    MaskedLMTransform,
    Pooling,
    PredictionHeadClassifier,
    SequenceClassifier,
    TokenClassifier,
)
from bert_jax.models.layers.config import (
    Activation,
    NoPositions,
    Norm,
    check_dropout,
)
from bert_jax.models.pre_norm.config import LayerType, LocalAttentionConfig

ModernBertSize = Literal[
    "base",
    "large",
    "ettin-17m",
    "ettin-32m",
    "ettin-68m",
    "ettin-150m",
    "ettin-400m",
    "ettin-1b",
]

# Layers, hidden size, feed-forward size and heads: Warner et al. 2024, table 4, and Weller et al.
# 2025 (Ettin), table 2.
_SIZES: dict[ModernBertSize, tuple[int, int, int, int]] = {
    "base": (22, 768, 1152, 12),
    "large": (28, 1024, 2624, 16),
    "ettin-17m": (7, 256, 384, 4),
    "ettin-32m": (10, 384, 576, 6),
    "ettin-68m": (19, 512, 768, 8),
    "ettin-150m": (22, 768, 1152, 12),
    "ettin-400m": (28, 1024, 2624, 16),
    "ettin-1b": (28, 1792, 3840, 28),
}


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(LocalAttentionConfig):
    """Configures a ModernBERT encoder (Warner et al. 2024); default values are ModernBERT-base.

    Attributes:
      hidden_dropout_prob: dropout after the embeddings; Hugging Face's `embedding_dropout`.
      attention_output_dropout: dropout of the output of attention. In Hugging Face it is the same
        as `attention_probs_dropout_prob`, but the published models were trained with 0.1 and 0.
      mlp_dropout: dropout of the gated activations in the feed-forward layers.
      local_attention: width of the window; a token attends to half of it on each side.
      classifier_pooling: what heads on the whole sequence read. Published models have the mean;
        Hugging Face's class has the first token.
    """

    family: ClassVar[str] = "ModernBERT"
    drops_tokens: ClassVar[bool] = True
    has_embedding_norm: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("prediction_head", "masked_lm")
    masked_lm_transform: ClassVar[MaskedLMTransform] = "shared"
    sequence_classifier: ClassVar[SequenceClassifier] = PredictionHeadClassifier()
    multiple_choice_classifier: ClassVar[SequenceClassifier] = PredictionHeadClassifier()
    token_classifier: ClassVar[TokenClassifier] = PredictionHeadClassifier()
    norm: ClassVar[Norm] = "layer_norm_without_bias"

    vocab_size: int = 50368
    num_hidden_layers: int = 22
    intermediate_size: int = 1152
    positions: NoPositions = NoPositions(max_position_embeddings=8192)
    # A field of its own: the published models were trained with 0.1 here and 0 for the attention
    # weights, but Hugging Face has one rate for both. An export writes the field, and Hugging Face
    # ignores it.
    attention_output_dropout: float = 0.0
    mlp_dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    local_attention: int = 128
    classifier_pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout("model.attention_output_dropout", self.attention_output_dropout)
        check_dropout("model.mlp_dropout", self.mlp_dropout)
        check_range("model.local_attention", self.local_attention, at_least=2)

    @classmethod
    def from_size(
        cls,
        size: ModernBertSize,
        *,
        vocab_size: int = 50368,
        max_position_embeddings: int = 8192,
    ) -> Self:
        """Returns the config of a published size of ModernBERT or Ettin.

        Ettin's last training phase has the same rotations in local layers as in global ones.
        """
        layers, hidden, intermediate, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=intermediate,
            positions=NoPositions(max_position_embeddings=max_position_embeddings),
            local_rope_theta=160_000.0 if size.startswith("ettin") else 10_000.0,
        )

    @property
    def radius(self) -> int:
        """Returns the largest distance between a token and those it attends to in local layers."""
        return self.local_attention // 2

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the activation of the prediction head (`classifier_activation` in files)."""
        return "gelu"

    @property
    def dropouts(self) -> tuple[float, float]:
        """Returns the dropout rates after attention and inside the feed-forward layer."""
        return self.attention_output_dropout, self.mlp_dropout

    @staticmethod
    def default_layer_types(num_layers: int) -> tuple[LayerType, ...]:
        """Returns layers of which every third one, from the first on, attends to all tokens."""
        return alternating_layers(num_layers)


def alternating_layers(num_layers: int, global_every: int = 3) -> tuple[LayerType, ...]:
    """Returns layers of which every third one attends to all tokens, beginning with the first."""
    return tuple(
        "sliding_attention" if layer % global_every else "full_attention"
        for layer in range(num_layers)
    )
