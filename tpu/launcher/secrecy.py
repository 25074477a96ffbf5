"""What looks like a secret is never said: not in a command, not in a bundle, not on the screen."""

import os
import re
from collections.abc import Mapping, Sequence

from bert_jax.errors import UserError

# The shapes that well-known services give to their tokens.
TOKENS = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|ya29\.[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,}|AKIA[0-9A-Z]{16}|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abps]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8


def secret_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Value -> name of the variables that are called like secrets; paths to files are none."""
    return {
        value: name
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)
    }


def redact(text: str, environment: Mapping[str, str]) -> str:
    """The text without the values of secret variables and without anything shaped like a token."""
    for value, name in secret_values(environment).items():
        text = text.replace(value, f"[{name}]")
    return TOKENS.sub("[redacted]", text)


def refuse_secrets(words: Sequence[str], environment: Mapping[str, str], where: str) -> None:
    """Raises when a word holds a secret: words are readable in `ps`, in logs and in the bucket.

    Raises:
      UserError: says where, and by which variable or shape it was known; not what it is.
    """
    known = secret_values(environment)
    for word in words:
        held = [f"the value of ${name}" for value, name in known.items() if value in word]
        if TOKENS.search(word):
            held.append("something shaped like a token")
        if held:
            raise UserError(
                f"{where} holds {held[0]}; nothing was run. Store it with `gcloud secrets create` "
                "and pass --env-secret NAME=projects/PROJECT/secrets/NAME"
            )
