"""Defines the rules by which documents are dropped, with the published limits.

A rule is a signal and a limit. Limits are data: a recipe replaces a rule with
`dataclasses.replace`, or leaves it out.
"""

from dataclasses import dataclass

from bert_jax.apps.curate.model_signals import ModelSignal
from bert_jax.apps.curate.signals import DUPLICATE_NGRAMS, SIGNALS, TOP_NGRAMS, TextView
from bert_jax.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Keeps documents whose signal is within the limits; a limit of None means no limit.

    Attributes:
      signal: a name in `SIGNALS`, or a signal that needs a file.
    """

    signal: str | ModelSignal
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.signal, str) and self.signal not in SIGNALS:
            hint = did_you_mean(self.signal, SIGNALS) or f"expected one of {', '.join(SIGNALS)}"
            raise ConfigError(f"rule: there is no signal {self.signal!r}; {hint}")
        if self.at_least is None and self.at_most is None:
            raise ConfigError(f"rule {self.name}: no limit; expected at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ConfigError(
                f"rule {self.name}: at_least is {self.at_least} and at_most {self.at_most}, "
                "which drops every document"
            )

    @property
    def name(self) -> str:
        """Returns the name of the signal."""
        return self.signal if isinstance(self.signal, str) else self.signal.name

    def compute(self, view: TextView) -> float:
        """Returns the signal of a document."""
        if isinstance(self.signal, str):
            return SIGNALS[self.signal](view)
        return self.signal.compute(view)

    def allows(self, value: float) -> bool:
        """Returns whether a document with this value of the signal is kept."""
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """Groups rules under a name, which is part of the reason in the ledger."""

    name: str
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            raise ConfigError(f"rule set {self.name!r}: no rule; expected at least one")

    def reason(self, rule: Rule) -> str:
        """Returns the reason in the ledger for a document that breaks a rule."""
        return f"{self.name}: {rule.name}"


GOPHER_QUALITY = RuleSet(
    name="Gopher quality",
    rules=(
        Rule(signal="words", at_least=50, at_most=100_000),
        Rule(signal="mean_word_length", at_least=3, at_most=10),
        Rule(signal="hashes_per_token", at_most=0.1),
        Rule(signal="ellipses_per_token", at_most=0.1),
        Rule(signal="bullet_lines", at_most=0.9),
        Rule(signal="ellipsis_lines", at_most=0.3),
        Rule(signal="tokens_with_letter", at_least=0.8),
        Rule(signal="stop_words", at_least=2),
    ),
)
"""The rules of Rae et al. 2021 (Gopher), appendix A.1.1, for English."""

_TOP_LIMITS = dict(zip(TOP_NGRAMS, (0.20, 0.18, 0.16), strict=True))
_DUPLICATE_LIMITS = dict(zip(DUPLICATE_NGRAMS, (0.15, 0.14, 0.13, 0.12, 0.11, 0.10), strict=True))

GOPHER_REPETITION = RuleSet(
    name="Gopher repetition",
    rules=(
        Rule(signal="duplicate_paragraphs", at_most=0.3),
        Rule(signal="duplicate_paragraph_characters", at_most=0.2),
        Rule(signal="duplicate_lines", at_most=0.3),
        Rule(signal="duplicate_line_characters", at_most=0.2),
        *(Rule(signal=f"top_{n}gram_characters", at_most=x) for n, x in _TOP_LIMITS.items()),
        *(
            Rule(signal=f"duplicate_{n}gram_characters", at_most=x)
            for n, x in _DUPLICATE_LIMITS.items()
        ),
    ),
)
"""The rules of Rae et al. 2021, table A1."""

FINEWEB_QUALITY = RuleSet(
    name="FineWeb quality",
    rules=(
        Rule(signal="lines_ending_a_sentence", at_least=0.12),
        Rule(signal="short_lines", at_most=0.67),
        # Penedo et al. 2024 have 0.1 in the text; the code that made the data set has 0.01.
        Rule(signal="duplicate_line_characters", at_most=0.01),
        Rule(signal="newlines_per_token", at_most=0.3),
    ),
)
"""The rules that Penedo et al. 2024 (FineWeb), section 3.5, add to the rules of C4 and Gopher."""
