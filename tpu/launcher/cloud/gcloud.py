"""Runs gcloud commands: without a shell, with a time limit, and without secrets.

A dry run prints each command that would be run, quoted for a shell, one per line. It really runs
only the commands that read the project, the bucket's location and the run's manifest
(`DryRunReader`). All other commands get the output of a simulated cloud (dry_run.py).
"""

import logging
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bert_jax.errors import UserError
from tpu.launcher.cloud.error_catalog import ErrorKind, classify_error
from tpu.launcher.cloud.redaction import redact, reject_secrets

logger = logging.getLogger(__name__)

READ_TIMEOUT_SECONDS = 120
"""The longest time that a command that only reads may take."""


@dataclass(frozen=True)
class CommandResult:
    """Holds the result of a command; secrets are removed from `stdout` and `stderr`."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Returns whether the exit code is 0."""
        return self.returncode == 0

    @property
    def error_kind(self) -> ErrorKind:
        """Returns the kind of error, recognized by the text of stderr."""
        return classify_error(self.stderr).kind


class GcloudError(UserError):
    """Reports a gcloud command that failed, with its message and what to do about it."""

    def __init__(self, argv: Sequence[str], result: CommandResult):
        pattern = classify_error(result.stderr)
        message = " ".join(result.stderr.split()) or f"exit code {result.returncode}, no message"
        super().__init__(f"{' '.join(argv[:5])} ...: {message}\n  what to do: {pattern.advice}")
        self.message, self.advice = message, pattern.advice
        self.error_kind: ErrorKind = pattern.kind
        self.returncode = result.returncode


class CommandRunner(Protocol):
    """Runs commands; a runner with `dry` set only prints them."""

    dry: bool

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", timeout: float = READ_TIMEOUT_SECONDS
    ) -> CommandResult:
        """Runs one command and waits until it exits."""
        ...


class GcloudRunner:
    """Runs commands as subprocesses."""

    dry = False

    def __init__(self, environment: Mapping[str, str] | None = None, verbose: bool = False):
        self._environment = dict(os.environ if environment is None else environment)
        self._verbose = verbose

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", timeout: float = READ_TIMEOUT_SECONDS
    ) -> CommandResult:
        """Runs one command and waits until it exits.

        Raises:
          UserError: an argument contains a secret, or the program is not installed.
        """
        reject_secrets(argv, self._environment, f"`{' '.join(argv[:5])} ...`")
        if self._verbose:
            logger.info("+ %s", shlex.join(argv))
        data = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            completed = subprocess.run(
                list(argv), input=data, capture_output=True, timeout=timeout, env=self._environment
            )
        except FileNotFoundError:
            raise UserError(
                f"{argv[0]} is not on PATH; install the Google Cloud CLI: "
                "https://cloud.google.com/sdk/docs/install"
            ) from None
        except subprocess.TimeoutExpired:
            return CommandResult(124, "", f"timed out after {timeout:.0f} s")
        return CommandResult(
            completed.returncode, self._redact(completed.stdout), self._redact(completed.stderr)
        )

    def _redact(self, data: bytes) -> str:
        return redact(data.decode("utf-8", errors="replace"), self._environment)


class DryRunRunner:
    """Prints commands instead of running them.

    Attributes:
      respond: returns the result of a command; set by the command once it has read which slice
        to simulate (see `CommandContext.simulate_cloud`).
    """

    dry = True

    def __init__(
        self,
        respond: Callable[[Sequence[str]], CommandResult] | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self.respond = respond
        self._environment = dict(os.environ if environment is None else environment)

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", timeout: float = READ_TIMEOUT_SECONDS
    ) -> CommandResult:
        """Prints one command and returns its simulated result."""
        reject_secrets(argv, self._environment, f"`{' '.join(argv[:5])} ...`")
        print(shlex.join(argv), flush=True)
        assert self.respond is not None, "no cloud is simulated yet"
        return self.respond(argv)


class DryRunReader:
    """Prints a command and also runs it: a dry run needs to know its output."""

    dry = False

    def __init__(self, runner: CommandRunner):
        self._runner = runner

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", timeout: float = READ_TIMEOUT_SECONDS
    ) -> CommandResult:
        """Prints and runs one command."""
        print(shlex.join(argv), flush=True)
        return self._runner.run(argv, stdin=stdin, timeout=timeout)


def check_output(
    runner: CommandRunner, argv: Sequence[str], *, stdin: str | bytes = "", **run_options: float
) -> str:
    """Runs a command and returns its stdout.

    Raises:
      GcloudError: it failed.
    """
    result = runner.run(argv, stdin=stdin, **run_options)
    if not result.ok:
        raise GcloudError(argv, result)
    return result.stdout
