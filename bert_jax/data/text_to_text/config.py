"""Defines the configs of text-to-text data: tasks whose inputs and outputs are texts.

Creating a config opens no file; `load_text_task` does.
"""

from dataclasses import dataclass

from bert_jax.data.finetuning.config import Columns, Glue, Mixing, ProportionalMixing, Snli, Squad
from bert_jax.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    """Configures pairs of texts in CSV, TSV, JSON lines or Parquet files, by column names."""

    train: str | None = None
    dev: str | None = None
    test: str | None = None
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

    name: str
    task: TextTaskConfig


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

    tasks: tuple[NamedTextTask, ...]
    tokenizer: str  # a file or folder that `load_tokenizer` opens
    mixing: Mixing = ProportionalMixing()  # noqa: RUF009 (frozen)
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
