"""Defines the configs of pretraining and of encoder-decoders, without replaced-token detection.

Imports no jax.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.config import check_token_id
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.encoder_decoder import EncoderDecoderConfig
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
        check_token_id("objective.mask_token_id", self.mask_token_id, self.model.vocab_size)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each loss by its name."""
        return {
            "mlm": self.mlm_weight,
            "nsp": self.nsp_weight,
            "sop": self.sop_weight,
            "sbo": self.sbo_weight,
        }


@dataclass(frozen=True, kw_only=True)
class MaskedPermutedLM:
    """Configures MPNet's own pretraining: masked and permuted LM (Song et al. 2020)."""

    model: MPNetConfig
    mask_token_id: int
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        check_token_id("objective.mask_token_id", self.mask_token_id, self.model.vocab_size)


@dataclass(frozen=True, kw_only=True)
class CausalLM:
    """Configures the paper's left-to-right ablation: next-token prediction with a causal mask."""

    model: EncoderConfig
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, kw_only=True)
class Seq2Seq:
    """Configures an encoder-decoder that predicts targets: denoising, or a task as text to text."""

    model: EncoderDecoderConfig
    label_smoothing: float = 0.0  # fraction of a target that is spread evenly over the vocabulary
    # Weight of the squared logarithm of the softmax's denominator; 1e-4 for the published T5.
    z_loss: float = 0.0
    compute: ComputeConfig = ComputeConfig()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        check_range("objective.label_smoothing", self.label_smoothing, at_least=0, below=1)
        check_range("objective.z_loss", self.z_loss, at_least=0)
