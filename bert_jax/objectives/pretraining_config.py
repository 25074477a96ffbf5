"""Defines the configs of the objectives of pretraining. Imports no jax."""

from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.objectives.distillation.config import PretrainingDistillation


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Configures pretraining: a weighted sum of losses (`objectives/pretraining.py`).

    A loss of weight 0 is not computed. The network has the pretraining heads of the model's family
    and the heads of the losses. With `distillation`, the outputs of a teacher are learned, too.
    """

    model: EncoderConfig
    mask_token_id: int
    mlm_weight: float = 1.0  # masked LM
    nsp_weight: float = 1.0  # next-sentence prediction (BERT)
    sop_weight: float = 0.0  # sentence-order prediction (ALBERT)
    sbo_weight: float = 0.0  # span boundary objective (SpanBERT)
    distillation: PretrainingDistillation | None = None
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        weights = self.loss_weights.values()
        if self.distillation is not None:
            self.distillation.check_student(self.model)
        if min(weights) < 0 or (sum(weights) == 0 and self.distillation is None):
            listed = ", ".join(f"{name}_weight {w}" for name, w in self.loss_weights.items())
            raise ConfigError(f"objective has {listed}: expected all >= 0 and one > 0")
        if self.nsp_weight and "next_sentence" not in self.model.pretraining_heads:
            raise ConfigError(
                f"objective.nsp_weight is {self.nsp_weight}, but {self.model.family} is pretrained "
                "without next-sentence prediction; expected 0"
            )
        if self.sop_weight and "pooler" not in self.model.pretraining_heads:
            raise ConfigError(
                f"objective.sop_weight is {self.sop_weight}, but {self.model.family} has no "
                "pooler, whose output sentence-order prediction uses; expected 0"
            )
        _check_mask_token(self.mask_token_id, self.model)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each loss by its name."""
        return {
            "mlm": self.mlm_weight,
            "nsp": self.nsp_weight,
            "sop": self.sop_weight,
            "sbo": self.sbo_weight,
        }


def _check_mask_token(mask_token_id: int, model: EncoderConfig) -> None:
    if not 0 <= mask_token_id < model.vocab_size:
        raise ConfigError(
            f"objective.mask_token_id {mask_token_id} is not an id below "
            f"objective.model.vocab_size {model.vocab_size}"
        )


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens:
    """Configures ELECTRA's pretraining (Clark et al. 2020): a generator and a discriminator.

    Both share the embeddings of the discriminator. `model` is what the run makes: the
    discriminator.
    """

    model: EncoderConfig
    generator: EncoderConfig
    mask_token_id: int
    mlm_weight: float = 1.0  # of the generator's loss
    rtd_weight: float = 50.0  # of the discriminator's loss
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        check_range("objective.mlm_weight", self.mlm_weight, at_least=0)
        check_range("objective.rtd_weight", self.rtd_weight, at_least=0)
        _check_mask_token(self.mask_token_id, self.model)
        if self.generator.hidden_size > self.model.hidden_size:
            raise ConfigError(
                f"objective.generator.hidden_size is {self.generator.hidden_size}, which is wider "
                f"than the discriminator's objective.model.hidden_size {self.model.hidden_size}; "
                "expected at most that, usually 1/4 to 1/3 of it"
            )
        for name, field in _SHARED_BY_EMBEDDINGS.items():
            values = [getattr(config, name) for config in (self.generator, self.model)]
            if values[0] != values[1]:
                raise ConfigError(
                    f"objective.generator.{field} is {values[0]}, but objective.model.{field} is "
                    f"{values[1]}; expected the same, because both use the same embeddings"
                )


# What two encoders with the same embeddings agree on, and the field of ELECTRA that sets it.
_SHARED_BY_EMBEDDINGS = {
    "vocab_size": "vocab_size",
    "word_embedding_size": "embedding_size",
    "positions": "positions",
    "type_vocab_size": "type_vocab_size",
    "layer_norm_eps": "layer_norm_eps",
}


@dataclass(frozen=True, kw_only=True)
class MaskedPermutedLM:
    """Configures MPNet's own pretraining: masked and permuted LM (Song et al. 2020)."""

    model: MPNetConfig
    mask_token_id: int
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        _check_mask_token(self.mask_token_id, self.model)


@dataclass(frozen=True, kw_only=True)
class CausalLM:
    """Configures the paper's left-to-right ablation: next-token prediction with a causal mask."""

    model: EncoderConfig
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)
