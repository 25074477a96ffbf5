"""Settings of the training loader: what an example is, what is masked, how often it is redrawn.

Imports neither jax nor TensorFlow. Lengths, batch sizes and the number of predictions belong to
the phase of the run and are given to the loader beside this.
"""

from dataclasses import dataclass, field

from bert_jax.data.labelled.config import Mixing, Proportional, TaskConfig
from bert_jax.errors import ConfigError


def _check_probability(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{type(owner).__name__}.{name} is {value}, expected 0 to 1")


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """[CLS] A [SEP] B [SEP], where B follows A or comes from another document (BERT, 3.1)."""

    not_next_probability: float = 0.5  # B from another document
    short_probability: float = 0.1  # target length uniform in [2, L - 3] instead of L - 3

    def __post_init__(self) -> None:
        _check_probability(self, "not_next_probability")
        _check_probability(self, "short_probability")


@dataclass(frozen=True, kw_only=True)
class Single:
    """[CLS] text [SEP]: one window of one document in each row."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """As many `Single` examples in each row as fit, kept apart by `packing_ids`."""


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Which positions are predicted and what is put there (BERT, 3.1 and appendix A.1)."""

    rate: float = 0.15  # share of the ordinary positions that is selected
    mask_share: float = 0.8  # of the selected: replaced by [MASK]
    random_share: float = 0.1  # of the selected: replaced by a random id; the rest is kept
    whole_word: bool = False  # select all pieces of a word or none

    def __post_init__(self) -> None:
        for name in ("rate", "mask_share", "random_share"):
            _check_probability(self, name)
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise ConfigError(
                f"Masking.mask_share {self.mask_share} and random_share {self.random_share} "
                "add up to more than 1"
            )


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Windows, pairs and masks are drawn afresh in every epoch (RoBERTa, 4.1)."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """Windows, pairs and masks repeat after `duplicates` epochs (BERT's dupe_factor)."""

    duplicates: int = 10

    def __post_init__(self) -> None:
        if self.duplicates < 1:
            raise ConfigError(f"Static.duplicates is {self.duplicates}, expected 1 or more")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """A prepared corpus and how examples are made from it; `masking=None` masks nothing."""

    prepared: str  # folder written by `bert-jax prepare`
    examples: Pairs | Single | Packed = field(default_factory=Pairs)
    masking: Masking | None = field(default_factory=Masking)
    draws: Dynamic | Static = field(default_factory=Dynamic)
    prefetch_batches: int = 4  # ready before they are asked for
    workers: int = 0  # processes that make batches; 0 uses a thread of this process

    def __post_init__(self) -> None:
        if self.prefetch_batches < 1:
            raise ConfigError(
                f"LoaderConfig.prefetch_batches is {self.prefetch_batches}, expected 1 or more"
            )
        if self.workers < 0:
            raise ConfigError(f"LoaderConfig.workers is {self.workers}, expected 0 or more")


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A task's examples as rows of token ids; see `bert_jax.data.labelled`.

    Rows of like length share a batch: `buckets` are the lengths below the phase's own that batches
    may have. Each costs a compilation, and saves the padding up to the next one.
    """

    task: TaskConfig
    vocabulary: str  # a file or folder that `load_vocabulary` opens
    buckets: tuple[int, ...] = (16, 32, 64, 128, 256)
    stride: int = 128  # pieces that two windows of one long example share

    def __post_init__(self) -> None:
        if list(self.buckets) != sorted(set(self.buckets)) or min(self.buckets, default=4) < 4:
            raise ConfigError(
                f"data.buckets is {self.buckets}, expected ascending lengths from 4 on"
            )
        if self.stride < 0:
            raise ConfigError(f"data.stride is {self.stride}, expected at least 0")

    def lengths(self, longest: int) -> tuple[int, ...]:
        """The lengths of batches whose rows have at most `longest` pieces."""
        return (*(length for length in self.buckets if length < longest), longest)


@dataclass(frozen=True, kw_only=True)
class NamedTask:
    """One of several tasks; the name stands in metrics, files and parameters."""

    name: str
    task: TaskConfig


@dataclass(frozen=True, kw_only=True)
class LabelledMixture:
    """Rows of several tasks in one batch; `mixing` says how often each is drawn.

    An epoch has as many rows as the tasks have together: with `Proportional` every row once. The
    other fields are those of `Labelled`.
    """

    tasks: tuple[NamedTask, ...]
    vocabulary: str
    mixing: Mixing = Proportional()  # noqa: RUF009 (frozen)
    buckets: tuple[int, ...] = Labelled.buckets
    stride: int = Labelled.stride

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("data.tasks is empty, expected a task or more")
        self.single(self.tasks[0].name)

    def single(self, name: str) -> Labelled:
        """One of the tasks alone."""
        return Labelled(
            task=next(named.task for named in self.tasks if named.name == name),
            vocabulary=self.vocabulary,
            buckets=self.buckets,
            stride=self.stride,
        )
