"""Defines the config of NomicBERT, the encoder of nomic-embed-text. No jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import PoolerClassifier, SequenceClassifier
from bert_jax.models.layers.config import Activation, RotaryPositions


@dataclass(frozen=True, kw_only=True)
class NomicBertConfig(TransformerConfig):
    """Configures a NomicBERT encoder (Nussbaum et al. 2024); default values are the published ones.

    It is BERT with rotary positions, gated feed-forward layers, and no biases in either sublayer.
    """

    family: ClassVar[str] = "NomicBERT"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = PoolerClassifier()
    num_feed_forward_kernels: ClassVar[int] = 3

    vocab_size: int = 30528
    positions: RotaryPositions = RotaryPositions(max_position_embeddings=2048, rope_theta=1000.0)
    hidden_act: Activation = "silu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
