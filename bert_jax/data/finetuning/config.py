"""Where labelled data comes from: one config for each format, and how tasks are mixed.

Imports neither jax nor TensorFlow. Nothing is opened before `read_task`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.errors import ConfigError

GlueName = Literal[
    "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"
]  # fmt: skip
GLUE_NAMES: tuple[str, ...] = get_args(GlueName)


@dataclass(frozen=True, kw_only=True)
class Glue:
    """A task of GLUE (Wang et al. 2019), from official TSV files or from TensorFlow Datasets."""

    task: GlueName
    folder: str | None = None  # holds CoLA/train.tsv and so on; None reads TFDS

    def __post_init__(self) -> None:
        if self.task not in GLUE_NAMES:
            raise ConfigError(
                f"Glue.task is {self.task!r}, expected one of {', '.join(GLUE_NAMES)}"
            )
        if self.folder == "":
            raise ConfigError("Glue.folder is empty, expected a folder, or None for TFDS")


@dataclass(frozen=True, kw_only=True)
class Snli:
    """SNLI (Bowman et al. 2015): a folder with snli_1.0_train.jsonl, or with TSV files."""

    folder: str

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("Snli.folder is empty, expected a folder")


@dataclass(frozen=True, kw_only=True)
class Squad:
    """Questions with answers in a context, as SQuAD's JSON (Rajpurkar et al. 2016, 2018)."""

    train: str | None = None
    dev: str | None = None
    test: str | None = None  # may lack answers
    version: Literal["1.1", "2.0"] = "1.1"  # 2.0 has questions that the context does not answer
    strict: bool = False  # refuse an answer that is not at its offset, instead of mending it

    def __post_init__(self) -> None:
        _check_files(self)
        if self.version not in ("1.1", "2.0"):
            raise ConfigError(f"Squad.version is {self.version!r}, expected '1.1' or '2.0'")


@dataclass(frozen=True, kw_only=True)
class Conll:
    """A word and its tag on each line, a blank line after each sentence (CoNLL-2003's columns)."""

    train: str | None = None
    dev: str | None = None
    test: str | None = None
    word_column: int = 0
    tag_column: int = -1  # from the end, so the last
    strict: bool = False  # refuse a malformed sequence of tags, instead of mending it

    def __post_init__(self) -> None:
        _check_files(self)
        if self.word_column == self.tag_column:
            raise ConfigError(f"Conll: word_column and tag_column are both {self.word_column}")


@dataclass(frozen=True, kw_only=True)
class Swag:
    """CSV files as of SWAG (Zellers et al. 2018): sent1, sent2, ending0 ... endingN, label."""

    train: str | None = None
    dev: str | None = None
    test: str | None = None

    def __post_init__(self) -> None:
        _check_files(self)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Texts of one's own: CSV, TSV, JSON lines or Parquet files, by the names of their columns."""

    train: str | None = None
    dev: str | None = None
    test: str | None = None
    text: str
    text_pair: str | None = None
    label: str | None = None  # None: nothing is labelled, all is to be predicted
    id: str | None = None  # None: rows are counted
    kind: Literal["classification", "regression"] | None = None  # None: seen from the labels

    def __post_init__(self) -> None:
        _check_files(self)
        if self.kind not in (None, "classification", "regression"):
            raise ConfigError(
                f"Columns.kind is {self.kind!r}, expected 'classification', 'regression' or None"
            )
        named = [c for c in (self.text, self.text_pair, self.label, self.id) if c is not None]
        if "" in named:
            raise ConfigError("Columns: the name of a column is empty")
        if len(set(named)) < len(named):
            raise ConfigError(f"Columns: one column is named twice among {', '.join(named)}")
        if self.label is None and self.train is not None:
            raise ConfigError("Columns.label is None, but rows to train on need a label's column")


TaskConfig = Glue | Snli | Squad | Conll | Swag | Columns


@dataclass(frozen=True, kw_only=True)
class EqualMixing:
    """Every task is drawn as often as every other."""


@dataclass(frozen=True, kw_only=True)
class ProportionalMixing:
    """A task is drawn as often as it has examples (Raffel et al. 2020, 3.5.2)."""


@dataclass(frozen=True, kw_only=True)
class TemperatureMixing:
    """As `Proportional`, each rate to the power of 1 / temperature: 1 as it is, large for equal."""

    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(
                f"TemperatureMixing.temperature is {self.temperature}, expected above 0"
            )


@dataclass(frozen=True, kw_only=True)
class CappedMixing:
    """As `Proportional`, but no task counts for more than so many examples (K of Raffel et al.)."""

    max_examples: int = 65536

    def __post_init__(self) -> None:
        if self.max_examples < 1:
            raise ConfigError(
                f"CappedMixing.max_examples is {self.max_examples}, expected 1 or more"
            )


Mixing = EqualMixing | ProportionalMixing | TemperatureMixing | CappedMixing


def _check_files(config: Squad | Conll | Swag | Columns) -> None:
    files = (config.train, config.dev, config.test)
    if "" in files or files == (None, None, None):
        raise ConfigError(f"{type(config).__name__}: name a file for train, dev or test")
