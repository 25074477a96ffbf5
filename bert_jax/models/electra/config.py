"""Defines the config of ELECTRA, its published sizes, and the generator of each. Imports no jax.

The discriminator and the generator are encoders of the same kind, each with its own config.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    ReplacedTokenDetector,
    SequenceClassifier,
)
from bert_jax.models.layers.config import Activation, LearnedPositions

ElectraSize = Literal["small", "base", "large"]

# Layers, hidden size, heads and embedding size of the discriminators (Clark et al. 2020, table 6).
_SIZES: dict[ElectraSize, tuple[int, int, int, int]] = {
    "small": (12, 256, 4, 128),
    "base": (12, 768, 12, 768),
    "large": (24, 1024, 16, 1024),
}

GENERATOR_FRACTIONS: dict[ElectraSize, float] = {"small": 1.0, "base": 1 / 3, "large": 0.25}
"""Hidden size of the generator as a fraction of the discriminator's, in the released models.

The released small model ("small++") has a generator of its own size; table 6 of the paper and the
default of the original code have 1/4.
"""


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(TransformerConfig):
    """Configures an ELECTRA encoder (Clark et al. 2020); default values are base's discriminator.

    It is BERT without a pooler. The embeddings have `embedding_size` E, and a projection to D
    follows if E is not D. Hugging Face's `ElectraConfig()` is the small discriminator.
    """

    family: ClassVar[str] = "ELECTRA"
    drops_tokens: ClassVar[bool] = True
    # The head of the discriminator, "replaced_token", is trained by `ReplacedTokens` only.
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = DenseClassifier(activation="gelu")
    multiple_choice_classifier: ClassVar[SequenceClassifier] = DenseClassifier(
        activation="gelu", input_dropout=False
    )
    replaced_token_detector: ClassVar[ReplacedTokenDetector | None] = "dense"

    vocab_size: int = 30522
    embedding_size: int = 768  # E, the width of the embedding tables
    positions: LearnedPositions = LearnedPositions()

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.embedding_size) is not int or not 1 <= self.embedding_size <= 2**20:
            raise ConfigError(
                f"model.embedding_size is {self.embedding_size!r}, expected an integer from 1 to "
                f"{2**20:,}"
            )

    @classmethod
    def from_size(
        cls, size: ElectraSize, *, vocab_size: int = 30522, max_position_embeddings: int = 512
    ) -> Self:
        """Returns the discriminator of a published size: small, base or large."""
        layers, hidden, heads, embedding = _SIZES[size]
        return cls(
            vocab_size=vocab_size,
            embedding_size=embedding,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            positions=LearnedPositions(max_position_embeddings=max_position_embeddings),
        )

    @property
    def word_embedding_size(self) -> int:
        """Returns E, the width of the embeddings."""
        return self.embedding_size

    @property
    def masked_lm_activation(self) -> Activation:
        """Returns the exact GELU, whatever `hidden_act` is, as `ElectraGeneratorPredictions`."""
        return "gelu"


def generator_config(discriminator: ElectraConfig, fraction: float) -> ElectraConfig:
    """Returns the generator that is trained with a discriminator.

    Its layers have `fraction` of the width and heads of 64, as in `get_generator_config` of the
    original code. The embeddings have the discriminator's size, because both share them.

    Raises:
      ConfigError: `fraction` is not above 0 and at most 1.
    """
    check_range("generator_fraction", fraction, above=0, at_most=1)
    hidden = round(discriminator.hidden_size * fraction)
    return dataclasses.replace(
        discriminator,
        hidden_size=hidden,
        num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden,
    )
