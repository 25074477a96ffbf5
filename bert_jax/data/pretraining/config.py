"""Defines the config of a mixture of prepared corpora: weights in tokens, limits of epochs.

Imports neither jax nor TensorFlow.
"""

from dataclasses import dataclass

from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class WeightedCorpus:
    """Names one corpus of a mixture, its weight and how often it may be read.

    Attributes:
      folder: folder written by `bert-jax prepare`.
      weight: fraction of the training tokens that come from this corpus, relative to the weights of
        the other corpora; None: the number of its tokens.
      max_epochs: at most how many times the run reads the corpus; the other corpora then get a
        larger fraction. None: as often as the weight requires.
    """

    folder: str
    weight: float | None = None
    max_epochs: float | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusMixture:
    """Configures pretraining on several prepared corpora with one tokenizer.

    A corpus that was read completely is read again in a new order, up to its `max_epochs`.

    Attributes:
      corpora: the corpora; either each has a weight or none.
      temperature: T; fractions are proportional to weight^(1 / T) (Raffel et al. 2020, 3.5.2). With
        more than 1, small corpora get a larger fraction.
    """

    corpora: tuple[WeightedCorpus, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.corpora:
            raise ConfigError("data.corpus.corpora is empty, expected at least one corpus")
        check_range("data.corpus.temperature", self.temperature, above=0)
        for index, corpus in enumerate(self.corpora):
            field = f"data.corpus.corpora[{index}] ({corpus.folder})"
            for name in ("weight", "max_epochs"):
                value = getattr(corpus, name)
                if value is not None:
                    check_range(f"{field}: {name}", value, above=0)
        folders = [corpus.folder for corpus in self.corpora]
        if repeated := sorted({name for name in folders if folders.count(name) > 1}):
            raise ConfigError(
                f"data.corpus.corpora names {repeated[0]} twice, expected each corpus once; add "
                "its weights up"
            )
        missing = [corpus.folder for corpus in self.corpora if corpus.weight is None]
        if missing and len(missing) < len(self.corpora):
            raise ConfigError(
                f"data.corpus.corpora: {', '.join(missing)} has no weight, but other corpora have "
                "one; expected a weight for each corpus or for none"
            )
