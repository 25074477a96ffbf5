"""Defines flags that `bert-jax prepare`, `bert-jax curate` and their Beam pipelines share."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from bert_jax.config.flags import REQUIRED, flag, given, switch
from bert_jax.errors import ConfigError
from bert_jax.text.files import DocumentUnit

if TYPE_CHECKING:
    from bert_jax.data.corpus.manifest import Manifest
    from bert_jax.data.corpus.plan import PrepareConfig

_files = partial(flag, group="with --files")
_reading = partial(flag, group="text and .jsonl files")
READING_FLAGS = ("document_unit", "json_field", "encoding", "errors")


@dataclass(frozen=True, kw_only=True)
class ReadingArguments:
    """Says how documents are read from text and JSON lines files; the fields are `TextFiles`'."""

    document_unit: DocumentUnit | None = _reading(
        "", "unit of a plain-text file that is one document (default: file)"
    )
    json_field: str | None = _reading("NAME", "field of .jsonl lines with the text (default: text)")
    encoding: str | None = _reading("NAME", "encoding of the files (default: utf-8)")
    errors: Literal["strict", "replace", "ignore"] | None = _reading(
        "", "treatment of bytes that are not valid text (default: strict, which is an error)"
    )


@dataclass(frozen=True, kw_only=True)
class FilesArguments(ReadingArguments):
    """Names text files and a tokenizer, and how the prepared corpus is written."""

    files: tuple[str, ...] = flag(
        "GLOB",
        "text or .jsonl files, plain or compressed (.gz, .bz2, .zst); quote glob patterns",
        (),
    )
    output: str = flag("DIR", "folder of the prepared corpus", REQUIRED)
    tokenizer: str | None = _files("PATH", "file or folder of a tokenizer (required)")
    splitter: str | None = _files(
        "NAME",
        "sentence splitter: rules (English-like languages), lines, or sentencex:LANG "
        "(default: rules)",
    )
    shards: int | None = flag("N", "maximum number of shards (default: from the size)")
    max_part_tokens: int = flag(
        "N", "maximum tokens of a record; longer documents take several", 8192
    )
    overwrite: bool = switch("permission to replace a corpus that was prepared with other settings")

    def files_config(self) -> "PrepareConfig":
        """Makes the config of text files.

        Raises:
          ConfigError: the tokenizer is missing, or a value is out of range.
        """
        from bert_jax.data.corpus.plan import PrepareConfig
        from bert_jax.data.corpus.shards import DocumentsConfig
        from bert_jax.data.corpus.sources import TextFiles

        if self.tokenizer is None:
            raise ConfigError(
                "--files needs --tokenizer PATH; `bert-jax tokenizer train` makes one"
            )
        return PrepareConfig(
            source=TextFiles({"train": self.files}, **given(self, *READING_FLAGS)),
            output=self.output,
            tokenizer=self.tokenizer,
            documents=DocumentsConfig(
                splitter=self.splitter or "rules", max_part_tokens=self.max_part_tokens
            ),
            num_shards=self.shards,
        )


def format_summary(manifest: "Manifest", output: str) -> str:
    """Formats the counts of a prepared corpus in a few lines."""
    counts = manifest.counts
    lines = [
        f"{output}: {counts.documents:,} documents, {counts.sentences:,} sentences, "
        f"{counts.tokens:,} tokens in {len(manifest.shards)} shards ({manifest.dtype}), "
        f"{counts.text_bytes / counts.tokens:.2f} bytes of text per token"
    ]
    lines += [f"  dropped {number:,}: {reason}" for reason, number in manifest.dropped.items()]
    return "\n".join(lines)
