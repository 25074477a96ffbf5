"""`bert-jax <verb>`: finds the verb, parses its flags, turns mistakes into messages.

A verb is a module with `HELP` (one line), `add_arguments(parser)` and `run(args)`. It imports what
is heavy inside `run`, so that `--help` and usage errors answer at once.

Exit codes: 0 done; 1 bad input, told in one `error:` line; 2 wrong usage or configuration; a verb
may return others of its own (75: a signal stopped training, which has saved and can be resumed; 70:
training hung; 76: the processes of a run did not come together).
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from bert_jax import __version__
from bert_jax.cli import (
    baselines,
    convert,
    embed,
    export,
    fill_mask,
    finetune,
    fisher,
    forgetting,
    glue,
    inspect_data,
    plan,
    predict,
    prepare,
    pretrain,
    quickstart,
    show_config,
    simulate,
    sweep,
    vocab_learn,
)
from bert_jax.cli.arguments.huge_pages import restart_with_huge_pages
from bert_jax.errors import UserError

VERBS: dict[str, Any] = {
    "quickstart": quickstart,
    "vocab learn": vocab_learn,
    "prepare": prepare,
    "data show": inspect_data,
    "plan": plan,
    "pretrain": pretrain,
    "finetune": finetune,
    "simulate": simulate,
    "glue": glue,
    "sweep": sweep,
    "explain": show_config,
    "baselines": baselines,
    "export": export,
    "import": convert,
    "predict": predict,
    "fill-mask": fill_mask,
    "embed": embed,
    "fisher": fisher,
    "forgetting": forgetting,
}
"""Name -> module, in the order in which `--help` lists them."""

TRAINING_VERBS = (pretrain, quickstart, finetune)

EPILOG = """\
example: learn a vocabulary, prepare documents, train, export, use
  bert-jax vocab learn --size 8192 --output vocabulary 'books/*.txt'
  bert-jax prepare --files 'books/*.txt' --vocab vocabulary --output prepared
  bert-jax pretrain configs/pretrain/bert.py --run runs/tiny --with size=tiny corpus=prepared
  bert-jax export runs/tiny --output exported
  bert-jax fill-mask exported "It was a [MASK] night."
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code. `--help` and usage errors raise SystemExit."""
    args = build_parser().parse_args(argv)
    set_up_logging()
    if argv is None and args.chosen_verb in TRAINING_VERBS:  # not when called from Python
        restart_with_huge_pages()
    try:
        return args.chosen_verb.run(args) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _StderrHandler(logging.Handler):
    """Writes each log record to `sys.stderr` as it is at that moment; tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def set_up_logging() -> None:
    """Shows the log messages of bert_jax from level INFO on stderr, one line each."""
    package_logger = logging.getLogger("bert_jax")
    package_logger.setLevel(logging.INFO)
    # Libraries may add a handler to the root logger, which would show each line a second time.
    package_logger.propagate = False
    if not any(isinstance(handler, _StderrHandler) for handler in package_logger.handlers):
        package_logger.addHandler(_StderrHandler())


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; a name of two words (`vocab learn`) is a verb inside a group."""
    parser = _Parser(prog="bert-jax", description="BERT encoders in JAX.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"bert-jax {__version__}")
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    groups: dict[str, argparse._SubParsersAction] = {}
    for name, module in VERBS.items():
        *group, leaf = name.split()
        parent = subparsers
        if group:
            (group_name,) = group
            if group_name not in groups:
                group_parser = subparsers.add_parser(group_name, help=f"verbs about: {group_name}")
                groups[group_name] = group_parser.add_subparsers(metavar="VERB", required=True)
            parent = groups[group_name]
        verb = parent.add_parser(leaf, help=module.HELP, description=module.HELP)
        module.add_arguments(verb)
        verb.set_defaults(chosen_verb=module)
    return parser


class _Parser(argparse.ArgumentParser):
    """Keeps the line breaks of examples, and takes no abbreviated flags.

    A script that says --out would change its meaning when another flag --out-something appears.
    """

    def __init__(self, **settings: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )
