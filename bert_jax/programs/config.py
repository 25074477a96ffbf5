"""Programs as configs: which network is trained, on which objectives. No jax here."""

import math
from dataclasses import dataclass

from bert_jax.errors import ConfigError
from bert_jax.models.config import (
    BertConfig,
    ChoiceHead,
    Compute,
    RegressionHead,
    SequenceHead,
    SpanHead,
    TaskHead,
    TokenHead,
)


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """BERT with masked LM and next-sentence prediction: loss = mlm_weight MLM + nsp_weight NSP."""

    model: BertConfig
    mask_token_id: int
    mlm_weight: float = 1.0
    nsp_weight: float = 1.0
    compute: Compute = Compute()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if min(self.mlm_weight, self.nsp_weight) < 0 or self.mlm_weight + self.nsp_weight == 0:
            raise ConfigError(
                f"program.mlm_weight {self.mlm_weight} and program.nsp_weight {self.nsp_weight}: "
                "expected both >= 0 and one > 0"
            )
        if not 0 <= self.mask_token_id < self.model.vocab_size:
            raise ConfigError(
                f"program.mask_token_id {self.mask_token_id} is not an id below "
                f"program.model.vocab_size {self.model.vocab_size}"
            )


@dataclass(frozen=True, kw_only=True)
class LeftToRight:
    """The paper's ablation: the same encoder under a causal mask, predicting the next token."""

    model: BertConfig
    compute: Compute = Compute()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """An encoder with a task's head (Devlin et al. 2019, section 4).

    The loss is the cross-entropy of the labels, or the squared error of a `RegressionHead`.
    """

    model: BertConfig
    head: TaskHead
    # Of what the head reads. A `SpanHead` reads the last layer as it is, as in BERT's release.
    dropout: float = 0.1
    label_smoothing: float = 0.0  # the share of a label that is spread evenly over all classes
    class_weights: tuple[float, ...] = ()  # one for each label of the head; () weighs all alike
    compute: Compute = Compute()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"program.{name} is {getattr(self, name)}, expected 0 <= {name} < 1"
                )
        kind = type(self.head).__name__
        if self.label_smoothing and isinstance(self.head, RegressionHead | SpanHead):
            raise ConfigError(
                f"program.label_smoothing is {self.label_smoothing}, but a {kind} has no classes; "
                "expected 0"
            )
        if self.class_weights:
            _check_class_weights(self.class_weights, self.head)


def _check_class_weights(weights: tuple[float, ...], head: TaskHead) -> None:
    match head:
        case SequenceHead() | TokenHead():
            labels = head.labels
        case RegressionHead() | SpanHead() | ChoiceHead():
            raise ConfigError(
                f"program.class_weights is {weights}, but a {type(head).__name__} has no classes; "
                "expected ()"
            )
    if len(weights) != len(labels):
        raise ConfigError(
            f"program.class_weights has {len(weights)} weights, but program.head has "
            f"{len(labels)} labels: {', '.join(labels)}"
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ConfigError(
            f"program.class_weights is {weights}, expected numbers >= 0 and one of them > 0"
        )


ProgramConfig = Pretraining | LeftToRight | FineTuning
