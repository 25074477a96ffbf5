"""Defines the tuning config: frozen parameters, learning rates by depth, weight anchors.

Imports no jax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError, check_range
from bert_jax.models.adapters.config import (
    IA3,
    Adapter,
    DoRA,
    HoulsbyAdapter,
    LoRA,
    PfeifferAdapter,
    PrefixTuning,
    PromptTuning,
)

WHOLE_ENCODER = "encoder/**"
"""The path pattern of all encoder parameters, without pooler and heads."""


Features = Literal["computed", "cached"]
"""Where the hidden states that a head reads come from.

computed  The encoder runs on every batch, with dropout: the usual way to fine-tune.
cached    The frozen encoder runs once on each sequence, before training (Devlin et al. 2019, 5.3).
          The features are cached in the run folder, and a training step computes only pooler and
          head. They are computed without the encoder's dropout; the head's dropout,
          `objective.classifier_dropout`, applies at every step.
"""


@dataclass(frozen=True, kw_only=True)
class L2SP:
    """Configures L2-SP regularization (Li et al. 2018, equation 3).

    The loss gets `encoder_strength` / 2 times the squared distance of the encoder from its initial
    weights, and `head_strength` / 2 times the squared norm of the head.

    Attributes:
      encoder_strength: alpha in the paper.
      head_strength: beta in the paper.
    """

    encoder_strength: float = 0.1
    head_strength: float = 0.01

    def __post_init__(self) -> None:
        for name in ("encoder_strength", "head_strength"):
            check_range(f"train.tuning.weight_anchor.{name}", getattr(self, name), at_least=0)


@dataclass(frozen=True, kw_only=True)
class EWC:
    """Configures elastic weight consolidation (Kirkpatrick et al. 2017, equation 3).

    The loss gets `strength` / 2 times the sum over encoder weights of their Fisher information
    times their squared distance from the initial weights.

    Attributes:
      fisher: file with the Fisher information, written by `bert-jax fisher`.
    """

    fisher: str
    strength: float = 1e4  # lambda in the paper

    def __post_init__(self) -> None:
        check_range("train.tuning.weight_anchor.strength", self.strength, at_least=0)


@dataclass(frozen=True, kw_only=True)
class FullTuning:
    """Trains all parameters, except those that match a pattern of `TuningConfig.frozen`."""


@dataclass(frozen=True, kw_only=True)
class BitFit:
    """Trains biases of the encoder, pooler and head (Ben Zaken et al. 2022)."""

    # "query_and_intermediate": the biases of the queries and of the first feed-forward layers, the
    # subset of Ben Zaken et al. 2022, section 4.2; "all" includes the biases of LayerNorms.
    biases: Literal["all", "query_and_intermediate"] = "all"


@dataclass(frozen=True, kw_only=True)
class LayerNormTuning:
    """Trains the scales and biases of the encoder's LayerNorms, pooler and head."""


TuningMethod = FullTuning | BitFit | LayerNormTuning | Adapter
"""What is trained of the encoder. All methods train pooler and heads completely."""


@dataclass(frozen=True, kw_only=True)
class TuningConfig:
    """Configures how a pretrained model is adapted; by default all parameters train alike.

    The depth of a parameter is 0 for the embeddings, k + 1 for layer k (from 0), and one more than
    the top layer for pooler and head. Layers that share their parameters, as in ALBERT, count as
    one layer: ALBERT has the depths 0 (embeddings), 1 (all layers) and 2 (pooler and head).

    Attributes:
      method: which parameters of the encoder are trained, or which new ones.
      frozen: path patterns of parameters that do not change, for example "encoder/embeddings/**".
      layerwise_lr_decay: learning rate of each depth divided by the rate of the depth above it.
      head_lr_multiplier: multiplies the learning rate of the head.
      unfreeze_every: steps after which the next depth starts to train, from the top; 0: all depths
        train from the first step.
      reinit_layers: number of top layers that start from random values (Zhang et al. 2021).
      weight_anchor: penalty on the distance from the initial weights.
      features: whether the encoder runs on every batch, or once before training.
    """

    method: TuningMethod = FullTuning()
    frozen: tuple[str, ...] = ()
    layerwise_lr_decay: float = 1.0
    head_lr_multiplier: float = 1.0
    unfreeze_every: int = 0
    reinit_layers: int = 0
    weight_anchor: L2SP | EWC | None = None
    features: Features = "computed"

    def __post_init__(self) -> None:
        check_range("train.tuning.layerwise_lr_decay", self.layerwise_lr_decay, above=0, at_most=1)
        check_range("train.tuning.head_lr_multiplier", self.head_lr_multiplier, above=0)
        for name in ("unfreeze_every", "reinit_layers"):
            check_range(f"train.tuning.{name}", getattr(self, name), at_least=0)
        if not isinstance(self.method, FullTuning):
            self._check_method()
        if self.features == "cached":
            self._check_encoder_frozen()

    @property
    def adapter(self) -> Adapter | None:
        """Returns the method if it adds parameters to the encoder, else None."""
        match self.method:
            case FullTuning() | BitFit() | LayerNormTuning():
                return None
            case _:
                return self.method

    @property
    def num_virtual_tokens(self) -> int:
        """Returns the number of positions before the text that the method takes."""
        match self.method:
            case PrefixTuning() | PromptTuning():
                return self.method.length
            case _:
                return 0

    @property
    def trains_part_of_encoder(self) -> bool:
        """Returns whether a checkpoint leaves out frozen parameters, which a base has."""
        return not isinstance(self.method, FullTuning)

    def _check_method(self) -> None:
        """Raises ConfigError if the method is combined with a setting that contradicts it."""
        method = type(self.method).__name__
        if self.features == "cached":
            raise ConfigError(
                f"train.tuning.features is 'cached', but train.tuning.method {method} trains "
                "parameters inside the encoder; set features to 'computed'"
            )
        if self.reinit_layers:
            raise ConfigError(
                f"train.tuning.reinit_layers is {self.reinit_layers}, but train.tuning.method "
                f"{method} would keep these layers at their random values; expected 0"
            )
        # The file of `bert-jax fisher` has the parameters of the model without an adapter.
        if isinstance(self.weight_anchor, EWC) and self.adapter is not None:
            raise ConfigError(
                f"train.tuning.weight_anchor is EWC, but train.tuning.method {method} trains added "
                "parameters, which have no Fisher information; set train.tuning.weight_anchor to "
                "null, or use a method that adds none: FullTuning, BitFit or LayerNormTuning"
            )

    def _check_encoder_frozen(self) -> None:
        """Raises ConfigError if cached features are combined with an encoder that changes."""
        requirement = "train.tuning.features is 'cached', which needs a frozen encoder"
        # Cached features are outputs of the encoder as it was before the first step.
        if WHOLE_ENCODER not in self.frozen:
            raise ConfigError(
                f"{requirement}, but train.tuning.frozen is {list(self.frozen)}; "
                f"add {WHOLE_ENCODER!r} to it"
            )
        for name in ("unfreeze_every", "reinit_layers"):
            if getattr(self, name):
                raise ConfigError(
                    f"{requirement}, but train.tuning.{name} is {getattr(self, name)}; expected "
                    "0, or set train.tuning.features to 'computed'"
                )
        anchors_encoder = (
            self.weight_anchor.encoder_strength
            if isinstance(self.weight_anchor, L2SP)
            else self.weight_anchor is not None
        )
        if anchors_encoder:
            raise ConfigError(
                f"{requirement}, but train.tuning.weight_anchor is {self.weight_anchor}, which has "
                "no effect on it; expected null, or L2SP with encoder_strength 0.0 (head only)"
            )


def default_learning_rate(method: TuningMethod) -> float:
    """Returns the peak learning rate of a method if the user gives none."""
    match method:
        case FullTuning():
            return 5e-5
        case LoRA():
            return 5e-4
        case HoulsbyAdapter() | PfeifferAdapter():
            return 3e-4
        case BitFit() | LayerNormTuning():
            return 1e-3
        case IA3() | PrefixTuning():
            return 5e-3
        case PromptTuning():
            return 3e-2


FROZEN_ENCODER = TuningConfig(frozen=(WHOLE_ENCODER,), features="cached")
"""Trains only pooler and head, on features that the encoder computes once."""


def _bitfit_subset() -> BitFit:
    return BitFit(biases="query_and_intermediate")


def _peft_ia3() -> IA3:
    return IA3(selection="peft")


MethodName = Literal[
    "full",
    "lora",
    "dora",
    "bitfit",
    "bitfit-subset",
    "layer-norm",
    "ia3",
    "ia3-peft",
    "houlsby",
    "pfeiffer",
    "prefix",
    "prompt",
]

METHODS: dict[str, Callable[..., TuningMethod]] = {
    "full": FullTuning,
    "lora": LoRA,
    "dora": DoRA,
    "bitfit": BitFit,
    "bitfit-subset": _bitfit_subset,
    "layer-norm": LayerNormTuning,
    "ia3": IA3,
    "ia3-peft": _peft_ia3,
    "houlsby": HoulsbyAdapter,
    "pfeiffer": PfeifferAdapter,
    "prefix": PrefixTuning,
    "prompt": PromptTuning,
}
"""The values of --method, and of `method` in recipes."""
