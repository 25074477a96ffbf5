"""Runs gcloud commands, keeps secrets out of them, and explains their errors.

Uses only the standard library and runs on Python 3.10, which TPU VM images ship.
"""

import logging
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import UserError
from tpu import TPUCTL

logger = logging.getLogger(__name__)

ErrorKind = Literal[
    "auth", "api", "quota", "stockout", "offer", "permission", "exists", "absent", "flag", "ssh",
    "network", "other",
]  # fmt: skip

# Kind, pattern of gcloud's message, advice. The first pattern that matches counts; the restart loop
# depends on the kind, and tpu/README.md has the same messages.
ERRORS: tuple[tuple[ErrorKind, str, str], ...] = (
    (
        "auth",
        r"You do not currently have an active account|Reauthentication (required|failed)"
        r"|There was a problem refreshing your current auth tokens",
        "log in: gcloud auth login",
    ),
    (
        "api",
        r"SERVICE_DISABLED|has not been used in project .* before or it is disabled",
        "enable the API: gcloud services enable tpu.googleapis.com",
    ),
    (
        "quota",
        r"RESOURCE_EXHAUSTED.*[Qq]uota|Quota .* (exhausted|exceeded)|QUOTA_EXCEEDED"
        r"|[Qq]uota limit .* has been exceeded",
        "request quota in the console (IAM & Admin > Quotas, filter: TPU), or use a zone or a "
        "slice for which you have quota",
    ),
    (
        "stockout",
        r"There is no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED"
        r"|Insufficient reserved capacity|does not have enough resources available",
        "the zone has no free capacity, whatever your quota: wait, or use another --zone or "
        "generation; SkyPilot (tpu/sky/) tries all zones",
    ),
    (
        "offer",
        r"not found in zone|is not available in zone|Accelerator type .* (is not|not found)",
        "the zone does not offer this slice: gcloud compute tpus accelerator-types list --zone=...",
    ),
    (
        "permission",
        r"PERMISSION_DENIED|HTTPError 40[13]|does not have .* access|AccessDenied"
        r"|Required '.*' permission|does not have permission",
        "your account or the service account lacks a role; see the table in tpu/README.md under "
        "Permissions",
    ),
    ("exists", r"ALREADY_EXISTS|already exists", "it already exists; nothing to do"),
    (
        "absent",
        r"NOT_FOUND|was not found|not found: 404|HTTPError 404|matched no objects"
        r"|Did not find existing container",
        "it does not exist; check the name, the zone and the project",
    ),
    (
        "flag",
        r"unrecognized arguments|Invalid choice|argument --[a-z-]+: ",
        "this gcloud is too old for the flag: gcloud components update",
    ),
    (
        "ssh",
        r"exited with return code \[255\]|\[/usr/bin/ssh\]|Connection (refused|timed out)"
        r"|port 22|4003: 'failed to connect to backend'",
        "ssh cannot connect: allow tcp:22 in the firewall, or use --iap; processes on the hosts "
        "keep running",
    ),
    (
        "network",
        r"Unable to find the server|Temporary failure in name resolution|timed out"
        r"|Network is unreachable|HTTPError 5\d\d|UNAVAILABLE|INTERNAL|Connection reset"
        # Too many requests are temporary too, unlike an exhausted quota.
        r"|HTTPError 429",
        "a temporary problem of the network or of Google Cloud; it is safe to run the same "
        "command again",
    ),
)

# Token formats of well-known services.
_TOKEN = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|ya29\.[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,}|AKIA[0-9A-Z]{16}"
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}|xox[abps]-[A-Za-z0-9-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_MIN_SECRET_LENGTH = 8  # shorter values occur in ordinary text


class GcloudError(UserError):
    """Reports a failed gcloud command: its message and what to do about it."""

    def __init__(self, argv: Sequence[str], message: str):
        self.kind, advice = explain(message)
        text = " ".join(message.split()) or "it printed no message"
        super().__init__(f"{' '.join(argv[:5])} ...: {text}\n  what to do: {advice}")


def explain(message: str) -> tuple[ErrorKind, str]:
    """Returns the kind of an error and what to do about it."""
    for kind, pattern, advice in ERRORS:
        if re.search(pattern, message, re.DOTALL):
            return kind, advice
    return "other", "see gcloud's message above; it is safe to run the same command again"


@dataclass(frozen=True, kw_only=True)
class Gcloud:
    """Runs gcloud without a shell and with a time limit.

    Attributes:
      dry_run: commands are printed, quoted for a shell, and not run; only `read` runs them too.
      verbose: commands are logged.
    """

    dry_run: bool = False
    verbose: bool = False

    def run(self, *words: str, stdin: str | bytes = "", timeout: float = 120) -> str:
        """Runs a command and returns its output without secrets; "" in a dry run.

        Raises:
          GcloudError: it failed.
          UserError: an argument contains a secret, or gcloud is not installed.
        """
        if self.dry_run:
            argv = ["gcloud", *words]
            reject_secrets(argv, f"`{' '.join(argv[:5])} ...`")
            print(shlex.join(argv), flush=True)
            return ""
        return self.read(*words, stdin=stdin, timeout=timeout)

    def read(self, *words: str, stdin: str | bytes = "", timeout: float = 120) -> str:
        """Runs a command, also in a dry run: for what a dry run needs to know; see `run`."""
        argv = ["gcloud", *words]
        reject_secrets(argv, f"`{' '.join(argv[:5])} ...`")
        if self.dry_run:
            print(shlex.join(argv), flush=True)
        elif self.verbose:
            logger.info("+ %s", shlex.join(argv))
        code, output, message = _execute(argv, stdin, timeout)
        if code != 0:
            raise GcloudError(argv, redact(message, os.environ))
        return redact(output, os.environ)

    def find(self, *words: str) -> str | None:
        """Runs a command and returns its output; None if the object does not exist.

        Raises:
          GcloudError: it failed for another reason.
        """
        try:
            return self.run(*words)
        except GcloudError as error:
            if error.kind == "absent":
                return None
            raise


def _execute(argv: Sequence[str], stdin: str | bytes, timeout: float) -> tuple[int, str, str]:
    """Returns the exit code, stdout and stderr."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    # A question of gcloud would wait for an answer that nobody gives.
    environment = {**os.environ, "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    try:
        done = subprocess.run(
            list(argv), input=data, capture_output=True, timeout=timeout, env=environment
        )
    except FileNotFoundError:
        raise UserError(
            "gcloud is not on PATH; install the Google Cloud CLI: "
            "https://cloud.google.com/sdk/docs/install"
        ) from None
    except subprocess.TimeoutExpired:
        return 124, "", f"timed out after {timeout:.0f} s"
    output, message = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return done.returncode, output, message


def secret_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns {value: name} of variables with a secret-like name; skips values that are files."""
    return {
        value: name
        for name, value in environment.items()
        if _SECRET_NAME.search(name)
        and len(value) >= _MIN_SECRET_LENGTH
        and not os.path.exists(value)
    }


def redact(text: str, secrets: Mapping[str, str]) -> str:
    """Replaces the values of secret variables, and everything that looks like a token."""
    for value, name in secret_values(secrets).items():
        text = text.replace(value, f"[{name}]")
    return _TOKEN.sub("[redacted]", text)


def has_token(text: str) -> bool:
    """Returns whether a text contains something that looks like a token."""
    return _TOKEN.search(text) is not None


def reject_secrets(arguments: Sequence[str], source: str) -> None:
    """Raises if an argument contains a secret: arguments are visible in `ps` and in logs.

    Raises:
      UserError: names the variable, or says that it looks like a token; never shows the value.
    """
    secrets = secret_values(os.environ)
    for argument in arguments:
        found = [f"the value of ${name}" for value, name in secrets.items() if value in argument]
        if has_token(argument):
            found.append("something that looks like a token")
        if found:
            raise UserError(
                f"{source} contains {found[0]}; nothing was run. Store it with `gcloud secrets "
                f"create` and pass --env-secret NAME=projects/PROJECT/secrets/NAME to {TPUCTL}"
            )
