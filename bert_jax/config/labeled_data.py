"""Defines the configs of labeled data: file formats, long texts, mixtures of tasks, text to text.

Creating a config opens no file; `load_task` and `load_text_task` do.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.errors import ConfigError, check_range

GlueName = Literal[
    "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"
]  # fmt: skip
GLUE_NAMES: tuple[str, ...] = get_args(GlueName)


@dataclass(frozen=True, kw_only=True)
class Glue:
    """Configures a GLUE task (Wang et al. 2019), from official TSV files or TensorFlow Datasets."""

    task: GlueName  # in lower case, without a dash
    folder: str | None = None  # contains CoLA/train.tsv and so on; None for TFDS

    def __post_init__(self) -> None:
        if self.task not in GLUE_NAMES:
            raise ConfigError(
                f"Glue.task is {self.task!r}; expected one of {', '.join(GLUE_NAMES)}"
            )
        if self.folder == "":
            raise ConfigError("Glue.folder is empty; expected a folder, or None for TFDS")


@dataclass(frozen=True, kw_only=True)
class Snli:
    """Configures SNLI (Bowman et al. 2015): a folder with snli_1.0_train.jsonl or TSV files."""

    folder: str  # of the unpacked SNLI release, with JSON lines or TSV files

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("Snli.folder is empty; expected a folder")


@dataclass(frozen=True, kw_only=True)
class Squad:
    """Configures question answering in SQuAD's JSON format (Rajpurkar et al. 2016, 2018)."""

    train: str | None = None  # JSON, plain or .gz
    dev: str | None = None  # JSON, plain or .gz
    test: str | None = None  # may lack answers
    version: Literal["1.1", "2.0"] = "1.1"  # 2.0 has questions without an answer
    strict: bool = False  # refuse an answer that is not at its offset; by default it is searched

    def __post_init__(self) -> None:
        _check_files(self)
        if self.version not in ("1.1", "2.0"):
            raise ConfigError(f"Squad.version is {self.version!r}, expected '1.1' or '2.0'")


@dataclass(frozen=True, kw_only=True)
class Conll:
    """Configures CoNLL-2003 files: one word and tag per line, a blank line after a sentence."""

    train: str | None = None  # plain or .gz
    dev: str | None = None  # plain or .gz
    test: str | None = None  # plain or .gz
    word_column: int = 0  # counted from 0
    tag_column: int = -1  # counted from the end: the last column
    strict: bool = False  # refuse an invalid sequence of tags, which is repaired by default
    encoding: str = "utf-8"  # of the files

    def __post_init__(self) -> None:
        _check_files(self)
        if self.word_column == self.tag_column:
            raise ConfigError(f"Conll: word_column and tag_column are both {self.word_column}")


@dataclass(frozen=True, kw_only=True)
class Swag:
    """Configures multiple choice in SWAG's CSV format (Zellers et al. 2018).

    The columns are sent1, sent2, ending0 ... endingN and label.
    """

    train: str | None = None  # plain or .gz
    dev: str | None = None  # plain or .gz
    test: str | None = None  # plain or .gz; it may lack labels
    encoding: str = "utf-8"  # of the files

    def __post_init__(self) -> None:
        _check_files(self)


MULTI_LABEL = "multi-label"
ColumnsKind = Literal["classification", "multi-label", "regression", "ranking"]
COLUMNS_METRICS: dict[ColumnsKind, tuple[str, ...]] = {
    "classification": ("accuracy", "f1_macro"),
    # Needs no threshold: those of the labels are chosen after training, and before, with 0.5, no
    # rare label may be predicted in many epochs, so that F1 could not tell checkpoints apart.
    "multi-label": ("mean_average_precision", "f1_micro", "f1_macro", "subset_accuracy"),
    "regression": ("pearson", "spearman"),
    "ranking": ("average_precision", "accuracy"),
}
"""Kinds of tasks in tables -> their metrics, the main one first, which chooses the best checkpoint.
"ranking" trains a cross-encoder on labels from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Configures texts in CSV, TSV, JSON lines or Parquet files, by the names of their columns."""

    train: str | None = None  # plain or .gz
    dev: str | None = None  # plain or .gz
    test: str | None = None  # plain or .gz; it may lack labels
    text: str  # the column of the text
    text_pair: str | None = None  # the column of the second text; None: single texts
    label: str | None = None  # None: no labels, all examples are to be predicted
    id: str | None = None  # None: the row number is the id
    kind: ColumnsKind | None = None  # None: classification or regression, as the labels show
    # Between the labels in a cell, for "multi-label"; JSON and Parquet files may have lists. None:
    # a comma.
    label_separator: str | None = None
    encoding: str = "utf-8"  # of all formats but Parquet

    def __post_init__(self) -> None:
        _check_files(self)
        if self.kind is not None and self.kind not in COLUMNS_METRICS:
            raise ConfigError(
                f"Columns.kind is {self.kind!r}; expected None or one of "
                f"{', '.join(map(repr, COLUMNS_METRICS))}"
            )
        named = [c for c in (self.text, self.text_pair, self.label, self.id) if c is not None]
        if "" in named:
            raise ConfigError("Columns: a column name is empty; expected a name, or None")
        if len(set(named)) < len(named):
            raise ConfigError(f"Columns: one column is named twice among {', '.join(named)}")
        if self.label_separator is not None and self.kind != MULTI_LABEL:
            raise ConfigError(
                f"Columns.label_separator is {self.label_separator!r} (--label-separator), and "
                f"Columns.kind {self.kind!r}; expected {MULTI_LABEL!r} (--kind {MULTI_LABEL}), or "
                "no separator"
            )
        if self.label_separator is not None and not self.label_separator.strip("\n\r"):
            raise ConfigError(
                f"Columns.label_separator is {self.label_separator!r} (--label-separator); "
                "expected characters between labels, such as ';'"
            )
        if self.label is None and self.train is not None:
            raise ConfigError(
                "Columns.label is None, but Columns.train needs labels; expected a column"
            )


# Random generator and order are as in LM-BFF's script. The test split is the dev split of the
# task.
@dataclass(frozen=True, kw_only=True)
class FewShot:
    """Configures few-shot learning: some examples of each class of a classification task.

    Dev has as many as training; the test split is the dev split of the task.
    """

    task: Glue | Snli | Columns  # what is sampled from
    shots: int = 16  # K, the number of training examples of each class
    seed: int = 13  # of the sample

    def __post_init__(self) -> None:
        check_range("FewShot.shots", self.shots, at_least=1)
        check_range("FewShot.seed", self.seed, at_least=0, at_most=2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class TrainingFile:
    """Configures a classification task with other training examples, from a JSON lines file.

    A line has "id", "text", "text_pair" unless the task reads single texts, and "label" or
    "logits", one for each class of the task: soft labels (see `read_training_file`).
    """

    task: Glue | Snli | Columns | FewShot  # whose labels, dev and test it keeps
    file: str  # JSON lines, plain or .gz


TaskConfig = Glue | Snli | Squad | Conll | Swag | Columns | FewShot | TrainingFile


WindowPooling = Literal["mean", "max", "first"]
"""How the probabilities or values of several windows are combined: their mean, the maximum of each
class (scaled to add up to 1), or those of the first window."""
WINDOW_POOLINGS: tuple[WindowPooling, ...] = get_args(WindowPooling)


@dataclass(frozen=True, kw_only=True)
class HeadTruncation:
    """Reads the first tokens of a long text, as many as fit into a sequence (BERT's release)."""


@dataclass(frozen=True, kw_only=True)
class TailTruncation:
    """Reads the last tokens of a long text, as many as fit into a sequence."""


@dataclass(frozen=True, kw_only=True)
class HeadTailTruncation:
    """Reads the beginning and the end of a long text (Sun et al. 2019, section 5.3.1).

    128 of 510 tokens are from the beginning; sequences of other lengths keep this ratio.
    """


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Reads all of a long text in overlapping windows, each of which is one sequence.

    Each window is trained on with the label of its text, so a long text counts more than a short
    one. The predictions for the windows of a text are pooled.
    """

    pooling: WindowPooling = "mean"  # how predictions are combined, see `WindowPooling`

    def __post_init__(self) -> None:
        if self.pooling not in WINDOW_POOLINGS:
            raise ConfigError(
                f"data.truncation.pooling is {self.pooling!r}; expected one of "
                f"{', '.join(WINDOW_POOLINGS)}"
            )


@dataclass(frozen=True, kw_only=True)
class JointWindows:
    """Reads the first windows of a long text together, for a head with a `WindowEncoder`.

    A batch has the windows of a text side by side; a text with fewer windows gets empty ones.
    """

    num_windows: int = 8  # windows of a text that are read, from its beginning

    def __post_init__(self) -> None:
        check_range("data.truncation.num_windows", self.num_windows, at_least=2, at_most=4096)


Truncation = HeadTruncation | TailTruncation | HeadTailTruncation | Windows | JointWindows
"""Which tokens are read of a text or pair that is too long for one sequence. In a pair, the longer
text is cut first. With windows, each sequence has the shorter text (at most half of it) and a
window of the longer one."""


@dataclass(frozen=True, kw_only=True)
class EqualMixing:
    """Draws all tasks equally often."""


@dataclass(frozen=True, kw_only=True)
class ProportionalMixing:
    """Draws a task in proportion to the number of its examples (Raffel et al. 2020, 3.5.2)."""


@dataclass(frozen=True, kw_only=True)
class TemperatureMixing:
    """Raises each proportional rate to the power of 1 / temperature.

    1 gives proportional rates, large temperatures give nearly equal ones.
    """

    temperature: float = 2.0  # T of Raffel et al. 2020, section 3.5.2

    def __post_init__(self) -> None:
        check_range("data.mixing.temperature", self.temperature, above=0)


@dataclass(frozen=True, kw_only=True)
class CappedMixing:
    """Draws in proportion to examples, but counts at most `max_examples` of a task.

    The limit is K of Raffel et al. 2020, section 3.5.2.
    """

    max_examples: int = 65536  # how many examples of a task count at most

    def __post_init__(self) -> None:
        check_range("data.mixing.max_examples", self.max_examples, at_least=1)


Mixing = EqualMixing | ProportionalMixing | TemperatureMixing | CappedMixing


def _check_files(config: Squad | Conll | Swag | Columns) -> None:
    files = (config.train, config.dev, config.test)
    if "" in files or files == (None, None, None):
        raise ConfigError(
            f"{type(config).__name__} has no files; expected a file for train, dev or test"
        )


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    """Configures pairs of texts in CSV, TSV, JSON lines or Parquet files, by column names."""

    train: str | None = None  # plain or .gz
    dev: str | None = None  # plain or .gz
    test: str | None = None  # plain or .gz
    source: str  # the column that the encoder reads
    target: str  # the column that the decoder writes
    encoding: str = "utf-8"  # of all formats but Parquet

    def __post_init__(self) -> None:
        if not (self.train or self.dev or self.test):
            raise ConfigError("TextColumns has no files; expected a file for train, dev or test")
        if not self.source or not self.target or self.source == self.target:
            raise ConfigError(
                f"TextColumns.source is {self.source!r} and target is {self.target!r}; expected "
                "two different column names"
            )


TextTaskConfig = TextColumns | Glue | Snli | Columns | Squad
"""Labeled tasks are cast as texts in the way of T5, see `casting.py`."""


@dataclass(frozen=True, kw_only=True)
class NamedTextTask:
    """Names one of several tasks; the name is part of metrics and file names."""

    name: str  # as in `NamedTask`
    task: TextTaskConfig  # the files and their format


@dataclass(frozen=True, kw_only=True)
class TextToTextData:
    """Configures text-to-text data: batches that mix the examples of one or several tasks.

    An epoch has as many examples as all tasks together. Sources and targets longer than the
    phase's lengths are truncated.

    Attributes:
      packing: put several examples into a sequence, as many as fit, so that hardly any token is
        padding (Raffel et al. 2020, section 3.1.2); a batch then has more examples than sequences.
      predicted_splits: the splits for which texts are generated at the end of training.
    """

    tasks: tuple[NamedTextTask, ...]  # at least one
    tokenizer: str  # a file or folder that `load_tokenizer` opens
    mixing: Mixing = ProportionalMixing()  # how often each task is drawn
    packing: bool = False
    predicted_splits: tuple[str, ...] = ("dev", "test")

    def __post_init__(self) -> None:
        names = [named.name for named in self.tasks]
        if not names:
            raise ConfigError("data.tasks is empty, expected at least one task")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"data.tasks has the name {repeated[0]!r} more than once, expected different names"
            )


@dataclass(frozen=True, kw_only=True)
class LengthBuckets:
    """Configures the lengths of batches, which presets choose from the data.

    Attributes:
      bucket_lengths: the sequence lengths that batches may have below the phase's. Each one that
        occurs costs a compilation and saves padding.
    """

    bucket_lengths: tuple[int, ...] = (16, 32, 64, 128, 256)

    def __post_init__(self) -> None:
        lengths = list(self.bucket_lengths)
        # Buckets are found by binary search, which needs them in order.
        if lengths != sorted(set(lengths)) or min(lengths, default=4) < 4:
            raise ConfigError(
                f"data.bucket_lengths is {self.bucket_lengths}, expected ascending lengths of at "
                "least 4"
            )

    def batch_lengths(self, max_length: int) -> tuple[int, ...]:
        """Returns the sequence lengths that batches of at most `max_length` tokens may have."""
        return (*(length for length in self.bucket_lengths if length < max_length), max_length)


TRUNCATIONS: dict[str, type[Truncation]] = {
    "head": HeadTruncation,
    "tail": TailTruncation,
    "head+tail": HeadTailTruncation,
    "windows": Windows,
    "hierarchical": JointWindows,
}
"""The types of truncation by the names that users type."""


def truncation_name(truncation: Truncation) -> str:
    """Returns the name of a truncation in `TRUNCATIONS`."""
    return next(name for name, cls in TRUNCATIONS.items() if isinstance(truncation, cls))


def make_truncation(
    name: str, window_pooling: str | None = None, num_windows: int | None = None
) -> Truncation:
    """Returns the truncation that a user typed.

    Raises:
      ConfigError: there is no such truncation or pooling, or it has no windows to pool or to count.
    """
    if name not in TRUNCATIONS:
        raise ConfigError(f"truncation is {name!r}; expected one of {', '.join(TRUNCATIONS)}")
    if num_windows is not None and TRUNCATIONS[name] is not JointWindows:
        raise ConfigError(
            f"num_windows is {num_windows} and truncation {name!r}; expected truncation "
            "'hierarchical', or no num_windows"
        )
    if window_pooling is None:
        return TRUNCATIONS[name]() if num_windows is None else JointWindows(num_windows=num_windows)
    if window_pooling not in WINDOW_POOLINGS:
        raise ConfigError(
            f"window_pooling is {window_pooling!r}; expected one of {', '.join(WINDOW_POOLINGS)}"
        )
    if TRUNCATIONS[name] is not Windows:
        raise ConfigError(
            f"window_pooling is {window_pooling!r} and truncation {name!r}; expected "
            "truncation 'windows', or no window_pooling"
        )
    return Windows(pooling=window_pooling)
