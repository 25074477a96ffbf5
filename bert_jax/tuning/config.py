"""Which parameters of a pretrained encoder move, how fast, and what holds them. No jax here."""

from dataclasses import dataclass

from bert_jax.errors import ConfigError

WHOLE_ENCODER = "encoder/**"
"""The path pattern of all parameters below the head and its pooler."""


@dataclass(frozen=True, kw_only=True)
class L2SP:
    """Pulls the encoder to where it started, the head to zero (Li et al. 2018, equation 3)."""

    # alpha: half of it times the squared distance is added to the loss
    encoder_strength: float = 0.1
    head_strength: float = 0.01  # beta

    def __post_init__(self) -> None:
        if min(self.encoder_strength, self.head_strength) < 0:
            raise ConfigError(
                f"tuning.weight_anchor has encoder_strength {self.encoder_strength} and "
                f"head_strength {self.head_strength}; expected at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class EWC:
    """Pulls each encoder parameter to where it started, by its importance for the old task.

    Elastic weight consolidation (Kirkpatrick et al. 2017, equation 3): half of `strength` times
    the Fisher information times the squared distance is added to the loss.
    """

    fisher: str  # file written by `bert-jax fisher`
    strength: float = 1e4

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ConfigError(
                f"tuning.weight_anchor.strength is {self.strength}, expected at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class ComputedFeatures:
    """The encoder reads each batch anew, with its dropout."""


@dataclass(frozen=True, kw_only=True)
class CachedFeatures:
    """The frozen encoder reads each row once, before the first step (Devlin et al. 2019, 5.3).

    This is the feature-based approach: its states are kept in the run folder, and a step computes
    the head and its pooler alone. The encoder's dropout has no part in states that are computed
    once; `objective.classifier_dropout`, which is the head's, has.
    """


@dataclass(frozen=True, kw_only=True)
class TuningConfig:
    """How the parameters move; the defaults move all of them alike.

    Parameters are counted by depth: the embeddings are 0, layer k (from 0) is k + 1, and the head
    with its pooler, which starts afresh, comes above all layers.
    """

    frozen: tuple[str, ...] = ()  # path patterns, as "encoder/embeddings/**": these do not move
    # Each depth moves at this multiple of the rate of the one above it.
    layerwise_lr_decay: float = 1.0
    head_lr_multiplier: float = 1.0  # multiple of the learning rate for the head
    unfreeze_every: int = 0  # steps after which one more depth moves, from the top; 0: all at once
    reinit_layers: int = 0  # layers from the top that start from random values (Zhang et al. 2021)
    weight_anchor: L2SP | EWC | None = None
    features: ComputedFeatures | CachedFeatures = ComputedFeatures()

    def __post_init__(self) -> None:
        if not 0 < self.layerwise_lr_decay <= 1:
            raise ConfigError(
                f"tuning.layerwise_lr_decay is {self.layerwise_lr_decay}, "
                "expected 0 < layerwise_lr_decay <= 1"
            )
        if self.head_lr_multiplier <= 0:
            raise ConfigError(
                f"tuning.head_lr_multiplier is {self.head_lr_multiplier}, expected above 0"
            )
        for name in ("unfreeze_every", "reinit_layers"):
            if getattr(self, name) < 0:
                raise ConfigError(f"tuning.{name} is {getattr(self, name)}, expected at least 0")
        if isinstance(self.features, CachedFeatures):
            self._check_encoder_frozen()

    def _check_encoder_frozen(self) -> None:
        """Raises if a parameter of an encoder that is read once could move."""
        requirement = "tuning.features is CachedFeatures, which needs an encoder that does not move"
        if WHOLE_ENCODER not in self.frozen:
            raise ConfigError(
                f"{requirement}, but tuning.frozen is {list(self.frozen)}; "
                f"put {WHOLE_ENCODER!r} there"
            )
        for name in ("unfreeze_every", "reinit_layers"):
            if getattr(self, name):
                raise ConfigError(
                    f"{requirement}, but tuning.{name} is {getattr(self, name)}; expected 0, "
                    "or ComputedFeatures as tuning.features"
                )
        anchors_encoder = (
            self.weight_anchor.encoder_strength
            if isinstance(self.weight_anchor, L2SP)
            else self.weight_anchor is not None
        )
        if anchors_encoder:
            raise ConfigError(
                f"{requirement}, but tuning.weight_anchor is {self.weight_anchor}, which holds one "
                "that does; expected null, or L2SP with encoder_strength 0.0 to pull the head alone"
            )


FROZEN_ENCODER = TuningConfig(frozen=(WHOLE_ENCODER,), features=CachedFeatures())
"""Head and pooler alone are trained, on states that the encoder computes once."""
