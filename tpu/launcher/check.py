"""What was looked at before anything is created, one line each, and what ends a launch."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
      fix: a command or a sentence.
      leaves_out: a zone that is not tried because of it.
    """

    level: Literal["OK", "WARN", "FAIL"]
    what: str
    found: str
    fix: str = ""
    leaves_out: str = ""

    def __str__(self) -> str:
        line = f"{self.level:4} {self.what}: {self.found}"
        return line + (f"\n       fix: {self.fix}" if self.fix and self.level != "OK" else "")


def refuse_failures(checks: list[Check]) -> None:
    """Raises when a check failed.

    Raises:
      ConfigError: names each with its remedy.
    """
    failed = [check for check in checks if check.level == "FAIL"]
    if failed:
        lines = "\n".join(f"  {check.what}: {check.found}; {check.fix}" for check in failed)
        raise ConfigError(f"not ready, and nothing was created:\n{lines}")


def usable(zones: tuple[str, ...], checks: list[Check]) -> tuple[str, ...]:
    """The zones that no check leaves out."""
    left_out = {check.leaves_out for check in checks}
    return tuple(zone for zone in zones if zone not in left_out)


def short(text: str) -> str:
    """The beginning of what gcloud said, on one line."""
    return " ".join(text.split())[:200]
