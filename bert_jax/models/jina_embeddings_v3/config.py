"""Defines the config of the encoder of jina-embeddings-v3. No jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import DenseClassifier, SequenceClassifier
from bert_jax.models.layers.config import Activation, RotaryPositions


@dataclass(frozen=True, kw_only=True)
class JinaEmbeddingsV3Config(TransformerConfig):
    """Configures the encoder of jina-embeddings-v3 (Sturua et al. 2024), as it was published.

    It is XLM-RoBERTa with rotary positions.
    """

    family: ClassVar[str] = "jina-embeddings-v3"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier()

    vocab_size: int = 250002
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    positions: RotaryPositions = RotaryPositions(max_position_embeddings=8194, rope_theta=20_000.0)
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the exact GELU, whatever `hidden_act` is, as in Hugging Face's class."""
        return "gelu"
