"""Flags of the verbs; a flag beats the variable BERT_TPU_<FLAG>, and that the default.

Everything after `--` is what `bert-jax` is to run on the slice.
"""

import argparse
import os
import re
import secrets
import time
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.hardware.tpu_slices import find_slice
from tpu import names
from tpu.protocol import COORDINATOR_PORT

_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z0-9]+")
_PROJECT = re.compile(r"[a-z][a-z0-9.:-]{4,62}")
_ACCOUNT = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+")
MODES = {"glue": "lanes", "pretrain": "pod", "finetune": "pod"}


class Parser(argparse.ArgumentParser):
    """Keeps the line breaks of examples, and takes no abbreviated flags."""

    def __init__(self, **settings: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )

    def error(self, message: str) -> Any:
        """One clear line."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Which run, and how to show what is done."""
    _add(parser, "--bucket", help="gs://NAME, where everything of the run lies")
    _add(parser, "--run-id", help="name of the run: a-z, 0-9 and -")
    parser.add_argument("--dry-run", action="store_true", help="print commands, change nothing")
    parser.add_argument("--verbose", action="store_true", help="print commands as they are run")


def add_making(parser: argparse.ArgumentParser) -> None:
    """What to rent, for how long, and what runs there."""
    _add(parser, "--slice", help="as v6e-16; all of them: tpu/pod prices")
    _add(parser, "--zones", metavar="Z1,Z2", help="in this order; default: those near the bucket")
    _add(parser, "--project", help="default: gcloud config get-value project")
    _add(parser, "--backend", default="auto", choices=["auto", "tpu-api", "gce"],
         help="default: auto, the Cloud TPU API where the generation has it")  # fmt: skip
    _add(parser, "--capacity", default="spot", choices=["spot", "on-demand", "reserved"],
         help="default: spot, which is cheap and may be taken away")  # fmt: skip
    _add(parser, "--max-hours", type=float, default=12.0, help="of slices in all; default: 12")
    _add(parser, "--max-usd", type=float, help="at list price; default: no limit of its own")
    _add(parser, "--wait-hours", type=float, default=24.0, help="for a slice; default: 24")
    _add(parser, "--service-account", help="of the hosts; default: the project's own")
    _add(parser, "--coordinator-port", type=int, default=COORDINATOR_PORT,
         help=f"on host 0, and the one after it; default: {COORDINATOR_PORT}")  # fmt: skip
    _add(parser, "--internal-ips", switch=True, help="hosts without public addresses")
    _add(parser, "--iap", switch=True, help="ssh through Identity-Aware Proxy")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=gs://...",
                        help="copied to each host; arguments say @data/NAME")  # fmt: skip
    parser.add_argument("--env-secret", action="append", default=[], metavar="NAME=projects/...",
                        help="from Secret Manager, read by the hosts themselves")  # fmt: skip
    parser.add_argument("--keep", action="store_true",
                        help="leave the slice when the run is done; it costs on")  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask whether the cost is right")
    parser.add_argument("--take-over", action="store_true", help="from a babysitter that is dead")


def split_arguments(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Words before and after the first `--`."""
    if "--" not in argv:
        return argv, ()
    at = argv.index("--")
    return argv[:at], tuple(argv[at + 1 :])


def checked_place(args: argparse.Namespace) -> names.RunFolder:
    """Bucket and run id, which every verb needs.

    Raises:
      ConfigError: one is missing or impossible.
    """
    for name in ("bucket", "run_id"):
        if not getattr(args, name):
            flag, variable = f"--{name.replace('_', '-')}", f"BERT_TPU_{name.upper()}"
            raise ConfigError(f"{flag} is missing; give it, or set {variable}")
    if args.bucket.removeprefix("gs://").strip("/").count("/"):
        raise ConfigError(f"--bucket {args.bucket}: expected gs://NAME, without a folder")
    return names.RunFolder(names.run_url(args.bucket, args.run_id))


def default_run_id(arguments: tuple[str, ...]) -> str:
    """pretrain-20260801-3fa9."""
    return f"{arguments[0]}-{time.strftime('%Y%m%d')}-{secrets.token_hex(2)}"


def checked_arguments(words: tuple[str, ...]) -> tuple[str, ...]:
    """What `bert-jax` is to run.

    Raises:
      ConfigError: it is no verb for a slice, or says what the hosts say themselves.
    """
    if not words or words[0] not in MODES:
        found = f"found {words[0]!r}" if words else "found nothing"
        raise ConfigError(
            f"what is to run stands after --, and begins with {', '.join(MODES)}; {found}. As in: "
            "tpu/pod launch ... -- pretrain configs/pretrain/bert.py --with corpus=@data/wiki"
        )
    for own in ("--run", "--checkpoints", "--output", "--lanes", "--lane"):
        if any(word == own or word.startswith(f"{own}=") for word in words):
            raise ConfigError(f"{own} is given by the hosts themselves; leave it away")
    return words


def checked_zones(text: str | None) -> tuple[str, ...]:
    """The zones of --zones.

    Raises:
      ConfigError: one does not look like a zone.
    """
    zones = tuple(zone.strip() for zone in (text or "").split(",") if zone.strip())
    for zone in zones:
        if not _ZONE.fullmatch(zone):
            raise ConfigError(f"--zones {zone!r} is no zone; expected names as us-central1-b")
    return zones


def check_limits(args: argparse.Namespace) -> None:
    """Hours and dollars, of whichever verb has them.

    Raises:
      ConfigError: names the flag.
    """
    for name in ("max_hours", "max_usd", "wait_hours"):
        value = getattr(args, name, None)
        if value is not None and not 0 < value < 1e6:
            raise ConfigError(
                f"--{name.replace('_', '-')} {value:g}: expected more than 0, and less than 1e6"
            )


def checked_rest(args: argparse.Namespace) -> None:
    """Everything else that can be wrong in itself.

    Raises:
      ConfigError: names the flag.
    """
    if not args.slice:
        raise ConfigError("--slice is missing; give it as --slice v6e-16, or set BERT_TPU_SLICE")
    find_slice(args.slice)
    if args.service_account and not _ACCOUNT.fullmatch(args.service_account):
        raise ConfigError(
            f"--service-account {args.service_account!r}: expected NAME@PROJECT.iam."
            "gserviceaccount.com"
        )


def checked_project(text: str) -> str:
    """A project's id.

    Raises:
      ConfigError: there is none, or it cannot be one.
    """
    if not _PROJECT.fullmatch(text):
        found = f"found {text!r}" if text and text != "(unset)" else "none is set"
        raise ConfigError(f"project: {found}; gcloud config set project PROJECT, or --project")
    return text


def pairs(words: list[str], flag: str) -> dict[str, str]:
    """NAME=VALUE words as a dict; data folders and secrets are checked.

    Raises:
      ConfigError: a word is not of that form.
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in found:
            raise ConfigError(f"{flag} {word!r}: expected NAME=VALUE, each name once")
        if flag == "--data":
            found[names.name(key, "data")] = names.url(value)
            continue
        if not names.VARIABLE.fullmatch(key):
            raise ConfigError("--env-secret: the part before = is no name of a variable")
        full = value if "/versions/" in value else f"{value}/versions/latest"
        if not names.SECRET.fullmatch(full):
            raise ConfigError(
                f"--env-secret {key}=...: expected {key}=projects/PROJECT/secrets/NAME, the name "
                "of a secret and not the secret itself"
            )
        found[key] = full
    return found


def _add(parser: argparse.ArgumentParser, flag: str, switch: bool = False, **rest: Any) -> None:
    """A flag whose default may come from the environment."""
    variable = f"BERT_TPU_{flag.removeprefix('--').replace('-', '_').upper()}"
    given = os.environ.get(variable)
    if switch:
        on = (given or "").lower() in ("1", "true", "yes")
        parser.add_argument(flag, action="store_true", default=on, **rest)
    else:
        # argparse does not hold defaults against `choices`; main does, after parsing.
        parser.add_argument(flag, **{**rest, **({"default": given} if given else {})})
