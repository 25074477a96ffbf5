"""Runs gcloud: no shell, nothing secret in or out, a time limit, and --dry-run.

A dry run prints each command that would be run, quoted for a shell, one a line. It runs those that
say which project, region and run it is about, and no others; the answers it needs to go on are
those of a cloud where nothing is there yet and all goes well (dry_run.py).
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bert_jax.errors import UserError
from tpu.launcher.messages import Kind, recognise
from tpu.launcher.secrecy import redact, refuse_secrets

READ_SECONDS = 120
"""Most that a question to the cloud may take."""


@dataclass(frozen=True)
class Answer:
    """How a command ended; `out` and `err` are without secrets."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Exit code 0."""
        return self.code == 0

    @property
    def kind(self) -> Kind:
        """What went wrong, by the text."""
        return recognise(self.err).kind


class GcloudError(UserError):
    """A command that failed, with what gcloud said and what to do about it."""

    def __init__(self, argv: Sequence[str], answer: Answer):
        known = recognise(answer.err)
        said = " ".join(answer.err.split()) or f"exit code {answer.code} without a word"
        super().__init__(f"{' '.join(argv[:5])} ...: {said}\n  what to do: {known.advice}")
        self.said, self.advice = said, known.advice
        self.kind: Kind = known.kind
        self.code = answer.code


class Runner(Protocol):
    """What runs commands; `dry` runs print them only."""

    dry: bool

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", seconds: float = READ_SECONDS
    ) -> Answer:
        """Runs one command to its end."""
        ...


class Gcloud:
    """The real thing."""

    dry = False

    def __init__(self, environment: Mapping[str, str] | None = None, verbose: bool = False):
        self._environment = dict(os.environ if environment is None else environment)
        self._verbose = verbose

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", seconds: float = READ_SECONDS
    ) -> Answer:
        """Runs one command to its end.

        Raises:
          UserError: a word holds a secret, or there is no gcloud.
        """
        refuse_secrets(argv, self._environment, f"`{' '.join(argv[:5])} ...`")
        if self._verbose:
            print(f"+ {shlex.join(argv)}", file=sys.stderr, flush=True)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            done = subprocess.run(
                list(argv), input=data, capture_output=True, timeout=seconds, env=self._environment
            )
        except FileNotFoundError:
            raise UserError(
                f"{argv[0]} is not on PATH; install the Google Cloud CLI: "
                "https://cloud.google.com/sdk/docs/install"
            ) from None
        except subprocess.TimeoutExpired:
            return Answer(124, "", f"timed out after {seconds:.0f} s")
        return Answer(done.returncode, self._clean(done.stdout), self._clean(done.stderr))

    def _clean(self, data: bytes) -> str:
        return redact(data.decode("utf-8", errors="replace"), self._environment)


class DryRun:
    """Prints commands; `answer` is what they are taken to have said."""

    dry = True

    def __init__(
        self,
        answer: Callable[[Sequence[str]], Answer],
        environment: Mapping[str, str] | None = None,
    ):
        self._answer = answer
        self._environment = dict(os.environ if environment is None else environment)

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", seconds: float = READ_SECONDS
    ) -> Answer:
        """Prints one command."""
        refuse_secrets(argv, self._environment, f"`{' '.join(argv[:5])} ...`")
        print(shlex.join(argv), flush=True)
        return self._answer(argv)


class Reader:
    """Prints a command and runs it all the same: a question that a dry run needs answered."""

    dry = False

    def __init__(self, runner: Runner):
        self._runner = runner

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", seconds: float = READ_SECONDS
    ) -> Answer:
        """Prints and runs one command."""
        print(shlex.join(argv), flush=True)
        return self._runner.run(argv, stdin=stdin, seconds=seconds)


def must(runner: Runner, argv: Sequence[str], *, stdin: str | bytes = "", **limits: float) -> str:
    """The command's stdout.

    Raises:
      GcloudError: it failed.
    """
    answer = runner.run(argv, stdin=stdin, **limits)
    if not answer.ok:
        raise GcloudError(argv, answer)
    return answer.out
