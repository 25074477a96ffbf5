"""Defines the layers that families have for masked LM and for detecting replaced tokens.

Imports no jax. The modules are in `heads/pretraining.py` and `heads/span_boundary.py`.
"""

from dataclasses import dataclass

SPAN_POSITION_EMBEDDING_SIZE = 200
"""Width of the position embeddings of the span boundary head (SpanBERT's release)."""


@dataclass(frozen=True, kw_only=True)
class OwnTransform:
    """Gives masked LM a dense layer and a norm of its own, which no task head uses (BERT)."""


@dataclass(frozen=True, kw_only=True)
class SharedTransform:
    """Gives masked LM the prediction head, which the task heads use as well (ModernBERT)."""


@dataclass(frozen=True, kw_only=True)
class NoTransform:
    """Computes masked-LM logits from its own table alone, without a dense layer, a norm or a bias.

    EuroBERT does this.
    """


MaskedLMTransform = OwnTransform | SharedTransform | NoTransform
"""The layers between the encoder and the masked-LM logits."""


@dataclass(frozen=True, kw_only=True)
class DenseDetector:
    """Detects replaced tokens: dense, activation, linear to one logit (ELECTRA)."""


@dataclass(frozen=True, kw_only=True)
class FirstTokenDetector:
    """Detects replaced tokens: sum with the first token, norm, dense, activation, linear.

    The layers of `LMMaskPredictionHead` in DeBERTa-v3's release.
    """


ReplacedTokenDetector = DenseDetector | FirstTokenDetector
"""The layers that a family puts on its encoder to detect replaced tokens in pretraining."""
