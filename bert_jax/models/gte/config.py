"""Defines the config of GTE, the encoder of gte-multilingual and gte-v1.5. No jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import PoolerClassifier, SequenceClassifier
from bert_jax.models.layers.config import Activation, RotaryPositions


@dataclass(frozen=True, kw_only=True)
class GteConfig(TransformerConfig):
    """Configures a GTE encoder (Zhang et al. 2024, mGTE); default values are multilingual-base.

    It is BERT with rotary positions and gated feed-forward layers. `type_vocab_size` is 0 in
    gte-base-en-v1.5.
    """

    family: ClassVar[str] = "GTE"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = PoolerClassifier()
    num_feed_forward_kernels: ClassVar[int] = 3

    vocab_size: int = 250048
    positions: RotaryPositions = RotaryPositions(max_position_embeddings=8192, rope_theta=160_000.0)
    type_vocab_size: int = 1
    attention_probs_dropout_prob: float = 0.0

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the exact GELU, whatever `hidden_act` is, as Hugging Face's `GteLMHead`."""
        return "gelu"
