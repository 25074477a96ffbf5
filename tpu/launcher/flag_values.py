"""Parses and validates the values of the launcher's flags, and the job after `--`."""

import re
import secrets
import time
from collections.abc import Sequence
from typing import Literal

from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import find_slice
from tpu import bucket_layout
from tpu.launcher import TPUCTL
from tpu.launcher.options import Options

_ZONE_PATTERN = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z0-9]+")
_PROJECT_PATTERN = re.compile(r"[a-z][a-z0-9.:-]{4,62}")
_SERVICE_ACCOUNT_PATTERN = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+")
JOB_MODES: dict[str, Literal["pod", "shards"]] = {
    "glue": "shards",
    "pretrain": "pod",
    "finetune": "pod",
}
# Flags of bert-jax that the hosts set; --lanes and --lane are the earlier names of the last two.
_RESERVED_FLAGS = (
    "--run",
    "--checkpoints",
    "--output",
    "--num-shards",
    "--shard",
    "--lanes",
    "--lane",
)


def parse_run_folder(options: Options) -> bucket_layout.RunFolder:
    """Returns the run's folder, from --bucket and --run-id.

    Raises:
      ConfigError: one of them is missing or invalid.
    """
    for name in ("bucket", "run_id"):
        if not getattr(options, name):
            flag, variable = f"--{name.replace('_', '-')}", f"BERT_TPU_{name.upper()}"
            raise ConfigError(f"{flag} is missing; pass it, or set {variable}")
    bucket, run_id = str(options.bucket), str(options.run_id)
    if bucket.removeprefix("gs://").strip("/").count("/"):
        raise ConfigError(f"--bucket {bucket}: expected gs://NAME, without a folder")
    return bucket_layout.RunFolder(bucket_layout.run_url(bucket, run_id))


def default_run_id(arguments: tuple[str, ...]) -> str:
    """Returns a new run id such as pretrain-20260801-3fa9."""
    return f"{arguments[0]}-{time.strftime('%Y%m%d')}-{secrets.token_hex(2)}"


def validate_job_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the arguments of `bert-jax` if they can run on a slice.

    Raises:
      ConfigError: the verb does not run on slices, or a flag is one that the hosts set.
    """
    if not arguments or arguments[0] not in JOB_MODES:
        found = f"found {arguments[0]!r}" if arguments else "found nothing"
        raise ConfigError(
            f"the job after -- must start with one of {', '.join(JOB_MODES)}; {found}. Example: "
            f"{TPUCTL} launch ... -- pretrain configs/pretrain/bert.py --arg corpus=@data/wiki"
        )
    for flag in _RESERVED_FLAGS:
        if any(word == flag or word.startswith(f"{flag}=") for word in arguments):
            raise ConfigError(f"{flag} is set by the hosts; omit it")
    return arguments


def parse_zones(text: str | None) -> tuple[str, ...]:
    """Parses the comma-separated zones of --zones.

    Raises:
      ConfigError: a name does not look like a zone.
    """
    zones = tuple(zone.strip() for zone in (text or "").split(",") if zone.strip())
    for zone in zones:
        if not _ZONE_PATTERN.fullmatch(zone):
            raise ConfigError(f"--zones {zone!r} is not a zone; expected a name like us-central1-b")
    return zones


def validate_launch_flags(options: Options) -> str:
    """Validates the flags of a new run that do not depend on others; returns the slice name.

    Raises:
      ConfigError: names the flag.
    """
    if not options.slice:
        raise ConfigError("--slice is missing; pass --slice v6e-16, or set BERT_TPU_SLICE")
    find_slice(options.slice)
    account = options.service_account
    if account and not _SERVICE_ACCOUNT_PATTERN.fullmatch(account):
        raise ConfigError(
            f"--service-account {account!r}: expected NAME@PROJECT.iam.gserviceaccount.com"
        )
    return options.slice


def validate_project(text: str) -> str:
    """Returns the project id if it is valid.

    Raises:
      ConfigError: it is empty or invalid.
    """
    if not _PROJECT_PATTERN.fullmatch(text):
        found = f"found {text!r}" if text and text != "(unset)" else "none is set"
        raise ConfigError(
            f"project: {found}; run `gcloud config set project PROJECT`, or pass --project"
        )
    return text


def parse_assignments(assignments: Sequence[str], flag: str) -> dict[str, str]:
    """Parses and validates the NAME=VALUE values of --data or --env-secret.

    Raises:
      ConfigError: a value has another form. The message never shows the value of a secret.
    """
    found: dict[str, str] = {}
    for word in assignments:
        key, equals, value = word.partition("=")
        if not equals or key in found:
            raise ConfigError(f"{flag} {word!r}: expected NAME=VALUE, with a different name each")
        if flag == "--data":
            found[bucket_layout.validate_name(key, "data")] = bucket_layout.validate_url(value)
            continue
        if not bucket_layout.ENV_VARIABLE_PATTERN.fullmatch(key):
            raise ConfigError("--env-secret: the part before = is not a variable name")
        secret_version = value if "/versions/" in value else f"{value}/versions/latest"
        if not bucket_layout.SECRET_PATTERN.fullmatch(secret_version):
            raise ConfigError(
                f"--env-secret {key}=...: expected {key}=projects/PROJECT/secrets/NAME, the name "
                "of a secret and not the secret itself"
            )
        found[key] = secret_version
    return found
