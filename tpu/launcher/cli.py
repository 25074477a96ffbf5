"""`tpu/pod VERB`: finds the verb, parses its flags, turns mistakes into messages.

Exit codes: 0 done; 1 something failed, told in one message; 2 wrong usage or configuration, or
something is missing that can be known before paying; 75 stopped, and the same command goes on;
76 a host is not fit; 130 Ctrl-C; of launch and babysit, what the run itself ended with.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from bert_jax.errors import ConfigError, UserError
from bert_jax.hardware.tpu_slices import find_slice
from tpu.launcher import looking, options, timing, verbs
from tpu.launcher.dry_run import World
from tpu.launcher.gcloud import Answer, DryRun, Gcloud, Reader, Runner
from tpu.launcher.secrecy import redact

MAKING = "--slice v6e-16 --bucket gs://B --run-id r1"
WHAT = (
    "--data wiki=gs://B/data/wiki \\\n"
    "      -- pretrain configs/pretrain/bert.py --with corpus=@data/wiki"
)
ONE = "--bucket gs://B --run-id r1"
Verb = Callable[[argparse.Namespace, Runner], int]

# Verb -> what it does, its function, an example's words; those with `--` make runs.
VERBS: dict[str, tuple[str, Verb, str]] = {
    "doctor": ("what can be known before paying; reads only", verbs.doctor_verb,
               f"{MAKING} {WHAT}"),
    "up": ("make the slice, wait until it is ready", verbs.up, f"{MAKING} --yes {WHAT}"),
    "sync": ("code to the bucket and to the hosts", verbs.sync, ONE),
    "preflight": ("are all hosts fit to train", verbs.preflight, ONE),
    "run": ("start the trainers on a slice that is ready", verbs.run_verb, ONE),
    "launch": ("all of it: check, make, start, look after, take away", verbs.launch,
               f"{MAKING} --max-usd 200 {WHAT}"),
    "status": ("where a run stands", looking.status, ONE),
    "logs": ("what its hosts said", looking.logs, f"{ONE} --host 0 -f"),
    "stop": ("save, end, and take the slice away; launch again goes on", looking.stop, ONE),
    "down": ("delete every slice of a run; fine when there is none", looking.down, ONE),
    "babysit": ("look after a run that was begun before", verbs.babysit, ONE),
    "prices": ("what slices cost, as a table", looking.prices, "--hours 12"),
}  # fmt: skip
# Verbs that need a slice to be there: a dry run takes it to be.
_THERE = ("sync", "preflight", "run", "status", "logs", "stop", "down")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code. `--help` raises SystemExit."""
    words, arguments = options.split_arguments(list(sys.argv[1:] if argv is None else argv))
    try:
        args = build_parser().parse_args(words)
        args.arguments = arguments
        _check_choices(args)
        options.check_limits(args)
        return args.run_verb(args, make_runner(args))
    except UserError as error:
        print(f"error: {redact(str(error), os.environ)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; every verb can be given again", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = options.Parser(
        prog="tpu/pod",
        description="TPU slices for bert-jax: rent, train, survive, give back. "
        "Start with tpu/README.md.",
        epilog="Most flags have a variable BERT_TPU_<FLAG>, as BERT_TPU_BUCKET; the flag beats it. "
        "Every verb is safe to give twice.",
    )
    found = top.add_subparsers(metavar="VERB", required=True)
    for name, (text, verb, example) in VERBS.items():
        parser = found.add_parser(name, help=text, description=text)
        parser.epilog = f"example:\n  tpu/pod {name} {example}\n"
        parser.set_defaults(run_verb=verb, verb=name)
        _add_flags(parser, name)
    return top


def make_runner(args: argparse.Namespace) -> Runner:
    """What runs commands, or prints them; puts the clock and what reads for a dry run into args."""
    dry = getattr(args, "dry_run", False)
    args.timing = timing.from_environment(dry)
    real = Gcloud(verbose=getattr(args, "verbose", False))
    args.reader = Reader(real) if dry else real
    return DryRun(_assumption(args)) if dry else real


def _assumption(args: argparse.Namespace) -> Callable[[Sequence[str]], Answer]:
    """The dry run's cloud, which is made when it is first asked: flags are checked before."""
    worlds: list[World] = []

    def answer(argv: Sequence[str]) -> Answer:
        if not worlds:
            # Slice and zone are those of the run: plan_run and find_run put them there.
            kind, run_url = find_slice(args.slice), options.checked_place(args).url
            worlds.append(World(kind, run_url, args.zone, args.verb in _THERE))
        return worlds[0].answer(argv)

    return answer


def _add_flags(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "prices":
        parser.add_argument("--hours", type=float, default=12.0, help="default: 12")
        return
    options.add_common(parser)
    if name in ("doctor", "up", "launch"):
        options.add_making(parser)
        return
    parser.set_defaults(max_hours=None, max_usd=None, keep=False, take_over=False)
    if name == "babysit":
        parser.add_argument("--max-hours", type=float, help="instead of the run's own")
        parser.add_argument("--max-usd", type=float, help="instead of the run's own")
        parser.add_argument("--take-over", action="store_true", help="from one that is dead")
    if name in ("babysit", "stop"):
        parser.add_argument("--keep", action="store_true", help="leave the slice; it costs")
    if name == "status":
        parser.add_argument("--json", action="store_true", help="everything, for programs")
    if name == "logs":
        parser.add_argument("--host", type=int, help="default: all")
        parser.add_argument("--incarnation", type=int, help="which life; default: the latest")
        parser.add_argument("--lines", type=int, default=100, help="of each host; default: 100")
        parser.add_argument("-f", "--follow", action="store_true", help="go on reading")


def _check_choices(args: argparse.Namespace) -> None:
    """What came from the environment is held against the choices, too."""
    for name, known in (
        ("capacity", ("spot", "on-demand", "reserved")),
        ("backend", ("auto", "tpu-api", "gce")),
    ):
        value = getattr(args, name, None)
        if value is not None and value not in known:
            raise ConfigError(f"BERT_TPU_{name.upper()}={value!r}: expected {', '.join(known)}")
