"""Defines the config of UltraBERT. No jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import (
    TransformerConfig,
    check_key_value_heads,
    check_rotary_heads,
    check_size,
)
from bert_jax.models.heads.config import (
    LinearClassifier,
    MaskedLMTransform,
    Pooling,
    SequenceClassifier,
)
from bert_jax.models.layers.config import Activation, NoPositions, Norm
from bert_jax.models.modernbert.config import LayerType


@dataclass(frozen=True, kw_only=True)
class UltraBertConfig(TransformerConfig):
    """Configures an UltraBERT encoder: EuroBERT's layers, two of three with local attention.

    The sizes of the published models are read from their folders; here the default sizes are
    BERT-base's.

    Attributes:
      num_key_value_heads: heads of keys and values, each of which several heads of queries share;
        a divisor of `num_attention_heads`.
      hidden_dropout_prob: dropout after the embeddings, which the published models do not have.
      layer_types: the kind of attention of each layer: to all tokens, or to a window of tokens.
        The default, (), stands for every third layer with full attention, the third one first.
      sliding_window: the largest distance between a token and those it attends to in local layers.
      global_rope_theta, local_rope_theta: base of the rotation angles in the two kinds of layers.
      prediction_head_size: the width between the two layers of the masked-LM head.
      classifier_pooling: what heads on the whole sequence read.
    """

    family: ClassVar[str] = "UltraBERT"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    masked_lm_transform: ClassVar[MaskedLMTransform] = "two_layers"
    sequence_classifier: ClassVar[SequenceClassifier] = LinearClassifier()
    multiple_choice_classifier: ClassVar[SequenceClassifier] = LinearClassifier()
    norm: ClassVar[Norm] = "rms_norm"
    num_feed_forward_kernels: ClassVar[int] = 3

    vocab_size: int = 32_000
    positions: NoPositions = NoPositions(max_position_embeddings=32_768)
    hidden_act: Activation = "silu"
    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    num_key_value_heads: int = 12
    layer_types: tuple[LayerType, ...] = ()
    sliding_window: int = 128
    global_rope_theta: float = 2_560_000.0
    local_rope_theta: float = 10_000.0
    prediction_head_size: int = 768
    classifier_pooling: Pooling = "first_token"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary_heads(self)
        check_key_value_heads(self.num_attention_heads, self.num_key_value_heads)
        layers = self.num_hidden_layers
        if not self.layer_types:
            object.__setattr__(self, "layer_types", ultrabert_layers(layers))
        if len(self.layer_types) != layers:
            raise ConfigError(
                f"model.layer_types has {len(self.layer_types)} layers, expected "
                f"model.num_hidden_layers, which is {layers}; set model.layer_types to [] for "
                "full attention in every third layer"
            )
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
        for name in ("global_rope_theta", "local_rope_theta"):
            check_range(f"model.{name}", getattr(self, name), above=0)

    @property
    def key_value_width(self) -> int:
        """Returns the width of keys and values."""
        return self.num_key_value_heads * self.head_width

    @property
    def radius(self) -> int:
        """Returns the largest distance between a token and those it attends to in local layers."""
        return self.sliding_window

    @property
    def sequence_pooling(self) -> Pooling:
        """Returns what heads on the whole sequence read."""
        return self.classifier_pooling

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the activation of the masked-LM head, which files do not name."""
        return "gelu_tanh"

    @property
    def masked_lm_size(self) -> int:
        """Returns the width between the two layers of the masked-LM head."""
        return self.prediction_head_size

    def attended_keys(self, seq_length: int) -> tuple[float, ...]:
        """Returns the number of keys of each layer: all tokens, or the window's."""
        return self._keys(seq_length, min(seq_length, 2 * self.sliding_window + 1))

    def _keys(self, full: int, local: int) -> tuple[float, ...]:
        return tuple(full if kind == "full_attention" else local for kind in self.layer_types)


def ultrabert_layers(num_layers: int) -> tuple[LayerType, ...]:
    """Returns layers of which every third one attends to all tokens, after two local ones."""
    return tuple(
        "sliding_attention" if (layer + 1) % 3 else "full_attention" for layer in range(num_layers)
    )
