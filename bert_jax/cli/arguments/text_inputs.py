"""Reads texts from arguments, files or standard input, for the verbs that take texts."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice

from bert_jax.errors import UserError

_GROUP_SIZE = 256


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds TEXT..., --file, --encoding and --errors."""
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="text to read")
    parser.add_argument(
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="file or glob pattern: .txt with a text on each line, or .jsonl with a field 'text', "
        "plain or compressed (.gz, .bz2, .zst); repeatable (default without TEXT: standard input)",
    )
    parser.add_argument(
        "--encoding", default="utf-8", help="encoding of the texts (default: utf-8)"
    )
    parser.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        default="strict",
        help="treatment of bytes that are not valid text (default: strict, which is an error)",
    )


def text_groups(args: argparse.Namespace) -> Iterator[list[str]]:
    """Yields groups of texts in order; on a terminal, one text at a time.

    Empty lines are yielded too, so that line N of the output belongs to line N of the input.
    """
    group_size = _GROUP_SIZE
    if args.texts or args.file:
        texts = _from_arguments(args)
    else:
        texts = _from_stdin(args)
        if sys.stdin is not None and sys.stdin.isatty():  # a person types: answer after each line
            group_size = 1
    while group := list(islice(texts, group_size)):
        yield group


def _from_arguments(args: argparse.Namespace) -> Iterator[str]:
    from bert_jax.text.files import expand_globs, read_documents
    from bert_jax.text.tokenizer import check_unicode

    check_unicode(args.texts)
    yield from args.texts
    for path in expand_globs(args.file) if args.file else ():
        read_options = {"encoding": args.encoding, "errors": args.errors}
        for _, text in read_documents(path, document_unit="line", keep_empty=True, **read_options):
            yield text


def _from_stdin(args: argparse.Namespace) -> Iterator[str]:
    from bert_jax.text.files import read_stream_lines

    if sys.stdin is None:  # Python's value if the shell has closed it (`<&-`)
        raise UserError("standard input is closed; expected a text on each line, TEXT or --file")
    for line in read_stream_lines(
        sys.stdin.buffer, "standard input", encoding=args.encoding, errors=args.errors
    ):
        yield line.strip()
