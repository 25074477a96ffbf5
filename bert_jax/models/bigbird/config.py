"""Defines the config of BigBird and its published sizes. Imports no jax."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    SequenceClassifier,
    SpanClassifier,
)
from bert_jax.models.layers.config import Activation, LearnedPositions

BigBirdSize = Literal["base", "large"]

# Layers, hidden size and heads: Zaheer et al. 2020, appendix E.
_SIZES: dict[BigBirdSize, tuple[int, int, int]] = {
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class FullAttention:
    """Selects attention to all tokens of a sequence, of any length."""


@dataclass(frozen=True, kw_only=True)
class BlockSparseWhenLong:
    """Selects block-sparse attention for long sequences, and full attention for short ones.

    A sequence of at most `max_full_length` tokens is too short for the pattern, whose blocks would
    overlap. The length that counts is the batch's, padding included. Hugging Face does the
    same, but a model there has full attention forever after its first short batch.
    """

    block_size: int = 64  # tokens of a block
    num_random_blocks: int = 3  # random blocks to which a block attends, besides 5 fixed ones

    def __post_init__(self) -> None:
        check_range("model.attention.block_size", self.block_size, at_least=1)
        check_range("model.attention.num_random_blocks", self.num_random_blocks, at_least=0)

    @property
    def max_full_length(self) -> int:
        """Returns the length in tokens up to which attention is full."""
        return (5 + 2 * self.num_random_blocks) * self.block_size


@dataclass(frozen=True, kw_only=True)
class BigBirdConfig(TransformerConfig):
    """Configures a BigBird encoder (Zaheer et al. 2020); default values are BigBird-base."""

    family: ClassVar[str] = "BigBird"
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier(activation="gelu_tanh")
    span_classifier: ClassVar[SpanClassifier] = "feed_forward"

    vocab_size: int = 50358
    positions: LearnedPositions = LearnedPositions(max_position_embeddings=4096)
    hidden_act: Activation = "gelu_tanh"
    # Which tokens a token attends to.
    attention: FullAttention | BlockSparseWhenLong = BlockSparseWhenLong()
    sep_token_id: int = 66  # where the question ends, for Hugging Face's question answering

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_act != "gelu_tanh":
            raise ConfigError(
                f"model.hidden_act is {self.hidden_act!r}; expected 'gelu_tanh', which BigBird "
                "uses in its layers and in its classifier"
            )

    @classmethod
    def from_size(
        cls, size: BigBirdSize, *, vocab_size: int = 50358, max_position_embeddings: int = 4096
    ) -> Self:
        """Returns the config of a published size: base or large."""
        layers, hidden, heads = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=LearnedPositions(max_position_embeddings=max_position_embeddings),
        )

    def attended_keys(self, seq_length: int) -> tuple[float, ...]:
        """Returns the number of keys of each layer: the keys in visible blocks.

        In training a query attends to 5 blocks and the random ones, but those of the first and the
        last block attend to all L keys, which is 2 blocks of keys for each query on average.
        """
        attention, keys = self.attention, float(seq_length)
        if isinstance(attention, BlockSparseWhenLong) and seq_length > attention.max_full_length:
            num_blocks = math.ceil(seq_length / attention.block_size)
            sparse = (5 + attention.num_random_blocks) * (num_blocks - 2) / num_blocks
            keys = (sparse + 2) * attention.block_size
        return (keys,) * self.num_hidden_layers
