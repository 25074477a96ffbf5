"""Defines the config of encoders with pre-norm layers and rotary positions. No jax.

ModernBERT, its decoder, EuroBERT and UltraBERT extend it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import TransformerConfig, check_rotary_heads
from bert_jax.models.heads.config import Pooling

LayerType = Literal["full_attention", "sliding_attention"]
"""Whether the tokens of a layer attend to all tokens or to a window of tokens."""


@dataclass(frozen=True, kw_only=True)
class PreNormConfig(TransformerConfig):
    """Configures an encoder with a norm before each sublayer and after the last layer.

    Attributes:
      has_embedding_norm: whether a norm follows the embeddings; the first layer then has none
        before attention.
      hidden_dropout_prob: dropout after the embeddings.
      classifier_pooling: what heads on the whole sequence read.
    """

    has_embedding_norm: ClassVar[bool] = False
    num_feed_forward_kernels: ClassVar[int] = 3

    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_pooling: Pooling = "first_token"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary_heads(self)

    @property
    def rope_thetas(self) -> Mapping[LayerType, float]:
        """Returns the base of the rotation angles in each type of layers."""
        raise NotImplementedError

    @property
    def attention_types(self) -> tuple[LayerType, ...]:
        """Returns the type of each layer."""
        return ("full_attention",) * self.num_hidden_layers

    @property
    def radius(self) -> int:
        """Returns the largest distance between a token and those it attends to in local layers."""
        raise NotImplementedError(f"{type(self).__name__} has no local layers")

    @property
    def dropouts(self) -> tuple[float, float]:
        """Returns the dropout rates after attention and inside the feed-forward layer."""
        return 0.0, 0.0

    @property
    def sequence_pooling(self) -> Pooling:
        """Returns what heads on the whole sequence read."""
        return self.classifier_pooling


@dataclass(frozen=True, kw_only=True)
class LocalAttentionConfig(PreNormConfig):
    """Configures an encoder some of whose layers attend to a window of tokens.

    Attributes:
      layer_types: the type of each layer. The default, (), stands for full attention in every third
        layer: the first, fourth, ... of ModernBERT, the third, sixth, ... of UltraBERT.
      global_rope_theta, local_rope_theta: base of the rotation angles in the two types of layers.
    """

    layer_types: tuple[LayerType, ...] = ()
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layer_types:
            layer_types = self.default_layer_types(self.num_hidden_layers)
            object.__setattr__(self, "layer_types", layer_types)
        if len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"model.layer_types has {len(self.layer_types)} layers, expected "
                f"model.num_hidden_layers, which is {self.num_hidden_layers}; set "
                "model.layer_types to [] for full attention in every third layer"
            )
        for name in ("global_rope_theta", "local_rope_theta"):
            check_range(f"model.{name}", getattr(self, name), above=0)

    @staticmethod
    def default_layer_types(num_layers: int) -> tuple[LayerType, ...]:
        """Returns layers of which every third one attends to all tokens."""
        raise NotImplementedError

    @property
    def rope_thetas(self) -> Mapping[LayerType, float]:
        """Returns the base of the rotation angles in each type of layers."""
        return {
            "full_attention": self.global_rope_theta,
            "sliding_attention": self.local_rope_theta,
        }

    @property
    def attention_types(self) -> tuple[LayerType, ...]:
        """Returns the type of each layer."""
        return self.layer_types

    def attended_keys(self, seq_length: int) -> tuple[float, ...]:
        """Returns the number of keys of each layer: all tokens, or the window's."""
        window = self.radius + 1 if self.is_decoder else 2 * self.radius + 1
        local = min(seq_length, window)
        return tuple(seq_length if kind == "full_attention" else local for kind in self.layer_types)
