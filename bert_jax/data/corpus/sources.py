"""Defines the sources of documents: text files, TFDS, Python functions, or any seqio task.

A source opens nothing until it is read, and this module imports no TensorFlow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_jax.data.corpus.source_files import SourceFile, find_source_files, local_file
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.files import (
    DocumentUnit,
    is_json_lines,
    read_documents,
    read_json_documents,
)

Patterns = str | Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RawDocument:
    """Holds a document of a file, for curation.

    Attributes:
      key: distinguishes the documents of a file: the number of a line, the id of a page.
      text: the text; "" if there is a reason.
      reason: why this document has no text, such as "no main content"; "" if it has.
      counts: what happened while reading, such as {"encoding: windows-1252": 1}; the manifest has
        the sums.
      fields: other fields of the document, as JSON values.
    """

    key: str
    text: str = ""
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextFiles:
    """Names text and JSONL files, plain or compressed: `TextFiles({"train": "books/*.txt.gz"})`.

    `splits` maps the name of a split to one or more patterns; a pattern without a name is the split
    "train". `document_unit` sets what a document is in a text file: the whole file, a block of
    lines between blank lines, or a line. JSONL files have one document per line, with its text in
    the field `json_field`.
    """

    splits: Mapping[str, Patterns] | Patterns  # patterns of files, or one for each split
    document_unit: DocumentUnit = field(default="file", kw_only=True)  # in a text file
    json_field: str = field(default="text", kw_only=True)  # of the text in a JSONL file
    encoding: str = field(default="utf-8", kw_only=True)  # of all files
    errors: str = field(default="strict", kw_only=True)  # "strict", "replace" or "ignore"

    def __post_init__(self) -> None:
        patterns_by_split = (
            self.splits if isinstance(self.splits, Mapping) else {"train": self.splits}
        )
        splits = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in patterns_by_split.items()}
        if not splits or not all(splits.values()):
            raise ConfigError(
                "text files: no pattern; expected at least one, for example 'books/*.txt'"
            )
        object.__setattr__(self, "splits", splits)

    def patterns(self, split: str) -> tuple[str, ...]:
        """Returns the patterns of one split; UserError if there is no such split."""
        splits = self.splits
        assert isinstance(splits, Mapping)
        if split not in splits:
            raise UserError(f"split is {split!r}, expected one of {', '.join(splits)}")
        return tuple(splits[split])

    def list_files(self, split: str = "train") -> tuple[SourceFile, ...]:
        """Returns the files of a split, sorted by path.

        Raises:
          UserError: a pattern matches no file, or all files are empty.
        """
        return find_source_files(self.patterns(split))

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the documents of one file, also those without text.

        The fields of a document are the fields of its JSON line other than the text.
        """
        if is_json_lines(file.path):
            for number, text, fields in read_json_documents(
                file.path,
                encoding=self.encoding,
                errors=self.errors,
                json_field=self.json_field,
            ):
                yield RawDocument(key=str(number), text=text, fields=fields)
            return
        for key, text in read_documents(
            file.path,
            encoding=self.encoding,
            errors=self.errors,
            document_unit=self.document_unit,
            keep_empty=True,
        ):
            yield RawDocument(key=key.rpartition(":")[2], text=text)

    def read_texts(self, files: Iterable[SourceFile]) -> Iterator[str]:
        """Yields the text of the documents in `files`, unchanged."""
        for file in files:
            with local_file(file) as local:
                for _, text in read_documents(
                    local.path,
                    encoding=self.encoding,
                    errors=self.errors,
                    json_field=self.json_field,
                    document_unit=self.document_unit,
                ):
                    yield text


@dataclass(frozen=True, kw_only=True)
class Tfds:
    """Names a dataset of TensorFlow Datasets: `Tfds(dataset="wikipedia/20230601.en:1.0.0")`.

    `splits` may map names to TFDS slices, as {"train": "train[:99%]", "validation": "train[99%:]"};
    the default is the dataset's own splits. The text of an example is in the field `text_key`.
    """

    dataset: str
    splits: Mapping[str, str] | None = None
    text_key: str = "text"
    data_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class PythonDocuments:
    """Names functions that return documents: `PythonDocuments(splits={"train": read_my_corpus})`.

    Each function takes no arguments and returns an iterable of str, with the same documents in the
    same order in every call.
    """

    splits: Mapping[str, Callable[[], Iterable[str]]]


@dataclass(frozen=True, kw_only=True)
class RegisteredTask:
    """Names a seqio task; `module` is the Python file that registers it, or None."""

    name: str
    module: str | None = None
