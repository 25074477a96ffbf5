"""Keeps secrets out of command lines, bundles and output, by variable name and by token format."""

import os
import re
from collections.abc import Mapping, Sequence

from bert_jax.errors import UserError

# Token formats of well-known services.
TOKEN_PATTERN = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|ya29\.[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,}|AKIA[0-9A-Z]{16}|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abps]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SECRET_NAME_PATTERN = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE
)
_MIN_SECRET_LENGTH = 8


def secret_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns {value: name} of variables with a secret-like name; skips values that are files."""
    return {
        value: name
        for name, value in environment.items()
        if _SECRET_NAME_PATTERN.search(name)
        and len(value) >= _MIN_SECRET_LENGTH
        and not os.path.exists(value)
    }


def redact(text: str, environment: Mapping[str, str]) -> str:
    """Replaces the values of secret variables, and everything that looks like a token."""
    for value, name in secret_values(environment).items():
        text = text.replace(value, f"[{name}]")
    return TOKEN_PATTERN.sub("[redacted]", text)


def reject_secrets(arguments: Sequence[str], environment: Mapping[str, str], source: str) -> None:
    """Raises if an argument contains a secret: arguments are visible in `ps` and in logs.

    Raises:
      UserError: names the variable or says that it looks like a token; never shows the value.
    """
    secrets = secret_values(environment)
    for argument in arguments:
        matches = [f"the value of ${name}" for value, name in secrets.items() if value in argument]
        if TOKEN_PATTERN.search(argument):
            matches.append("something that looks like a token")
        if matches:
            raise UserError(
                f"{source} contains {matches[0]}; nothing was run. Store it with `gcloud secrets "
                "create` and pass --env-secret NAME=projects/PROJECT/secrets/NAME"
            )
