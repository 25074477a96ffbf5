"""Checks the recipe of a run: does the bundle contain it, and does it have these arguments?

The recipe is parsed but not executed, because that would need the packages that hosts install.
"""

import ast
import posixpath
from collections.abc import Iterable
from pathlib import Path

from bert_jax.config.recipes import SOURCE_ROOT, find_recipe
from bert_jax.errors import ConfigError, closest_names
from tpu.launcher.runs.bundle import Bundle

# Paths in the trainer's working directory: @code is the bundle, configs/ a link to its configs.
_CODE_PREFIX, _CONFIGS_PREFIX, _DATA_PREFIX = "@code/", "configs/", "@data/"


def check_recipe(arguments: tuple[str, ...], bundle: Bundle, root: Path) -> None:
    """Checks the job's arguments against the recipe that they name, if they name one.

    Args:
      root: folder that the bundle was packed from.

    Raises:
      ConfigError: the recipe is not in the bundle, an argument is unknown, or one is missing.
    """
    if arguments[0] == "glue":
        return
    words = [
        part
        for word in arguments[1:]
        for part in (word.split("=", 1) if word.startswith("--config=") else [word])
    ]
    recipe = next((word for word in words if word.endswith(".py") and "=" not in word), None)
    if recipe is None:
        recipe = _find_named_recipe(arguments[0], words)
    if recipe is None:
        return  # a task of `finetune`
    if recipe.startswith(_DATA_PREFIX):
        return  # the user's own recipe, which only hosts can read
    path = posixpath.normpath(recipe)
    name = path.removeprefix(_CODE_PREFIX)
    if name not in bundle.files or not path.startswith((_CODE_PREFIX, _CONFIGS_PREFIX)):
        raise ConfigError(
            f"recipe {recipe} will not exist on the hosts; they have the files below configs/, and "
            f"other files in git as @code/FILE{_suggest_nearest(name, bundle.files)}"
        )
    _check_recipe_arguments(
        recipe, _parse_assignments(arguments), ast.parse((root / name).read_bytes(), name)
    )


def _find_named_recipe(verb: str, words: list[str]) -> str | None:
    """Returns the file of the shipped recipe in `pretrain NAME` or `finetune --config NAME`."""
    if verb == "pretrain":
        # Words that are not a flag, an upload or an assignment; values of flags may be among them.
        plain = [word for word in words if not word.startswith(("-", "@")) and "=" not in word]
        if not plain:
            raise ConfigError("pretrain needs a recipe, for example configs/pretrain/bert.py")
        name = next(filter(_is_shipped, plain), plain[0])
    elif "--config" in words[:-1]:
        name = words[words.index("--config") + 1]
    else:
        return None
    try:
        return _find_shipped(name).relative_to(SOURCE_ROOT).as_posix()
    except ConfigError as error:
        problem = str(error).removeprefix(_CONFIGS_PREFIX)
        raise ConfigError(
            f"{problem}; a file of your own is uploaded with --data and named @data/..."
        ) from None


def _find_shipped(name: str) -> Path:
    # With its folder, because `find_recipe` takes files of the current folder first.
    return find_recipe(_CONFIGS_PREFIX + name.removeprefix(_CONFIGS_PREFIX))


def _is_shipped(name: str) -> bool:
    try:
        _find_shipped(name)
    except ConfigError:
        return False
    return True


def _check_recipe_arguments(recipe: str, assignments: list[str], tree: ast.Module) -> None:
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    function = next((node for node in found if node.name == "get_config"), None)
    if function is None or function.args.kwarg is not None:
        return  # its arguments cannot be determined by parsing
    parameters = function.args
    positional_names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    known = [*positional_names, *(each.arg for each in parameters.kwonlyargs)]
    for assignment in assignments:
        name, equals, _ = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--arg {assignment}: expected NAME=VALUE, for example size=tiny")
        if name not in known:
            raise ConfigError(
                f"--arg {assignment}: {recipe} has no argument {name!r}"
                f"{_suggest_nearest(name, known)}; it has {', '.join(known)}"
            )
    required = positional_names[: len(positional_names) - len(parameters.defaults)]
    defaults = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    required += [each.arg for each, default in defaults if default is None]
    for name in required:
        if not any(assignment.startswith(f"{name}=") for assignment in assignments):
            raise ConfigError(f"{recipe} needs --arg {name}=...")


def _parse_assignments(arguments: tuple[str, ...]) -> list[str]:
    """Returns the NAME=VALUE words of the last --arg, which is the one that `bert-jax` uses."""
    found: list[str] = []
    in_arg_flag = False
    for word in arguments:
        if word.startswith("--"):
            flag, equals, first = word.partition("=")
            in_arg_flag = flag in ("--arg", "--with")  # --with is its earlier name
            if in_arg_flag:
                found = [first] if equals else []
        elif in_arg_flag:
            found.append(word)
    return found


def _suggest_nearest(name: str, known: Iterable[str]) -> str:
    closest = closest_names(name, known)
    return f"; the nearest is {closest[0]}" if closest else ""
