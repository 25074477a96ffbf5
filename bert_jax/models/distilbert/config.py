"""Defines the config of DistilBERT. Imports no jax."""

from dataclasses import dataclass
from typing import ClassVar

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.heads.config import DenseClassifier, SequenceClassifier
from bert_jax.models.layers.config import LearnedPositions

_CLASSIFIER = DenseClassifier(activation="relu", input_dropout=False)


@dataclass(frozen=True, kw_only=True)
class DistilBertConfig(TransformerConfig):
    """Configures a DistilBERT encoder (Sanh et al. 2019); default values are the published model.

    It is BERT with half the layers, without token types and without a pooler.
    """

    family: ClassVar[str] = "DistilBERT"
    drops_tokens: ClassVar[bool] = True
    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_lm",)
    sequence_classifier: ClassVar[SequenceClassifier] = _CLASSIFIER
    multiple_choice_classifier: ClassVar[SequenceClassifier] = _CLASSIFIER

    vocab_size: int = 30522
    num_hidden_layers: int = 6
    positions: LearnedPositions = LearnedPositions()
    type_vocab_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # Hugging Face's config.json has no fields for these two.
        for field, value in (("type_vocab_size", 0), ("layer_norm_eps", 1e-12)):
            if getattr(self, field) != value:
                raise ConfigError(
                    f"model.{field} is {getattr(self, field)}, expected {value}, which is fixed in "
                    "DistilBERT; use BertConfig for another value"
                )
