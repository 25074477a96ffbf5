"""Parses flags like gcloud: anywhere, `--name=value` or `--name value`, unknown ones rejected."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Flags that every command has.
EVERYWHERE = {
    "--project": "value",
    "--format": "value",
    "--quiet": "switch",
    "--verbosity": "value",
    "--account": "value",
}
SHORT = {"-r": "--recursive", "-R": "--recursive", "-n": "--no-clobber", "-q": "--quiet"}
SHORT |= {"-x": "--exclude", "-a": "--all-versions", "-l": "--long"}


class CloudError(Exception):
    """Holds the message after `ERROR: (gcloud.some.command) `; the command exits with `code`."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code


@dataclass
class Parsed:
    """Holds the arguments of a command."""

    positional: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)  # after --

    def value(self, name: str, default: str | None = None) -> str:
        """Returns a flag's value; without a default the flag is required."""
        found = self.flags.get(name, default)
        if found is None:
            raise CloudError(f"argument {name}: Must be specified.", 2)
        return found

    def has(self, name: str) -> bool:
        """Returns whether the flag was given."""
        return name in self.flags

    def labels(self) -> dict[str, str]:
        """Parses `--labels=a=b,c=d` into a dict."""
        return dict(
            pair.split("=", 1) for pair in self.flags.get("--labels", "").split(",") if pair
        )


def parse(words: list[str], known: Mapping[str, str]) -> Parsed:
    """Parses a command's arguments; `known` maps flags to "value" or "switch"."""
    table, parsed, pending = {**EVERYWHERE, **known}, Parsed(), list(words)
    while pending:
        word = pending.pop(0)
        if word == "--":
            parsed.rest = pending
            break
        if not word.startswith("-") or word == "-":
            parsed.positional.append(word)
            continue
        name, _, value = word.partition("=")
        name = SHORT.get(name, name)
        if name not in table:
            raise CloudError(f"unrecognized arguments: {word}", 2)
        if table[name] == "switch":
            parsed.flags[name] = "true"
        elif "=" in word:
            parsed.flags[name] = value
        elif pending:
            parsed.flags[name] = pending.pop(0)
        else:
            raise CloudError(f"argument {name}: expected one argument", 2)
    return parsed
