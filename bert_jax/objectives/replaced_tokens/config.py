"""Defines the config of replaced-token detection, and how its networks share embeddings.

Imports no jax.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import check_token_id
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig


@dataclass(frozen=True, kw_only=True)
class SharedEmbeddings:
    """Gives generator and discriminator the same embeddings, as in ELECTRA: tables and norm.

    Both losses train them.
    """


@dataclass(frozen=True, kw_only=True)
class GradientDisentangledEmbeddings:
    """Adds a trained difference to the generator's embeddings, as in DeBERTa-v3 (GDES).

    The discriminator's table of words is stop_gradient(that of the generator) + difference, and so
    is its table of positions, if the family has one (He et al. 2023, section 3.3). The differences
    start at 0. The generator's tables are trained by its own loss only.
    """


EmbeddingSharing = SharedEmbeddings | GradientDisentangledEmbeddings
"""How generator and discriminator share embeddings; None where each has its own."""


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens:
    """Configures replaced-token detection (Clark et al. 2020): a generator and a discriminator.

    `model` is what the run makes: the discriminator.
    """

    model: EncoderConfig
    generator: EncoderConfig
    mask_token_id: int
    embedding_sharing: EmbeddingSharing | None = SharedEmbeddings()
    mlm_weight: float = 1.0  # of the generator's loss
    rtd_weight: float = 50.0  # of the discriminator's loss
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        check_range("objective.mlm_weight", self.mlm_weight, at_least=0)
        check_range("objective.rtd_weight", self.rtd_weight, at_least=0)
        check_token_id("objective.mask_token_id", self.mask_token_id, self.model.vocab_size)
        if self.model.replaced_token_detector is None:
            raise ConfigError(
                f"objective.model is {self.model.family}, which has no head that detects replaced "
                "tokens; expected ELECTRA or DeBERTa, or another objective"
            )
        if self.generator.hidden_size > self.model.hidden_size:
            raise ConfigError(
                f"objective.generator.hidden_size is {self.generator.hidden_size}, which is wider "
                f"than the discriminator's objective.model.hidden_size {self.model.hidden_size}; "
                "expected at most that, usually 1/4 to 1/3 of it"
            )
        for name, reason in self._equal_fields().items():
            values = [getattr(config, name) for config in (self.generator, self.model)]
            if values[0] != values[1]:
                # Families without factorized embeddings have no field for their width.
                has_width = hasattr(self.generator, "embedding_size")
                width = "embedding_size" if has_width else "hidden_size"
                field = width if name == "word_embedding_size" else name
                raise ConfigError(
                    f"objective.generator.{field} is {values[0]}, but objective.model.{field} is "
                    f"{values[1]}; expected the same, because {reason}"
                )

    def _equal_fields(self) -> dict[str, str]:
        """Returns the fields that both networks must agree on, with the reason."""
        fields = {"vocab_size": "the discriminator reads tokens that the generator samples"}
        match self.embedding_sharing:
            case SharedEmbeddings():
                tables = ("word_embedding_size", "positions", "type_vocab_size", "layer_norm_eps")
                return dict.fromkeys(("vocab_size", *tables), "both use the same embeddings")
            case GradientDisentangledEmbeddings():
                reason = "the discriminator's embeddings are those of the generator plus a change"
                return fields | dict.fromkeys(("word_embedding_size", "positions"), reason)
            case None:
                return fields
