"""The flags that `bert-jax prepare` and its Beam twin share. Imports nothing heavy."""

import argparse
from typing import TYPE_CHECKING

from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.data.corpus.manifest import Manifest
    from bert_jax.data.corpus.plan import PrepareConfig


def add_reading_arguments(parser: argparse._ActionsContainer) -> None:
    """What files hold and how they are read."""
    parser.add_argument(
        "--documents-by",
        choices=("file", "blank-line", "line"),
        help="what a document is in a text file (default: file)",
    )
    parser.add_argument(
        "--json-field", metavar="NAME", help="the text in JSON lines (default: text)"
    )
    parser.add_argument("--encoding", metavar="NAME", help="of the files (default: utf-8)")
    parser.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        help="what to do with bytes that are not text (default: strict, which stops)",
    )
    parser.add_argument(
        "--splitter",
        metavar="NAME",
        help="rules, lines, or sentencex:LANG for languages not written like English "
        "(default: rules)",
    )


def add_writing_arguments(parser: argparse._ActionsContainer) -> None:
    """How the prepared corpus is written."""
    parser.add_argument(
        "--shards", type=int, metavar="N", help="most output files (default: by the corpus's size)"
    )
    parser.add_argument(
        "--max-part-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="longer documents are stored in several records (default: 8192)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a corpus that was prepared otherwise"
    )


def prepare_config_from_args(args: argparse.Namespace) -> "PrepareConfig":
    """The request that the flags make for text files.

    Raises:
      ConfigError: a vocabulary is missing, or a value cannot be right.
    """
    from bert_jax.data.corpus.documents import DocumentsConfig
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.sources import TextFiles

    if args.vocab is None:
        raise ConfigError("--files needs --vocab PATH; `bert-jax vocab learn` makes one")
    flag_values = {
        "document_unit": args.documents_by,
        "json_field": args.json_field,
        "encoding": args.encoding,
        "errors": args.errors,
    }
    read_options = {name: value for name, value in flag_values.items() if value is not None}
    return PrepareConfig(
        source=TextFiles({"train": tuple(args.files)}, **read_options),
        output=args.output,
        tokenizer=args.vocab,
        documents=DocumentsConfig(
            splitter=args.splitter or "rules", max_part_tokens=args.max_part_tokens
        ),
        num_shards=args.shards,
    )


def format_summary(manifest: "Manifest", output: str) -> str:
    """What was prepared, in a few lines."""
    counts = manifest.counts
    lines = [
        f"{output}: {counts.documents:,} documents, {counts.sentences:,} sentences, "
        f"{counts.tokens:,} tokens in {len(manifest.shards)} shards ({manifest.dtype}), "
        f"{counts.text_bytes / counts.tokens:.2f} bytes of text per token"
    ]
    lines += [f"  dropped {number:,}: {reason}" for reason, number in manifest.dropped.items()]
    return "\n".join(lines)
