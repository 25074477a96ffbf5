"""Runs `bert-jax tokenizer train`: trains a tokenizer on text files."""

import argparse

from bert_jax.config.text import TOKENIZER_KINDS

HELP = "train a WordPiece, byte-level BPE or Unigram tokenizer on text files"

EPILOG = """\
example:
  bert-jax tokenizer train --kind bpe --vocab-size 8192 --output vocabulary 'books/**/*.txt.gz'

The same files and settings give the same tokenizer. transformers.AutoTokenizer opens the folder;
its manifest.json lists the files that the tokenizer was trained on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the files, --output, the tokenizer's settings and how files are read."""
    parser.epilog = EPILOG
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="text or .jsonl file, plain or compressed (.gz, .bz2, .zst), or a glob pattern",
    )
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="folder of the new tokenizer"
    )
    parser.add_argument(
        "--kind",
        choices=TOKENIZER_KINDS,
        default="wordpiece",
        help="algorithm (default: wordpiece)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=30522,
        metavar="N",
        help="number of tokens, including special tokens (default: 30522)",
    )
    parser.add_argument(
        "--sentinels",
        type=int,
        default=0,
        metavar="N",
        help="number of sentinel tokens for T5, part of --vocab-size; for unigram, 100 are usual "
        "(default: 0)",
    )
    parser.add_argument(
        "--cased",
        action="store_true",
        help="case-sensitive tokens (for wordpiece, accents are kept too); bpe always is",
    )
    parser.add_argument(
        "--document-unit",
        choices=("file", "blank-line", "line"),
        default="file",
        help="unit of a plain-text file that is one document (default: file)",
    )
    parser.add_argument(
        "--json-field",
        default="text",
        metavar="NAME",
        help="field of .jsonl lines with the text (default: text)",
    )
    parser.add_argument(
        "--encoding", default="utf-8", help="encoding of the files (default: utf-8)"
    )
    parser.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        default="strict",
        help="treatment of bytes that are not valid text (default: strict, which is an error)",
    )


def run(args: argparse.Namespace) -> None:
    """Trains the tokenizer, writes its folder and prints a summary."""
    from bert_jax.config.text import TokenizerTrainingConfig
    from bert_jax.text.learn import train_tokenizer_from_files

    config = TokenizerTrainingConfig(
        kind=args.kind, vocab_size=args.vocab_size, cased=args.cased, sentinels=args.sentinels
    )
    tokenizer = train_tokenizer_from_files(
        args.files,
        args.output,
        config,
        encoding=args.encoding,
        errors=args.errors,
        json_field=args.json_field,
        document_unit=args.document_unit,
    )
    print(f"{args.output}: {tokenizer.kind}, {tokenizer.vocab_size} tokens", end="")
    if tokenizer.vocab_size < args.vocab_size:
        print(f" ({args.vocab_size} requested, but the text does not have that many)", end="")
    print(f", fingerprint {tokenizer.fingerprint[:12]}")
