"""Reads secrets from Secret Manager for the environment of the trainer.

Their values are never written to disk, to a command line or to a log.
"""

import subprocess

from bert_jax.errors import UserError

_TIMEOUT_SECONDS = 60
_PERMANENT_ERRORS = ("PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION")


class SecretError(UserError):
    """Reports that a secret cannot be read; `permanent` if a retry would not help."""

    def __init__(self, message: str, *, permanent: bool):
        super().__init__(message)
        self.permanent = permanent


def access_secret(secret: str) -> str:
    """Returns the value of projects/PROJECT/secrets/NAME/versions/VERSION.

    Raises:
      SecretError: it cannot be read. The message never contains the value.
    """
    _, project, _, name, _, version = secret.split("/")
    argv = ["gcloud", "secrets", "versions", "access", version]
    try:
        completed = subprocess.run(
            [*argv, f"--secret={name}", f"--project={project}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"{secret} cannot be read: {type(error).__name__}"
        raise SecretError(reason, permanent=False) from None
    if completed.returncode != 0:
        stderr = completed.stderr.decode(errors="replace").strip()
        reason = stderr.splitlines()[-1] if stderr else "no reason given"
        permanent = any(word in stderr for word in _PERMANENT_ERRORS)
        raise SecretError(f"{secret} cannot be read: {reason}", permanent=permanent)
    return completed.stdout.decode().rstrip("\n")
