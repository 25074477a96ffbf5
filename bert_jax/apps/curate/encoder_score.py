"""Scores documents with a fine-tuned encoder, as a signal for the rules of `bert-jax curate`.

Rule(signal=EncoderScore(model="runs/quality", label="good"), at_least=0.5)
"""

import functools
import hashlib
from dataclasses import dataclass

from bert_jax.apps.curate.signals import TextView
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import class_labels
from bert_jax.params import paths
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.tasks.registry import kind_of_head

_ROUNDED_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class EncoderScore:
    """Computes the probability of a label, or the value of a regression, of a fine-tuned model.

    The model reads each document alone, in the way in which it was trained: usually the first
    tokens only. So a score does not depend on other documents, nor on the number of processes.

    Attributes:
      model: run folder or Hugging Face folder of a model for classification or regression.
      label: the label whose probability is the score; None for regression.
    """

    model: str
    label: str | None = None

    def __post_init__(self) -> None:
        resolve_model_folder(self.model)  # raises before any document is read

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "encoder"

    def compute(self, view: TextView) -> float:
        """Returns the score, 0 for a document without tokens."""
        self._check_task(_load(self.model))
        record = _load_predictor(self.model)(view.text)
        value = record["value"] if self.label is None else record["probabilities"]
        if self.label is not None and value is not None:
            value = value[self.label]
        return 0.0 if value is None else round(float(value), _ROUNDED_DIGITS)

    def fingerprint(self) -> str:
        """Returns a hash of the parameters and the tokenizer.

        Raises:
          UserError: the folder has no model.
          ConfigError: the model has another task, or no such label.
        """
        model = _load(self.model)
        self._check_task(model)
        _load_predictor(self.model)  # raises for a model without a tokenizer, before any work
        tokenizer = model.tokenizer.fingerprint if model.tokenizer else ""
        parts = (paths.fingerprint(model.params), tokenizer)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def _check_task(self, model: LoadedModel) -> None:
        head = model.head
        if head is not None and kind_of_head(head).output_field == "value":
            if self.label is not None:
                raise ConfigError(f"{self.model}: a regression has no labels; leave label out")
        elif head is None or head.scope != "sequence" or not class_labels(head):
            found = "no head" if head is None else f"a {type(head).__name__}"
            raise ConfigError(f"{self.model}: {found}; expected classification or regression")
        elif self.label not in class_labels(head):
            raise ConfigError(
                f"{self.model}: label is {self.label!r}, expected one of "
                f"{', '.join(class_labels(head))}"
            )


@functools.lru_cache(maxsize=4)
def _load(path: str) -> LoadedModel:
    return load_encoder(path)


@functools.lru_cache(maxsize=4)
def _load_predictor(path: str) -> Predictor:
    """Reads a model once for each process."""
    return Predictor(_load(path))
