"""Defines the config of ModernBERT and the published sizes of ModernBERT and Ettin. No jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import TransformerConfig, check_rotary_heads
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

LayerType = Literal["full_attention", "sliding_attention"]
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
class ModernBertConfig(TransformerConfig):
    """Configures a ModernBERT encoder (Warner et al. 2024); default values are ModernBERT-base.

    Attributes:
      hidden_dropout_prob: dropout after the embeddings; Hugging Face's `embedding_dropout`.
      attention_output_dropout: dropout of the output of attention. In Hugging Face it is the same
        as `attention_probs_dropout_prob`, but the published models were trained with 0.1 and 0.
      mlp_dropout: dropout of the gated activations in the feed-forward layers.
      layer_types: the kind of attention of each layer: to all tokens, or to a window of tokens.
        The default, (), stands for every third layer with full attention, from the first one on.
      local_attention: width of the window; a token attends to half of it on each side.
      global_rope_theta, local_rope_theta: base of the rotation angles in the two kinds of layers.
      classifier_pooling: what heads on the whole sequence read. Published models have the mean;
        Hugging Face's class has the first token.
    """

    family: ClassVar[str] = "ModernBERT"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("prediction_head", "masked_lm")
    masked_lm_transform: ClassVar[MaskedLMTransform] = "shared"
    sequence_classifier: ClassVar[SequenceClassifier] = PredictionHeadClassifier()
    multiple_choice_classifier: ClassVar[SequenceClassifier] = PredictionHeadClassifier()
    token_classifier: ClassVar[TokenClassifier] = PredictionHeadClassifier()
    norm: ClassVar[Norm] = "layer_norm_without_bias"
    num_feed_forward_kernels: ClassVar[int] = 3

    vocab_size: int = 50368
    num_hidden_layers: int = 22
    intermediate_size: int = 1152
    positions: NoPositions = NoPositions(max_position_embeddings=8192)
    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    # A field of its own: the published models were trained with 0.1 here and 0 for the attention
    # weights, but Hugging Face has one rate for both. An export writes the field, and Hugging Face
    # ignores it.
    attention_output_dropout: float = 0.0
    mlp_dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    layer_types: tuple[LayerType, ...] = ()
    local_attention: int = 128
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    classifier_pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layer_types:
            object.__setattr__(self, "layer_types", alternating_layers(self.num_hidden_layers))
        if len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"model.layer_types has {len(self.layer_types)} layers, expected "
                f"model.num_hidden_layers, which is {self.num_hidden_layers}; set "
                "model.layer_types to [] for full attention in every third layer"
            )
        check_rotary_heads(self)
        check_dropout("model.attention_output_dropout", self.attention_output_dropout)
        check_dropout("model.mlp_dropout", self.mlp_dropout)
        check_range("model.local_attention", self.local_attention, at_least=2)
        for name in ("global_rope_theta", "local_rope_theta"):
            check_range(f"model.{name}", getattr(self, name), above=0)

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
    def sequence_pooling(self) -> Pooling:
        """Returns which vector of a sequence its heads read."""
        return self.classifier_pooling

    def attended_keys(self, seq_length: int) -> tuple[float, ...]:
        """Returns the number of keys of each layer: all tokens, or the window's."""
        return self._keys(seq_length, min(seq_length, 2 * self.radius + 1))

    def _keys(self, full: int, local: int) -> tuple[float, ...]:
        return tuple(full if kind == "full_attention" else local for kind in self.layer_types)


def alternating_layers(num_layers: int, global_every: int = 3) -> tuple[LayerType, ...]:
    """Returns layers of which every third one attends to all tokens, beginning with the first."""
    return tuple(
        "sliding_attention" if layer % global_every else "full_attention"
        for layer in range(num_layers)
    )
