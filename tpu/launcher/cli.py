"""Runs `tpu/tpuctl COMMAND`: parses the flags and turns errors into messages.

Exit codes: 0 done; 1 a command failed, with one message; 2 wrong usage or configuration, or a
check that failed before anything was rented; 75 stopped, the same command resumes; 76 a host
failed its preflight checks; 130 Ctrl-C. `launch` and `babysit` exit with the code of the run.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from bert_jax.errors import UserError
from bert_jax.io.log_handler import set_up_logging
from tpu.launcher import TPUCTL, commands_inspect, commands_launch
from tpu.launcher import options as launcher_options
from tpu.launcher.cloud.redaction import redact
from tpu.launcher.command_context import CommandContext, make_command_context

CommandFunction = Callable[[CommandContext], int]
_RUN_FLAGS = "--bucket gs://B --run-id r1"
_LAUNCH_FLAGS = "--slice v6e-16 --bucket gs://B --run-id r1"
_JOB = (
    "--data wiki=gs://B/data/wiki \\\n"
    "      -- pretrain configs/pretrain/bert.py --arg corpus=@data/wiki"
)

# Command -> help text, function, flags of the example.
COMMANDS: dict[str, tuple[str, CommandFunction, str]] = {
    "doctor": (
        "check account, quota, data and code before renting; changes nothing",
        commands_launch.doctor_command,
        f"{_LAUNCH_FLAGS} {_JOB}",
    ),
    "up": (
        "create the slice and wait until it is ready",
        commands_launch.up,
        f"{_LAUNCH_FLAGS} --yes {_JOB}",
    ),
    "sync": (
        "upload the code and install it on the hosts",
        commands_launch.sync,
        _RUN_FLAGS,
    ),
    "preflight": (
        "check whether all hosts are ready to train",
        commands_launch.preflight,
        _RUN_FLAGS,
    ),
    "run": (
        "start the trainers on a slice that is ready",
        commands_launch.run_command,
        _RUN_FLAGS,
    ),
    "launch": (
        "check, create, start, restart after preemptions, and delete: a whole run",
        commands_launch.launch,
        f"{_LAUNCH_FLAGS} --max-usd 200 {_JOB}",
    ),
    "status": ("show the state of a run", commands_inspect.status, _RUN_FLAGS),
    "logs": (
        "print the logs of the hosts",
        commands_inspect.logs,
        f"{_RUN_FLAGS} --host 0 -f",
    ),
    "stop": (
        "save, end and delete the slice; `launch` resumes the run",
        commands_inspect.stop,
        _RUN_FLAGS,
    ),
    "down": (
        "delete every slice of a run, without saving",
        commands_inspect.down,
        _RUN_FLAGS,
    ),
    "babysit": (
        "manage and restart a run that was launched before",
        commands_launch.babysit,
        _RUN_FLAGS,
    ),
    "prices": ("print the prices of all slices", commands_inspect.prices, "--hours 12"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. `--help` raises SystemExit."""
    launcher_argv, job_arguments = launcher_options.split_arguments(
        list(sys.argv[1:] if argv is None else argv)
    )
    set_up_logging("tpu", with_time=True)
    try:
        options = launcher_options.parse_options(build_parser(), launcher_argv, job_arguments)
        _, function, _ = COMMANDS[options.command]
        return function(make_command_context(options))
    except UserError as error:
        print(f"error: {redact(str(error), os.environ)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; every command can be run again", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has exited. Without this, Python would report the
        # broken pipe once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    top_parser = launcher_options.LauncherParser(
        prog=TPUCTL,
        description="Rents TPU slices, trains with bert-jax on them, restarts after preemptions "
        "and deletes them. Start with tpu/README.md.",
        epilog="Most flags can be set by a variable BERT_TPU_<FLAG>, for example BERT_TPU_BUCKET; "
        "the flag takes precedence. Every command can safely be run twice.",
    )
    subparsers = top_parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, (help_text, _, example) in COMMANDS.items():
        parser = subparsers.add_parser(name, help=help_text, description=help_text)
        parser.epilog = f"example:\n  {TPUCTL} {name} {example}\n"
        _add_flags(parser, name)
    return top_parser


def _add_flags(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "prices":
        parser.add_argument(
            "--hours", type=float, default=12.0, help="hours to price (default: 12)"
        )
        return
    launcher_options.add_run_flags(parser)
    if name in ("doctor", "up", "launch"):
        launcher_options.add_launch_flags(parser)
    if name == "babysit":
        parser.add_argument("--max-hours", type=float, help="new limit on slice hours")
        parser.add_argument("--max-usd", type=float, help="new limit on the cost at list price")
        launcher_options.add_force_lease_flag(parser)
    if name in ("babysit", "stop"):
        parser.add_argument(
            "--keep-slice", action="store_true", help="do not delete the slice, which is billed"
        )
    if name == "status":
        parser.add_argument("--json", action="store_true", help="all known state as JSON")
    if name == "logs":
        parser.add_argument("--host", type=int, help="one host's log (default: all hosts)")
        parser.add_argument("--attempt", type=int, help="attempt number (default: the latest)")
        parser.add_argument(
            "--lines", type=int, default=100, help="last lines of each host (default: 100)"
        )
        parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines")
