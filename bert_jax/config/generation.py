"""Defines the settings of text generation: how tokens are chosen, and how many. Imports no jax."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Chooses the most likely token."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws each token from the distribution of the model, changed in this order.

    Attributes:
      temperature: divides the logits; below 1 likely tokens become more likely.
      top_k: the number of most likely tokens to draw from; 0 for all.
      top_p: the smallest set of most likely tokens with this probability is drawn from; 1 for all.
      seed: draws are a function of the seed, the index of the text and the position of the token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, above=0)
        check_range("top_k", self.top_k, at_least=0)
        check_range("top_p", self.top_p, above=0, at_most=1)
        check_range("seed", self.seed, above=-(2**62), below=2**62)


EarlyStopping = Literal["when_full", "when_unlikely", "when_impossible"]
"""When beam search stops; in parentheses the value of Hugging Face's `early_stopping`.

when_full        as soon as there are `num_beams` finished texts (True)
when_unlikely    when the best growing text, scored with its present length, is not better than the
                 worst of `num_beams` finished texts (False)
when_impossible  the same with the score for the largest length, with which a longer text has the
                 best score it can reach if `length_penalty` is positive ("never")
"""


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Keeps the most likely texts so far, as Hugging Face's `generate` does.

    Attributes:
      num_beams: how many texts are kept.
      length_penalty: a finished text has the score log probability / length ** length_penalty;
        larger values prefer longer texts.
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = "when_unlikely"  # when the search ends, see `EarlyStopping`

    def __post_init__(self) -> None:
        check_range("num_beams", self.num_beams, at_least=1)
        check_range("length_penalty", self.length_penalty)


Decoding = Greedy | Sampling | BeamSearch


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Holds the settings of generation.

    Attributes:
      max_new_tokens: the largest number of generated tokens, the end token included.
      min_new_tokens: the end token cannot be generated before this number of tokens.
      no_repeat_ngram_size: no sequence of so many tokens occurs twice in a text; 0 for no limit.
      max_source_tokens: longer sources are truncated.
    """

    decoding: Decoding = Greedy()  # how the next token is chosen
    max_new_tokens: int = 64
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    max_source_tokens: int = 512

    def __post_init__(self) -> None:
        check_range("max_new_tokens", self.max_new_tokens, at_least=1)
        check_range("max_source_tokens", self.max_source_tokens, at_least=2)
        check_range("no_repeat_ngram_size", self.no_repeat_ngram_size, at_least=0)
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {self.min_new_tokens}, expected 0 to max_new_tokens, which is "
                f"{self.max_new_tokens}"
            )


UnmaskingOrder = Literal["confidence", "random"]
"""Which masks become tokens first: those of which the model is most sure, or random ones."""


@dataclass(frozen=True, kw_only=True)
class UnmaskingConfig:
    """Holds the settings of generation by an encoder, which replaces masks after a text.

    Attributes:
      num_tokens: masks that are added after each text.
      num_steps: forward passes for a text, each of which replaces some masks; None: one for each
        mask.
      order: which masks are replaced first.
    """

    num_tokens: int = 64
    num_steps: int | None = None
    order: UnmaskingOrder = "confidence"
    decoding: Greedy | Sampling = Greedy()  # how the token of a mask is chosen

    def __post_init__(self) -> None:
        check_range("num_tokens", self.num_tokens, at_least=0)
        if self.num_steps is not None:
            check_range("num_steps", self.num_steps, at_least=1)

    @property
    def seed(self) -> int:
        """Returns the seed of random tokens and of a random order."""
        return self.decoding.seed if isinstance(self.decoding, Sampling) else 0
