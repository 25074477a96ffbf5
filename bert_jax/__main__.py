"""Runs the command line `bert-jax VERB`: parses the flags, runs the verb, prints errors.

A verb is a module with `HELP` (one line), `EPILOG` (examples and notes), `Arguments` (a dataclass
whose fields are its flags, see `config/flags.py`) and `run(args: Arguments)`, and if it has many
flags, `COMMON`, those that `--help` lists first. It imports heavy packages inside `run`, so that
`--help` and usage errors appear at once.

Exit codes: 0 done; 1 bad input, explained in one `error:` line; 2 wrong usage or configuration. A
verb may return others: 75 when a signal stopped training, which has saved and can be resumed; 130
when SIGTERM or Ctrl-C stopped a verb that saves no checkpoint; 70 when training hung; 76 when the
processes of a run could not connect to each other.
"""

import argparse
import io
import os
import platform
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_jax.apps.attention_heads.cli import head_importance, heads
from bert_jax.apps.attributions import cli as attribute
from bert_jax.apps.curate.cli import curate, curate_classifier, curate_ngrams
from bert_jax.apps.plan import cli as plan
from bert_jax.apps.probes import cli as probe
from bert_jax.apps.quickstart import cli as quickstart
from bert_jax.apps.search.cli import evaluate as search_evaluate
from bert_jax.apps.search.cli import explain as search_explain
from bert_jax.apps.search.cli import hard_negatives as search_hard_negatives
from bert_jax.apps.search.cli import index as search_index
from bert_jax.apps.search.cli import query as search_query
from bert_jax.apps.seen.cli import seen, unlearn
from bert_jax.apps.sentence_scores.cli import minimal_pairs, score
from bert_jax.apps.serve import cli as serve
from bert_jax.apps.similarity import cli as cka
from bert_jax.apps.simulate import cli as simulate
from bert_jax.apps.static_embeddings import cli as distill_static
from bert_jax.apps.studies.cli import baselines, few_shot, fisher, forgetting, glue, sheet, sweep
from bert_jax.apps.verify import cli as verify
from bert_jax.apps.vocabulary.cli import add as vocabulary_add
from bert_jax.apps.vocabulary.cli import compare as vocabulary_compare
from bert_jax.apps.vocabulary.cli import replace as vocabulary_replace
from bert_jax.apps.word_vectors.cli import average, classify, senses, train_elmo
from bert_jax.apps.word_vectors.cli import evaluate as word_vectors_evaluate
from bert_jax.apps.word_vectors.cli import train as word_vectors_train
from bert_jax.cli import (
    convert,
    embed,
    embed_evaluate,
    embed_train,
    evaluate,
    export,
    fill_mask,
    finetune,
    generate,
    inspect_data,
    predict,
    prepare,
    pretrain,
    recipes,
    setfit,
    show_config,
    tpu,
    train_tokenizer,
)
from bert_jax.config.flags import add_flags, from_namespace
from bert_jax.errors import UserError, closest_names, did_you_mean
from bert_jax.io.atomic_io import DISK_ERRORS
from bert_jax.io.log_handler import set_up_logging
from bert_jax.io.parent_process import exit_with_parent
from bert_jax.version import __version__

VERB_GROUPS: dict[str, dict[str, Any]] = {
    "data": {
        "tokenizer train": train_tokenizer,
        "curate": curate,
        "curate-classifier": curate_classifier,
        "curate-ngrams": curate_ngrams,
        "prepare": prepare,
        "data inspect": inspect_data,
    },
    "train": {
        "quickstart": quickstart,
        "recipes": recipes,
        "show-config": show_config,
        "pretrain": pretrain,
        "finetune": finetune,
        "embed-train": embed_train,
        "setfit": setfit,
        "vocabulary add": vocabulary_add,
        "vocabulary replace": vocabulary_replace,
        "vocabulary compare": vocabulary_compare,
    },
    "use": {
        "predict": predict,
        "evaluate": evaluate,
        "fill-mask": fill_mask,
        "generate": generate,
        "score": score,
        "embed": embed,
        "embed-evaluate": embed_evaluate,
        "search index": search_index,
        "search query": search_query,
        "search explain": search_explain,
        "search evaluate": search_evaluate,
        "search mine": search_hard_negatives,
        "serve": serve,
    },
    "hand over": {"export": export, "convert": convert, "distill-static": distill_static},
    "study": {
        "sheet": sheet,
        "minimal-pairs": minimal_pairs,
        "seen": seen,
        "unlearn": unlearn,
        "attribute": attribute,
        "cka": cka,
        "heads": heads,
        "head-importance": head_importance,
        "probe": probe,
        "word-vectors train": word_vectors_train,
        "word-vectors train-elmo": train_elmo,
        "word-vectors average": average,
        "word-vectors evaluate": word_vectors_evaluate,
        "word-vectors senses": senses,
        "word-vectors classify": classify,
        "baselines": baselines,
        "glue": glue,
        "few-shot": few_shot,
        "sweep": sweep,
        "forgetting": forgetting,
        "fisher": fisher,
    },
    "devices": {"verify": verify, "plan": plan, "simulate": simulate, "tpu": tpu},
}
"""Heading of `--help` -> verb -> module, in the order of `--help`."""

VERBS = {name: module for verbs in VERB_GROUPS.values() for name, module in verbs.items()}

TRAINING_VERBS = (pretrain, quickstart, finetune, embed_train, setfit)

MALLOC_TUNABLE = "glibc.malloc.hugetlb"
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

DESCRIPTION = """\
Pretrains, fine-tunes, exports and runs BERT-family encoders, T5 and BART in JAX.

start here; `bert-jax VERB --help` explains a verb, with examples:
  all of it, on text of this machine    bert-jax quickstart --output quickstart
  classify texts, with your labels      bert-jax finetune --help
  pretrain on your documents            bert-jax prepare --help, then bert-jax pretrain --help
  use a model that exists               bert-jax predict, embed or fill-mask, with its folder
  give a model to PyTorch users         bert-jax export --help
To resume a run that was stopped, run its command again.
"""

EPILOG = """\
example: train a tokenizer, prepare documents, pretrain, export, predict
  bert-jax tokenizer train --vocab-size 8192 --output vocabulary 'books/*.txt'
  bert-jax prepare --files 'books/*.txt' --tokenizer vocabulary --output prepared
  bert-jax pretrain bert --run runs/tiny --arg size=tiny corpus=prepared
  bert-jax export runs/tiny --output exported
  bert-jax fill-mask exported "It was a [MASK] night."

On Linux, `pretrain`, `finetune`, `embed-train`, `setfit` and `quickstart` restart themselves once,
in the same process, with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, which makes training on a CPU
faster. To prevent this, set GLIBC_TUNABLES=glibc.malloc.hugetlb=0.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code; `--help` and usage errors raise SystemExit."""
    parsed = build_parser().parse_args(argv)
    verb = parsed.chosen_verb
    set_up_logging()
    if sys.stdout is None:  # Python's value if the shell has closed it (`>&-`)
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    if argv is None:  # not when called from Python
        if verb in TRAINING_VERBS:
            restart_with_huge_pages()
        else:  # as Ctrl-C: worker processes and temporary files are removed
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            sys.unraisablehook = _interrupt_again
        exit_with_parent()
    try:
        return verb.run(from_namespace(verb.Arguments, parsed)) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The program that reads our output, such as `head`, has exited. Without this, Python
        # would try to flush standard output at exit and print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        location = f"{error.filename}: " if error.filename else ""
        print(
            f"error: {location}{error.strerror}; free some space or check the disk, then run the "
            "same command again, which continues from what was saved",
            file=sys.stderr,
        )
        return UserError.exit_code
    except KeyboardInterrupt:
        # A second signal while Python shuts down ends the process without a traceback.
        if argv is None:  # not when called from Python
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        print("interrupted", file=sys.stderr)
        return 130


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Sends an interrupt again that was raised where Python ignores exceptions.

    JAX has a callback of the garbage collector. A signal that arrives while it runs would be lost.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    # Later, because an exception in this hook is ignored, too.
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def parse_command(argv: Sequence[str]) -> Any:
    """Returns the arguments of a command as its verb receives them."""
    parsed = build_parser().parse_args(argv)
    return from_namespace(parsed.chosen_verb.Arguments, parsed)


def restart_with_huge_pages() -> None:
    """Replaces this process by the same command with huge pages for malloc, if that has an effect.

    Each training step on a CPU allocates its large activations again. With pages of 4 kB the kernel
    spends up to a third of the step mapping them (`docs/performance.md`). glibc reads the setting
    only when a process starts, hence the restart.

    Returns without a restart if malloc is not glibc's, if the kernel gives huge pages to every
    process ("always") or to none ("never"), or if the tunable is already set. To prevent the
    restart, set GLIBC_TUNABLES=glibc.malloc.hugetlb=0.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if MALLOC_TUNABLE in tunables or platform.libc_ver()[0] != "glibc":
        return
    if not HUGE_PAGES_FILE.is_file() or "[madvise]" not in HUGE_PAGES_FILE.read_text():
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{MALLOC_TUNABLE}=1")))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class _ClosedOutput(io.TextIOBase):
    """Stands for a closed standard output; what would be lost there is an error."""

    def write(self, text: str) -> int:
        raise UserError("standard output is closed; redirect it to a file, or use --output")


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of all verbs; a name of two words (`data inspect`) is a verb in a group."""
    parser = _Parser(prog="bert-jax", description=DESCRIPTION + _verb_list(), epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"bert-jax {__version__}")
    # The description lists the verbs, because argparse has no groups of them.
    subparsers = parser.add_subparsers(metavar="VERB", required=True, help=argparse.SUPPRESS)
    parser.usage = "bert-jax VERB ..."
    groups: dict[str, Any] = {}
    for name, module in VERBS.items():
        *group, leaf = name.split()
        parent, settings = subparsers, {}
        if group:
            (group_name,) = group
            if group_name not in groups:
                group_parser = subparsers.add_parser(group_name)
                groups[group_name] = group_parser.add_subparsers(metavar="VERB", required=True)
            parent, settings = groups[group_name], {"help": module.HELP}
        verb = parent.add_parser(leaf, description=module.HELP, **settings)
        add_flags(verb, module.Arguments, getattr(module, "COMMON", ()))
        verb.epilog = module.EPILOG
        verb.set_defaults(chosen_verb=module)
    return parser


def _verb_list() -> str:
    """Returns the verbs with their help, under the headings of their groups."""
    width = min(shutil.get_terminal_size().columns, 100)
    lines: list[str] = []
    for title, verbs in VERB_GROUPS.items():
        lines += ["", f"{title}:"]
        for name, module in verbs.items():
            text = f"{name:18} {module.HELP}"
            lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent=" " * 21)
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Parses arguments, keeps the line breaks of examples, and refuses abbreviated flags.

    A script that abbreviates --output as --out would break when another flag --out-... is added.
    """

    def __init__(self, **settings: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )
        self._is_intermixed = False

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] (typed in overloads)
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses arguments; words that may be omitted come before, between and after flags.

        Without this, argparse would take MODEL and no texts as soon as it has read MODEL, and
        refuse the texts in `predict MODEL --pairs TEXT TEXT`.
        """
        if self._is_intermixed:
            return super().parse_known_args(args, namespace)
        optional = any(
            not action.option_strings and action.nargs in ("?", "*") for action in self._actions
        )
        self._is_intermixed = optional  # then the next calls come from parse_known_intermixed_args
        parse = self.parse_known_intermixed_args if optional else super().parse_known_args
        try:
            parsed, unknown = parse(args, namespace)
        finally:
            self._is_intermixed = False
        if unknown:  # reported by the parser of the verb, which prints the usage of the verb
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggest(unknown)}")
        return parsed, unknown

    def _suggest(self, unknown: Sequence[str]) -> str:
        flag = next((w.partition("=")[0][2:] for w in unknown if w.startswith("--")), "")
        known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        nearest = "".join(
            f"did you mean --{name}? " for name in closest_names(flag, known, cutoff=0.6)
        )
        if not flag and "--arg" in self._option_string_actions and "=" in unknown[0]:
            nearest = f"did you mean --arg {unknown[0]}? "
        return f"; {nearest}`{self.prog} --help` lists all flags"

    def error(self, message: str) -> NoReturn:
        """Prints usage, message and the next step, such as the name nearest to a wrong choice."""
        if message.startswith("the following arguments are required"):
            message = f"{message}; `{self.prog} --help` explains them and has an example"
        if found := re.search(r"invalid choice: '(.+?)' \(choose from (.*)\)", message):
            name, choices = found.groups()
            if nearest := did_you_mean(name, re.findall(r"[^\s',]+", choices)).strip():
                message = f"{message}; {nearest}"
        super().error(message)


if __name__ == "__main__":
    sys.exit(main())
