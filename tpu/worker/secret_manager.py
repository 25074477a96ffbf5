"""Secrets, from Secret Manager to the trainer's environment: never on disk, in argv, in a log."""

import html
import json
import subprocess
from collections.abc import Mapping

from bert_jax.errors import UserError

_SECONDS = 60
_SHORTEST = 4  # a shorter value would black out half of a log
_REFUSED = ("PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION")


class SecretError(UserError):
    """A secret cannot be read; `lasting` if asking again would not help."""

    def __init__(self, message: str, *, lasting: bool):
        super().__init__(message)
        self.lasting = lasting


def access(secret: str) -> str:
    """The value of projects/PROJECT/secrets/NAME/versions/VERSION.

    Raises:
      SecretError: it cannot be read; does not hold the value.
    """
    _, project, _, name, _, version = secret.split("/")
    words = ["gcloud", "secrets", "versions", "access", version]
    try:
        done = subprocess.run(
            [*words, f"--secret={name}", f"--project={project}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"{secret} cannot be read: {type(error).__name__}"
        raise SecretError(why, lasting=False) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        why = said.splitlines()[-1] if said else "no reason given"
        refused = any(word in said for word in _REFUSED)
        raise SecretError(f"{secret} cannot be read: {why}", lasting=refused)
    return done.stdout.decode().rstrip("\n")


class Redactor:
    """Blacks out the values of secrets in what a trainer says."""

    def __init__(self, secrets: Mapping[str, str]):
        lines = {
            (name, form)
            for name, text in secrets.items()
            for line in text.splitlines()
            for form in (
                line,
                json.dumps(line, ensure_ascii=False)[1:-1],
                html.escape(line),
            )  # as files quote it
        }
        # The longest first: one value may be part of another.
        self._lines = sorted(
            ((line, name) for name, line in lines if len(line) >= _SHORTEST),
            key=lambda r: -len(r[0]),
        )

    def __call__(self, text: str) -> str:
        """`text`, with <NAME> for each value."""
        for line, name in self._lines:
            text = text.replace(line, f"<{name}>")
        return text
