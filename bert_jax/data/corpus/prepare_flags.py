"""Defines flags that `bert-jax prepare`, `bert-jax curate` and their Beam pipelines share."""

import argparse
from typing import TYPE_CHECKING

from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.data.corpus.manifest import Manifest
    from bert_jax.data.corpus.plan import PrepareConfig

# argparse has no public name for the base class of a parser and an argument group.
ArgumentContainer = argparse._ActionsContainer  # pyright: ignore[reportPrivateUsage]


def add_reading_arguments(parser: ArgumentContainer) -> None:
    """Adds the flags that set how text files are read."""
    parser.add_argument(
        "--document-unit",
        choices=("file", "blank-line", "line"),
        help="unit of a plain-text file that is one document (default: file)",
    )
    parser.add_argument(
        "--json-field", metavar="NAME", help="field of .jsonl lines with the text (default: text)"
    )
    parser.add_argument("--encoding", metavar="NAME", help="encoding of the files (default: utf-8)")
    parser.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        help="treatment of bytes that are not valid text (default: strict, which is an error)",
    )
    parser.add_argument(
        "--splitter",
        metavar="NAME",
        help="sentence splitter: rules (English-like languages), lines, or sentencex:LANG "
        "(default: rules)",
    )


def add_writing_arguments(parser: ArgumentContainer) -> None:
    """Adds the flags that set how the prepared corpus is written."""
    parser.add_argument(
        "--shards", type=int, metavar="N", help="maximum number of shards (default: from the size)"
    )
    parser.add_argument(
        "--max-part-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="maximum tokens of a record; longer documents take several (default: 8192)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="permission to replace a corpus that was prepared with other settings",
    )


def prepare_config_from_args(args: argparse.Namespace) -> "PrepareConfig":
    """Makes the config of text files from the flags.

    Raises:
      ConfigError: the tokenizer is missing, or a value is out of range.
    """
    from bert_jax.data.corpus.documents import DocumentsConfig
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.sources import TextFiles

    if args.tokenizer is None:
        raise ConfigError("--files needs --tokenizer PATH; `bert-jax tokenizer train` makes one")
    flag_values = {
        "document_unit": args.document_unit,
        "json_field": args.json_field,
        "encoding": args.encoding,
        "errors": args.errors,
    }
    read_options = {name: value for name, value in flag_values.items() if value is not None}
    return PrepareConfig(
        source=TextFiles({"train": tuple(args.files)}, **read_options),
        output=args.output,
        tokenizer=args.tokenizer,
        documents=DocumentsConfig(
            splitter=args.splitter or "rules", max_part_tokens=args.max_part_tokens
        ),
        num_shards=args.shards,
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


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds RECIPE and --arg of curation."""
    parser.add_argument("recipe", metavar="RECIPE", help="name or file of a recipe of curation")
    parser.add_argument(
        "--arg",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="arguments of get_config in the recipe",
    )
