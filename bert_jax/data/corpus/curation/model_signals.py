"""Defines signals that need a file: the score of a quality classifier, and counts of tokens.

A rule takes one in place of the name of a signal: `Rule(signal=QualityScore(model="quality"),
at_least=0.5)`. The hash of the file is part of the plan of a curated corpus.
"""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bert_jax.data.corpus.curation.classifier import load_classifier
from bert_jax.data.corpus.curation.language import LanguageProbability
from bert_jax.data.corpus.curation.signals import TextView
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class QualityScore:
    """Computes the probability that a document is like the positive examples of a classifier.

    Attributes:
      model: file that `bert-jax curate-classifier` wrote.
    """

    name: ClassVar[str] = "quality"
    model: str

    def __post_init__(self) -> None:
        load_classifier(self.model)  # raises for a missing file before any work

    def compute(self, view: TextView) -> float:
        """Returns the score, from 0 to 1."""
        return load_classifier(self.model).score(view.tokens)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the file."""
        return hashlib.sha256(Path(self.model).read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class TokensPerWord:
    """Computes the tokens of a tokenizer / words; high for code, other languages and noise."""

    name: ClassVar[str] = "tokens_per_word"
    tokenizer: str  # a path for `load_tokenizer`

    def __post_init__(self) -> None:
        _load_tokenizer(self.tokenizer)

    def compute(self, view: TextView) -> float:
        """Returns the quotient, 0 without words."""
        return _encode(view.text, self.tokenizer)[0] / len(view.words) if view.words else 0.0

    def fingerprint(self) -> str:
        """Returns the fingerprint of the tokenizer."""
        return _load_tokenizer(self.tokenizer).fingerprint


@dataclass(frozen=True, kw_only=True)
class UnknownTokens:
    """Computes the [UNK] tokens / tokens of a tokenizer."""

    name: ClassVar[str] = "unknown_tokens"
    tokenizer: str

    def __post_init__(self) -> None:
        _load_tokenizer(self.tokenizer)

    def compute(self, view: TextView) -> float:
        """Returns the fraction, 0 without tokens."""
        num_tokens, num_unknown = _encode(view.text, self.tokenizer)
        return num_unknown / num_tokens if num_tokens else 0.0

    def fingerprint(self) -> str:
        """Returns the fingerprint of the tokenizer."""
        return _load_tokenizer(self.tokenizer).fingerprint


ModelSignal = LanguageProbability | QualityScore | TokensPerWord | UnknownTokens

_load_tokenizer: Callable[[str], Tokenizer] = functools.lru_cache(maxsize=4)(load_tokenizer)


@functools.lru_cache(maxsize=1)  # two signals of one document encode it once
def _encode(text: str, tokenizer_path: str) -> tuple[int, int]:
    """Returns the number of tokens of a text, and how many of them are unknown."""
    tokenizer = _load_tokenizer(tokenizer_path)
    (ids,) = tokenizer.encode_ids([text])
    return len(ids), int((ids == tokenizer.unk_id).sum())
