"""Defines the flags of the launcher; flag_values.py parses and validates their values.

A flag takes precedence over the variable BERT_TPU_<FLAG>, and that over the default. Everything
after `--` is the job: arguments of `bert-jax` that run on the slice.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from bert_jax.errors import ConfigError
from tpu.launcher import TPUCTL
from tpu.launcher.cloud.backend import Capacity
from tpu.protocol import COORDINATOR_PORT

_CAPACITIES = ("spot", "on-demand", "reserved")
_BACKENDS = ("auto", "tpu-api", "gce")
RENAMED_FLAGS = {
    "--take-over": "--force-lease",
    "--keep": "--keep-slice",
    "--incarnation": "--attempt",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Holds the flags of one launcher command; flags that the command lacks have their default.

    Attributes:
      command: the command's name, such as "launch".
      job_arguments: the arguments after `--`.
      max_hours, max_usd: for commands on an existing run, None keeps the run's own limit.
    """

    command: str
    job_arguments: tuple[str, ...] = ()
    bucket: str | None = None
    run_id: str | None = None
    dry_run: bool = False
    verbose: bool = False
    slice: str | None = None
    zones: str | None = None
    project: str | None = None
    backend: str = "auto"
    capacity: Capacity = "spot"
    max_hours: float | None = None
    max_usd: float | None = None
    wait_hours: float = 24.0
    service_account: str | None = None
    coordinator_port: int = COORDINATOR_PORT
    internal_ips: bool = False
    iap: bool = False
    data: Sequence[str] = ()
    env_secret: Sequence[str] = ()
    keep_slice: bool = False
    yes: bool = False
    force_lease: bool = False
    json: bool = False
    host: int | None = None
    attempt: int | None = None
    lines: int = 100
    follow: bool = False
    hours: float = 12.0


class LauncherParser(argparse.ArgumentParser):
    """Parses flags without abbreviations, and reports errors as one line."""

    def __init__(self, **settings: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )

    def error(self, message: str) -> Any:
        """Raises the error instead of printing the usage and exiting."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that all commands on a run have."""
    _add_env_flag(parser, "--bucket", help="bucket of the run, gs://NAME")
    _add_env_flag(parser, "--run-id", help="name of the run: a-z, 0-9 and -")
    parser.add_argument(
        "--dry-run", action="store_true", help="only print the commands, change nothing"
    )
    parser.add_argument("--verbose", action="store_true", help="print each command that is run")


def add_launch_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that describe a new run: what to rent, for how long, with which data."""
    _add_rental_flags(parser)
    _add_host_flags(parser)
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=gs://...",
        help="folder to copy to each host; arguments refer to it as @data/NAME (repeatable)",
    )
    parser.add_argument(
        "--env-secret",
        action="append",
        default=[],
        metavar="NAME=projects/...",
        help="environment variable that the hosts read from Secret Manager (repeatable)",
    )
    parser.add_argument(
        "--keep-slice",
        action="store_true",
        help=f"do not delete the slice when the run is done; it is billed until `{TPUCTL} down`",
    )
    parser.add_argument("--yes", action="store_true", help="start without asking about the cost")
    add_force_lease_flag(parser)


def _add_rental_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for the slice to rent and the limits on its cost."""
    _add_env_flag(
        parser,
        "--slice",
        help=f"slice type, such as v6e-16; `{TPUCTL} prices` lists all of them",
    )
    _add_env_flag(
        parser,
        "--zones",
        metavar="Z1,Z2",
        help="zones to try, in this order (default: the zones in the bucket's region)",
    )
    _add_env_flag(
        parser, "--project", help="Google Cloud project (default: the one gcloud is set to)"
    )
    _add_env_flag(
        parser,
        "--backend",
        default="auto",
        choices=_BACKENDS,
        help="API to rent through (default: auto, the Cloud TPU API if the generation has it)",
    )
    _add_env_flag(
        parser,
        "--capacity",
        default="spot",
        choices=_CAPACITIES,
        help="kind of capacity (default: spot, which is cheap and can be preempted)",
    )
    _add_env_flag(
        parser,
        "--max-hours",
        type=float,
        default=12.0,
        help="limit on the slice hours of all attempts together (default: 12)",
    )
    _add_env_flag(
        parser, "--max-usd", type=float, help="limit on the cost at list price (default: none)"
    )
    _add_env_flag(
        parser,
        "--wait-hours",
        type=float,
        default=24.0,
        help="longest wait for a slice (default: 24)",
    )


def _add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for the network and the account of the hosts."""
    _add_env_flag(
        parser,
        "--service-account",
        help="service account of the hosts (default: the project's default account)",
    )
    _add_env_flag(
        parser,
        "--coordinator-port",
        type=int,
        default=COORDINATOR_PORT,
        help="port on host 0 for jax.distributed; the next port is used too "
        f"(default: {COORDINATOR_PORT})",
    )
    _add_env_flag(
        parser, "--internal-ips", is_switch=True, help="hosts without external IP addresses"
    )
    _add_env_flag(parser, "--iap", is_switch=True, help="ssh through Identity-Aware Proxy")


def add_force_lease_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --force-lease."""
    parser.add_argument(
        "--force-lease",
        action="store_true",
        help="take the run over from another launcher, which must not be running any more",
    )


def parse_options(
    parser: argparse.ArgumentParser, argv: Sequence[str], job_arguments: tuple[str, ...]
) -> Options:
    """Parses the flags before `--`.

    Raises:
      ConfigError: a flag is unknown, was renamed, or has an invalid value.
    """
    for word in argv:
        flag = word.split("=", 1)[0]
        if flag in RENAMED_FLAGS:
            raise ConfigError(f"{flag} was renamed: use {RENAMED_FLAGS[flag]}")
    values = vars(parser.parse_args(list(argv)))
    options = Options(job_arguments=job_arguments, **values)
    _check_choices(options)
    _validate_limits(options)
    return options


def split_arguments(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Splits a command line at the first `--` into launcher flags and job arguments."""
    if "--" not in argv:
        return argv, ()
    index = argv.index("--")
    return argv[:index], tuple(argv[index + 1 :])


def _validate_limits(options: Options) -> None:
    for name in ("max_hours", "max_usd", "wait_hours"):
        value = cast("float | None", getattr(options, name))
        if value is not None and not 0 < value < 1e6:
            raise ConfigError(
                f"--{name.replace('_', '-')} {value:g}: expected more than 0 and less than 1e6"
            )


def _check_choices(options: Options) -> None:
    # argparse checks `choices` for flags, but not for defaults, which may be from the environment.
    for name, choices in (("capacity", _CAPACITIES), ("backend", _BACKENDS)):
        value = getattr(options, name)
        if value not in choices:
            raise ConfigError(f"BERT_TPU_{name.upper()}={value!r}: expected {', '.join(choices)}")


def _add_env_flag(
    parser: argparse.ArgumentParser, flag: str, is_switch: bool = False, **settings: Any
) -> None:
    """Adds a flag whose default can be set by the environment variable BERT_TPU_<FLAG>."""
    variable = f"BERT_TPU_{flag.removeprefix('--').replace('-', '_').upper()}"
    env_value = os.environ.get(variable)
    if is_switch:
        enabled = (env_value or "").lower() in ("1", "true", "yes")
        parser.add_argument(flag, action="store_true", default=enabled, **settings)
    else:
        if env_value:
            settings["default"] = env_value
        parser.add_argument(flag, **settings)
