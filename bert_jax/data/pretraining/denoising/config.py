"""Defines the configs of denoising, by which encoder-decoders are pretrained: how text is changed.

The encoder reads the changed text, the decoder predicts what is missing or the whole text. Imports
neither jax nor TensorFlow.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class SpanCorruption:
    """Replaces spans by sentinel tokens, and predicts the spans (T5; Raffel et al. 2020, 3.1.4).

    Thank you <extra_id_0> me to your party <extra_id_1> </s>
    <extra_id_0> for inviting <extra_id_1> last week </s>
    """

    noise_density: float = 0.15  # fraction of the tokens that are replaced
    mean_noise_span_length: float = 3.0  # in tokens

    def __post_init__(self) -> None:
        check_range("data.masking.noise_density", self.noise_density, above=0, below=1)
        name = "data.masking.mean_noise_span_length"
        check_range(name, self.mean_noise_span_length, at_least=1)
        num_spans_per_token = self.noise_density / self.mean_noise_span_length
        if num_spans_per_token > 1 - self.noise_density:
            raise ConfigError(
                f"data.masking has noise_density {self.noise_density} and mean_noise_span_length "
                f"{self.mean_noise_span_length}, which leaves less than one token between two "
                "spans; expected a lower density or longer spans"
            )


@dataclass(frozen=True, kw_only=True)
class PrefixLM:
    """Predicts the rest of a text from a prefix of random length (Raffel et al. 2020, 3.3.1)."""


@dataclass(frozen=True, kw_only=True)
class BertStyleDenoising:
    """Replaces single tokens, and predicts the whole text (Raffel et al. 2020, 3.3.1).

    Each token is replaced independently of the others: by the first sentinel, or by a random token.
    """

    noise_density: float = 0.15  # probability that a token is replaced
    random_token_prob: float = 0.1  # probability that it is replaced by a random token

    def __post_init__(self) -> None:
        check_range("data.masking.noise_density", self.noise_density, above=0, below=1)
        name = "data.masking.random_token_prob"
        check_range(name, self.random_token_prob, at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class TokenMasking:
    """Replaces single tokens by the mask token."""

    ratio: float = 0.15  # fraction of the tokens, rounded up

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)


@dataclass(frozen=True, kw_only=True)
class TokenDeletion:
    """Deletes single tokens."""

    ratio: float = 0.15  # fraction of the tokens, rounded up

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)


@dataclass(frozen=True, kw_only=True)
class TextInfilling:
    """Replaces each span of words by one mask token; a span of no words inserts a mask token."""

    ratio: float = 0.3  # words in all spans together as a fraction of all words, rounded up
    poisson_lambda: float = 3.0  # span lengths have a Poisson distribution with this mean

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)
        name = "data.masking.token_noise.poisson_lambda"
        check_range(
            name, self.poisson_lambda, at_least=MIN_POISSON_LAMBDA, at_most=MAX_POISSON_LAMBDA
        )


MIN_POISSON_LAMBDA = 0.1
"""With a smaller mean, nearly all spans are empty, and drawing enough words takes very long."""
MAX_POISSON_LAMBDA = 50
"""A larger mean length of spans is a mistake."""


def _check_ratio(ratio: float) -> None:
    check_range("data.masking.token_noise.ratio", ratio, above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class BartDenoising:
    """Adds noise to a document, and predicts the whole document (BART; Lewis et al. 2020, 2.2).

    The default values are those of the published models: text infilling and sentence permutation.
    The steps are sentence permutation, `token_noise`, rotation, in this order.
    """

    token_noise: TokenMasking | TokenDeletion | TextInfilling | None = TextInfilling()
    permuted_sentences: float = 1.0  # fraction of the sentences that exchange their places
    # Probability that a random token stands where a mask token would. The paper has none; the
    # command that the authors give for the published models has 0.1.
    random_token_prob: float = 0.1
    rotation_prob: float = 0.0  # probability that the document begins at a random token

    def __post_init__(self) -> None:
        for name in ("permuted_sentences", "random_token_prob", "rotation_prob"):
            check_range(f"data.masking.{name}", getattr(self, name), at_least=0, at_most=1)


Denoising = SpanCorruption | PrefixLM | BertStyleDenoising | BartDenoising
