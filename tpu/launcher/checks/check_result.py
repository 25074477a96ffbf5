"""Defines the result of one check, and what failed checks do to a launch."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError


@dataclass(frozen=True)
class CheckResult:
    """Holds the result of one check.

    Attributes:
      fix: what to do about it: a command or a sentence.
      excluded_zone: a zone that is not used because of this result.
    """

    level: Literal["OK", "WARN", "FAIL"]
    name: str
    found: str
    fix: str = ""
    excluded_zone: str = ""

    def __str__(self) -> str:
        line = f"{self.level:4} {self.name}: {self.found}"
        return line + (f"\n       fix: {self.fix}" if self.fix and self.level != "OK" else "")


def raise_on_failures(checks: list[CheckResult]) -> None:
    """Raises if a check failed.

    Raises:
      ConfigError: lists the failed checks and how to fix them.
    """
    failed = [check for check in checks if check.level == "FAIL"]
    if failed:
        lines = "\n".join(f"  {check.name}: {check.found}; {check.fix}" for check in failed)
        raise ConfigError(f"checks failed, so nothing was created:\n{lines}")


def usable_zones(zones: tuple[str, ...], checks: list[CheckResult]) -> tuple[str, ...]:
    """Returns the zones that no check excludes."""
    excluded = {check.excluded_zone for check in checks}
    return tuple(zone for zone in zones if zone not in excluded)


def truncate_message(text: str) -> str:
    """Returns the first 200 characters of a message, on one line."""
    return " ".join(text.split())[:200]
