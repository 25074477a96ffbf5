"""Settings of the training loader: what an example is, what is masked, how often it is redrawn.

Imports neither jax nor TensorFlow. Lengths, batch sizes and the number of predictions belong to
the phase of the run and are given to the loader beside this.
"""

from dataclasses import dataclass, field

from bert_jax.data.finetuning.config import Mixing, ProportionalMixing, TaskConfig
from bert_jax.errors import ConfigError


def _check_probability(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{type(owner).__name__}.{name} is {value}, expected 0 to 1")


@dataclass(frozen=True, kw_only=True)
class SentencePairs:
    """[CLS] A [SEP] B [SEP], where B follows A or comes from another document (BERT, 3.1)."""

    random_next_prob: float = 0.5  # B from another document
    short_seq_prob: float = 0.1  # target length uniform in [2, L - 3] instead of L - 3

    def __post_init__(self) -> None:
        _check_probability(self, "random_next_prob")
        _check_probability(self, "short_seq_prob")


@dataclass(frozen=True, kw_only=True)
class SingleSegment:
    """[CLS] text [SEP]: one window of one document in each row."""


@dataclass(frozen=True, kw_only=True)
class PackedSegments:
    """As many `Single` examples in each row as fit, kept apart by `packing_ids`."""


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Which positions are predicted and what is put there (BERT, 3.1 and appendix A.1)."""

    mlm_probability: float = 0.15  # share of the ordinary positions that is selected
    mask_replace_prob: float = 0.8  # of the selected: replaced by [MASK]
    random_replace_prob: float = 0.1  # of the selected: replaced by a random id; the rest is kept
    whole_word_mask: bool = False  # select all pieces of a word or none

    def __post_init__(self) -> None:
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            _check_probability(self, name)
        if self.mask_replace_prob + self.random_replace_prob > 1.0 + 1e-9:
            raise ConfigError(
                f"Masking.mask_replace_prob {self.mask_replace_prob} and random_replace_prob "
                f"{self.random_replace_prob} add up to more than 1"
            )


@dataclass(frozen=True, kw_only=True)
class DynamicMasking:
    """Windows, pairs and masks are drawn afresh in every epoch (RoBERTa, 4.1)."""


@dataclass(frozen=True, kw_only=True)
class StaticMasking:
    """Windows, pairs and masks repeat after `duplicates` epochs (BERT's dupe_factor)."""

    dupe_factor: int = 10

    def __post_init__(self) -> None:
        if self.dupe_factor < 1:
            raise ConfigError(
                f"StaticMasking.dupe_factor is {self.dupe_factor}, expected 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class PretrainingData:
    """A prepared corpus and how examples are made from it; `masking=None` masks nothing."""

    corpus: str  # folder written by `bert-jax prepare`
    input_format: SentencePairs | SingleSegment | PackedSegments = field(
        default_factory=SentencePairs
    )
    masking: Masking | None = field(default_factory=Masking)
    masking_schedule: DynamicMasking | StaticMasking = field(default_factory=DynamicMasking)
    prefetch_batches: int = 4  # ready before they are asked for
    num_workers: int = 0  # processes that make batches; 0 uses a thread of this process

    def __post_init__(self) -> None:
        if self.prefetch_batches < 1:
            raise ConfigError(
                f"PretrainingData.prefetch_batches is {self.prefetch_batches}, expected 1 or more"
            )
        if self.num_workers < 0:
            raise ConfigError(
                f"PretrainingData.num_workers is {self.num_workers}, expected 0 or more"
            )


@dataclass(frozen=True, kw_only=True)
class FineTuningData:
    """A task's examples as rows of token ids; see `bert_jax.data.labelled`.

    Rows of like length share a batch: `buckets` are the lengths below the phase's own that batches
    may have. Each costs a compilation, and saves the padding up to the next one.
    """

    task: TaskConfig
    tokenizer: str  # a file or folder that `load_vocabulary` opens
    bucket_lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    window_overlap: int = 128  # pieces that two windows of one long example share

    def __post_init__(self) -> None:
        if (
            list(self.bucket_lengths) != sorted(set(self.bucket_lengths))
            or min(self.bucket_lengths, default=4) < 4
        ):
            raise ConfigError(
                f"data.bucket_lengths is {self.bucket_lengths}, expected ascending lengths "
                "from 4 on"
            )
        if self.window_overlap < 0:
            raise ConfigError(f"data.window_overlap is {self.window_overlap}, expected at least 0")

    def batch_lengths(self, max_length: int) -> tuple[int, ...]:
        """The lengths of batches whose rows have at most `longest` pieces."""
        return (*(length for length in self.bucket_lengths if length < max_length), max_length)


@dataclass(frozen=True, kw_only=True)
class NamedTask:
    """One of several tasks; the name stands in metrics, files and parameters."""

    name: str
    task: TaskConfig


@dataclass(frozen=True, kw_only=True)
class MultiTaskData:
    """Rows of several tasks in one batch; `mixing` says how often each is drawn.

    An epoch has as many rows as the tasks have together: with `Proportional` every row once. The
    other fields are those of `Labelled`.
    """

    tasks: tuple[NamedTask, ...]
    tokenizer: str
    mixing: Mixing = ProportionalMixing()  # noqa: RUF009 (frozen)
    bucket_lengths: tuple[int, ...] = FineTuningData.bucket_lengths
    window_overlap: int = FineTuningData.window_overlap

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("data.tasks is empty, expected a task or more")
        self.for_task(self.tasks[0].name)

    def for_task(self, name: str) -> FineTuningData:
        """One of the tasks alone."""
        return FineTuningData(
            task=next(named.task for named in self.tasks if named.name == name),
            tokenizer=self.tokenizer,
            bucket_lengths=self.bucket_lengths,
            window_overlap=self.window_overlap,
        )
