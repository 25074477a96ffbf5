"""Texts for the verbs that read them: arguments, files or standard input."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice

from bert_jax.errors import UserError

_GROUP_SIZE = 256


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """TEXT..., --file, --encoding, --errors."""
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="a text; texts stand right after MODEL"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="a file or pattern (.txt, .gz) with a text on each line, or .jsonl with a field "
        "'text'; may be repeated; without TEXT and --file, standard input is read",
    )
    parser.add_argument("--encoding", default="utf-8", help="of the files (default: utf-8)")
    parser.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        default="strict",
        help="what to do with bytes that are not text (default: strict)",
    )


def text_groups(args: argparse.Namespace) -> Iterator[list[str]]:
    """The texts in order, many together where they are at hand; empty lines are left out."""
    group_size = _GROUP_SIZE
    if args.texts or args.file:
        texts = _from_arguments(args)
    else:
        texts = _from_stdin(args)
        if sys.stdin.isatty():  # someone types: answer each line
            group_size = 1
    while group := list(islice(texts, group_size)):
        yield group


def _from_arguments(args: argparse.Namespace) -> Iterator[str]:
    from bert_jax.text.files import expand_globs, read_documents

    yield from args.texts
    for path in expand_globs(args.file) if args.file else ():
        read_options = {"encoding": args.encoding, "errors": args.errors}
        for _, text in read_documents(path, document_unit="line", **read_options):
            yield text


def _from_stdin(args: argparse.Namespace) -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode(args.encoding, args.errors).strip()
        except (UnicodeDecodeError, LookupError) as error:
            raise UserError(
                f"standard input, line {number}: {error}; see --encoding and --errors"
            ) from None
        if text:
            yield text
