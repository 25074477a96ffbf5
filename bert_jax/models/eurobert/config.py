"""Defines the config of EuroBERT and its published sizes. No jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import check_key_value_heads
from bert_jax.models.heads.config import (
    DenseClassifier,
    MaskedLMTransform,
    Pooling,
    SequenceClassifier,
)
from bert_jax.models.layers.config import (
    Activation,
    NoPositions,
    Norm,
)
from bert_jax.models.pre_norm.config import LayerType, PreNormConfig

EuroBertSize = Literal["210m", "610m", "2.1b"]

# Layers, hidden size, feed-forward size, heads of queries, and heads of keys and values: Boizard et
# al. 2025, table 3.
_SIZES: dict[EuroBertSize, tuple[int, int, int, int, int]] = {
    "210m": (12, 768, 3072, 12, 12),
    "610m": (26, 1152, 4096, 18, 6),
    "2.1b": (32, 2304, 6144, 18, 6),
}
_CLASSIFIER = DenseClassifier(activation="gelu", input_dropout=False)


@dataclass(frozen=True, kw_only=True)
class EuroBertConfig(PreNormConfig):
    """Configures a EuroBERT encoder (Boizard et al. 2025); default values are as in 210m.

    Attributes:
      num_key_value_heads: heads of keys and values, each of which several heads of queries share;
        a divisor of `num_attention_heads`.
      rope_theta: base of the rotation angles.
    """

    family: ClassVar[str] = "EuroBERT"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    masked_lm_transform: ClassVar[MaskedLMTransform] = "none"
    sequence_classifier: ClassVar[SequenceClassifier] = _CLASSIFIER
    multiple_choice_classifier: ClassVar[SequenceClassifier] = _CLASSIFIER
    norm: ClassVar[Norm] = "rms_norm"

    vocab_size: int = 128_256
    positions: NoPositions = NoPositions(max_position_embeddings=8192)
    hidden_act: Activation = "silu"
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    num_key_value_heads: int = 12
    rope_theta: float = 250_000.0
    classifier_pooling: Pooling = "late"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key_value_heads(self.num_attention_heads, self.num_key_value_heads)
        if self.tie_word_embeddings:
            raise ConfigError(
                "model.tie_word_embeddings is True, but EuroBERT's masked-LM head is a table of "
                "its own; expected False"
            )
        check_range("model.rope_theta", self.rope_theta, above=0)

    @classmethod
    def from_size(
        cls, size: EuroBertSize, *, vocab_size: int = 128_256, max_position_embeddings: int = 8192
    ) -> Self:
        """Returns the config of a published size."""
        layers, hidden, intermediate, heads, key_value_heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            intermediate_size=intermediate,
            positions=NoPositions(max_position_embeddings=max_position_embeddings),
        )

    @property
    def key_value_width(self) -> int:
        """Returns the width of keys and values."""
        return self.num_key_value_heads * self.head_width

    @property
    def rope_thetas(self) -> dict[LayerType, float]:
        """Returns the base of the rotation angles, by the one type of layers."""
        return {"full_attention": self.rope_theta}
