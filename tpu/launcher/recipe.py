"""A run's recipe before it is paid for: has the bundle its file, and the file these arguments?

The file is parsed and not run: that would need what hosts have installed.
"""

import ast
import difflib
import posixpath
from collections.abc import Iterable
from pathlib import Path

from bert_jax.errors import ConfigError
from tpu.launcher.bundle import Bundle

# What stands for the bundle in the folder where trainers work; a link to its configs is there, too.
_CODE, _CONFIGS, _DATA = "@code/", "configs/", "@data/"


def check_recipe(words: tuple[str, ...], code: Bundle, root: Path) -> None:
    """Holds the words for `bert-jax` against the recipe that they name, if they name one.

    Args:
      root: what the bundle was packed from.

    Raises:
      ConfigError: hosts will have no such file; it has no such argument, or needs another one.
    """
    if words[0] == "glue":
        return
    named = next((word for word in words[1:] if word.endswith(".py") and "=" not in word), None)
    if named is None:
        if words[0] == "pretrain":
            raise ConfigError("pretrain needs a recipe, as configs/pretrain/bert.py")
        return  # a task of `finetune`
    if named.startswith(_DATA):
        return  # of the user's own, and only hosts see it
    path = posixpath.normpath(named)
    name = path.removeprefix(_CODE)
    if name not in code.files or not path.startswith((_CODE, _CONFIGS)):
        raise ConfigError(
            f"recipe {named}: hosts will not have it; they have files below configs/, and others "
            f"that git lists as @code/FILE{_nearest(name, code.files)}"
        )
    _check_arguments(named, _assignments(words), ast.parse((root / name).read_bytes(), name))


def _check_arguments(named: str, given: list[str], tree: ast.Module) -> None:
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    function = next((node for node in found if node.name == "get_config"), None)
    if function is None or function.args.kwarg is not None:
        return  # what it takes cannot be seen from here
    taken = function.args
    plain = [each.arg for each in (*taken.posonlyargs, *taken.args)]
    known = [*plain, *(each.arg for each in taken.kwonlyargs)]
    for assignment in given:
        name, equals, _ = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--with {assignment}: expected NAME=VALUE, as in size=tiny")
        if name not in known:
            raise ConfigError(
                f"--with {assignment}: {named} has no argument {name!r}{_nearest(name, known)}; "
                f"it has {', '.join(known)}"
            )
    needed = plain[: len(plain) - len(taken.defaults)]
    defaults = zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    needed += [each.arg for each, default in defaults if default is None]
    for name in needed:
        if not any(assignment.startswith(f"{name}=") for assignment in given):
            raise ConfigError(f"{named} needs --with {name}=...")


def _assignments(words: tuple[str, ...]) -> list[str]:
    """The words that belong to --with; the last --with counts, as for `bert-jax`."""
    found: list[str] = []
    inside = False
    for word in words:
        if word.startswith("--"):
            flag, equals, first = word.partition("=")
            inside = flag == "--with"
            if inside:
                found = [first] if equals else []
        elif inside:
            found.append(word)
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; the nearest is {close[0]}" if close else ""
