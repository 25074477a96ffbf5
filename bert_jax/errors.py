"""Defines the errors that a user can cause, and parts of their messages.

The command line prints their message without a traceback and exits with `exit_code`. Any other
exception is a bug in bert_jax.
"""

import difflib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Reports a mistake that the user can correct.

    The message says what was found, where, what was expected, and what to do.
    """

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is otherwise pickled as a call with its message. Errors with other arguments
        # could not be loaded then: a pool of processes would report that a worker was killed.
        return _new_error, (type(self), self.args), self.__dict__


def _new_error(kind: type[UserError], args: tuple[Any, ...]) -> UserError:
    """Returns an unpickled error, without a call of `__init__`."""
    return kind.__new__(kind, *args)


class ConfigError(UserError):
    """Reports an invalid config: unknown field, wrong type, or impossible combination of values."""

    exit_code = 2


def check_range(
    field: str,
    value: float,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Raises a ConfigError unless a number is finite and within the bounds."""
    if (
        math.isfinite(value)
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    ):
        return
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    expected = " and ".join(
        f"{name} {bound}" for name, bound in bounds.items() if bound is not None
    )
    raise ConfigError(f"{field} is {value}, expected a number {expected}".rstrip())


class MissingExtraError(UserError, ImportError):
    """Reports that a feature needs an optional dependency, and how to install it."""

    def __init__(self, need: str, extra: str):
        super().__init__(
            f"{need}; install the extra [{extra}]: pip install 'bert_jax[{extra}]', or in a clone "
            f"pip install -e '.[{extra}]'"
        )


def closest_names(
    name: str, known: Iterable[str], *, num_names: int = 1, cutoff: float = 0.4
) -> list[str]:
    """Returns the known names that are most similar to a misspelled one, the closest first.

    Args:
      num_names: the most names to return.
      cutoff: the least similarity of a name, from 0 (any name) to 1 (equal).
    """
    return difflib.get_close_matches(name, list(known), n=num_names, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str], *, num_names: int = 1) -> str:
    """Returns "did you mean 'x'? " with the known names closest to `name`; "" if none is close."""
    closest = closest_names(name, known, num_names=num_names)
    return f"did you mean {' or '.join(map(repr, closest))}? " if closest else ""


def near_files(path: str | os.PathLike[str]) -> str:
    """Returns "did you mean 'train.csv'? " if the folder of a path has a similar name, else ""."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:  # there is no such folder, or it cannot be listed
        return ""
    return did_you_mean(name, closest_names(name, names, cutoff=0.75))


def describe_folder(folder: Path) -> str:
    """Returns what is at a path where a folder with certain files is expected."""
    if not folder.exists():
        return "no such folder"
    if folder.is_file():
        return "a file, not a folder"
    names = sorted(path.name for path in folder.iterdir())
    return "the folder has " + (", ".join(names[:8]) or "nothing")


def require_list_of_texts(texts: object) -> None:
    """Raises TypeError if one text is given where a list of texts is expected.

    Without this check, a str would be read as the list of its characters.
    """
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts, found the text {texts[:40]!r}")
