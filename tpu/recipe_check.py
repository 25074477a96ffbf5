"""Checks the recipe of a job before anything is rented: do hosts have it, with these arguments?

The recipe is parsed but not executed, because the launcher needs no installed packages.
"""

import ast
import posixpath
from collections.abc import Sequence
from pathlib import Path

from bert_jax.config.recipes import SOURCE_ROOT, find_recipe
from bert_jax.errors import ConfigError, closest_names


def check_recipe(arguments: Sequence[str], files: Sequence[str]) -> None:
    """Checks the arguments of a job against the recipe that they name, if they name one.

    Args:
      arguments: a verb of `bert-jax` and its arguments.
      files: the files that the hosts get.

    Raises:
      ConfigError: hosts do not have the recipe, or an argument is unknown or missing.
    """
    recipe = _find_recipe(arguments)
    if recipe is None or recipe.startswith("@data/"):
        return  # a task of `finetune`, `glue`, or a recipe that only hosts can read
    path = posixpath.normpath(recipe).removeprefix("@code/")
    if path not in files or not (recipe.startswith("@code/") or path.startswith("configs/")):
        raise ConfigError(
            f"recipe {recipe} will not exist on the hosts; they have the files below configs/, and "
            f"other files in git as @code/FILE{_nearest(path, files)}"
        )
    _check_arguments(recipe, _assignments(arguments), SOURCE_ROOT / path)


def _find_recipe(arguments: Sequence[str]) -> str | None:
    """Returns the recipe as it was written, or the path of a shipped one that was named."""
    words = [part for word in arguments[1:] for part in _split_config(word)]
    file = next((word for word in words if word.endswith(".py") and "=" not in word), None)
    if file is not None:
        return file
    if arguments[0] == "pretrain":
        # Neither flags nor assignments nor uploads; values of other flags may be among them.
        names = [word for word in words if not word.startswith(("-", "@")) and "=" not in word]
        if not names:
            raise ConfigError("pretrain needs a recipe, for example configs/pretrain/bert.py")
    elif "--config" in words[:-1]:
        names = [words[words.index("--config") + 1]]
    else:
        return None
    problem = ""
    for name in names:
        try:
            # With its folder, because `find_recipe` takes files of the current folder first.
            found = find_recipe("configs/" + name.removeprefix("configs/"))
            return found.relative_to(SOURCE_ROOT).as_posix()
        except ConfigError as error:
            problem = str(error).removeprefix("configs/")
    raise ConfigError(f"{problem}; a file of your own is uploaded with --data and named @data/...")


def _split_config(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--config=") else [word]


def _assignments(arguments: Sequence[str]) -> list[str]:
    """Returns the NAME=VALUE words of the last --arg, which is the one that `bert-jax` uses."""
    found: list[str] = []
    in_flag = False
    for word in arguments:
        if word.startswith("--"):
            flag, equals, first = word.partition("=")
            in_flag = flag == "--arg"
            if in_flag:
                found = [first] if equals else []
        elif in_flag:
            found.append(word)
    return found


def _check_arguments(recipe: str, assignments: Sequence[str], file: Path) -> None:
    functions = (
        node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.FunctionDef)
    )
    function = next((each for each in functions if each.name == "get_config"), None)
    if function is None or function.args.kwarg is not None:
        return  # its arguments cannot be determined by parsing
    parameters = function.args
    positional = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    known = [*positional, *(each.arg for each in parameters.kwonlyargs)]
    for assignment in assignments:
        name, equals, _ = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--arg {assignment}: expected NAME=VALUE, for example size=tiny")
        if name not in known:
            raise ConfigError(
                f"--arg {assignment}: {recipe} has no argument {name!r}{_nearest(name, known)}; it "
                f"has {', '.join(known)}"
            )
    required = positional[: len(positional) - len(parameters.defaults)]
    required += [
        each.arg
        for each, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if default is None
    ]
    given = {assignment.partition("=")[0] for assignment in assignments}
    for name in required:
        if name not in given:
            raise ConfigError(f"{recipe} needs --arg {name}=...")


def _nearest(name: str, known: Sequence[str]) -> str:
    found = closest_names(name, known)
    return f"; the nearest is {found[0]}" if found else ""
