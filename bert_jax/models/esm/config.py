"""Defines the config of ESM-2, an encoder of protein sequences, and its published sizes. No jax."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import TransformerConfig, check_rotary_heads, check_token_id
from bert_jax.models.heads.config import DenseClassifier, SequenceClassifier
from bert_jax.models.layers.config import NoPositions

EsmSize = Literal["8m", "35m", "150m", "650m", "3b", "15b"]

# Layers, hidden size and heads: Lin et al. 2023, table S1.
_SIZES: dict[EsmSize, tuple[int, int, int]] = {
    "8m": (6, 320, 20),
    "35m": (12, 480, 20),
    "150m": (30, 640, 20),
    "650m": (33, 1280, 20),
    "3b": (36, 2560, 40),
    "15b": (48, 5120, 40),
}


@dataclass(frozen=True, kw_only=True)
class EsmConfig(TransformerConfig):
    """Configures an ESM-2 encoder (Lin et al. 2023); default values are as in 8m.

    Attributes:
      rope_theta: base of the rotation angles of a new model; a loaded one has its own angles.
      token_dropout: whether the embeddings of masks are zero, and those of all tokens are scaled
        to what they are with 12 % of masks.
      mask_token_id: the id of the mask, which `token_dropout` counts.
    """

    family: ClassVar[str] = "ESM-2"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier()

    vocab_size: int = 33
    hidden_size: int = 320
    num_hidden_layers: int = 6
    num_attention_heads: int = 20
    intermediate_size: int = 1280
    positions: NoPositions = NoPositions(max_position_embeddings=1026)
    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    token_dropout: bool = True
    mask_token_id: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary_heads(self)
        check_range("model.rope_theta", self.rope_theta, above=0)
        check_token_id("model.mask_token_id", self.mask_token_id, self.vocab_size)
        if self.hidden_act != "gelu":  # a config.json of ESM-2 cannot name another one
            raise ConfigError(f"model.hidden_act is {self.hidden_act!r}; ESM-2 has only 'gelu'")

    @classmethod
    def from_size(
        cls,
        size: EsmSize,
        *,
        vocab_size: int = 33,
        max_position_embeddings: int = 1026,
        mask_token_id: int = 32,
    ) -> Self:
        """Returns the config of a published size; the longest has 1,024 amino acids."""
        layers, hidden, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=NoPositions(max_position_embeddings=max_position_embeddings),
            mask_token_id=mask_token_id,
        )
