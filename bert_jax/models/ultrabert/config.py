"""Defines the config of UltraBERT. No jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import (
    check_key_value_heads,
    check_size,
)
from bert_jax.models.heads.config import (
    LinearClassifier,
    MaskedLMTransform,
    SequenceClassifier,
)
from bert_jax.models.layers.config import Activation, NoPositions, Norm
from bert_jax.models.pre_norm.config import LayerType, LocalAttentionConfig


@dataclass(frozen=True, kw_only=True)
class UltraBertConfig(LocalAttentionConfig):
    """Configures an UltraBERT encoder: EuroBERT's layers, two of three with local attention.

    The sizes of the published models are read from their folders; here the default sizes are
    BERT-base's.

    Attributes:
      num_key_value_heads: heads of keys and values, each of which several heads of queries share;
        a divisor of `num_attention_heads`.
      sliding_window: the largest distance between a token and those it attends to in local layers.
      prediction_head_size: the width between the two layers of the masked-LM head.
    """

    family: ClassVar[str] = "UltraBERT"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    masked_lm_transform: ClassVar[MaskedLMTransform] = "two_layers"
    sequence_classifier: ClassVar[SequenceClassifier] = LinearClassifier()
    multiple_choice_classifier: ClassVar[SequenceClassifier] = LinearClassifier()
    norm: ClassVar[Norm] = "rms_norm"

    vocab_size: int = 32_000
    positions: NoPositions = NoPositions(max_position_embeddings=32_768)
    hidden_act: Activation = "silu"
    layer_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    num_key_value_heads: int = 12
    sliding_window: int = 128
    global_rope_theta: float = 2_560_000.0
    prediction_head_size: int = 768

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key_value_heads(self.num_attention_heads, self.num_key_value_heads)
        if self.tie_word_embeddings:
            raise ConfigError(
                "model.tie_word_embeddings is True, but UltraBERT's masked-LM head is a table of "
                "its own; expected False"
            )
        if self.classifier_pooling == "late":
            raise ConfigError(
                "model.classifier_pooling is 'late', which is EuroBERT's; expected 'first_token' "
                "or 'mean'"
            )
        check_range("model.sliding_window", self.sliding_window, at_least=1)
        check_size("model.prediction_head_size", self.prediction_head_size, 2**20)

    @property
    def key_value_width(self) -> int:
        """Returns the width of keys and values."""
        return self.num_key_value_heads * self.head_width

    @property
    def radius(self) -> int:
        """Returns the largest distance between a token and those it attends to in local layers."""
        return self.sliding_window

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the activation of the masked-LM head, which files do not name."""
        return "gelu_tanh"

    @property
    def masked_lm_size(self) -> int:
        """Returns the width between the two layers of the masked-LM head."""
        return self.prediction_head_size

    @staticmethod
    def default_layer_types(num_layers: int) -> tuple[LayerType, ...]:
        """Returns layers of which every third one attends to all tokens, after two local ones."""
        return tuple(
            "sliding_attention" if (layer + 1) % 3 else "full_attention"
            for layer in range(num_layers)
        )
