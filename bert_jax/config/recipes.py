"""Finds recipes, also the shipped ones by name, and calls them with arguments of the command line.

A recipe is a Python file with a function `get_config(...)` that returns an Experiment or, for
`bert-jax curate`, a CurationConfig. The shipped ones are in `configs/`: in a checkout next to the
package, in an installed wheel below `bert_jax/_source/`.
"""

import contextlib
import importlib.util
import inspect
import json
import os
import traceback
import types
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import check_given_once, from_json, unknown_field
from bert_jax.errors import ConfigError, UserError, did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]
# setup.py writes this folder into wheels; a checkout has the same files in its root.
_INSTALLED_SOURCE = _PACKAGE / "_source"
SOURCE_ROOT = _INSTALLED_SOURCE if _INSTALLED_SOURCE.is_dir() else _PACKAGE.parent
"""The folder that contains `configs/`, with the recipes, and `tpu/`, with the launcher."""

_PREFIX, _SUFFIX = "configs/", ".py"


def shipped_recipes() -> dict[str, Path]:
    """Returns the file of every shipped recipe by its name, such as "pretrain/bert"."""
    folder = SOURCE_ROOT / _PREFIX
    files = sorted(folder.rglob(f"*{_SUFFIX}"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find_recipe(recipe: str | Path) -> Path:
    """Returns the file of a recipe.

    Args:
      recipe: the path of a file, or else the name of a shipped recipe: "small_corpus",
        "pretrain/small_corpus" or "configs/pretrain/small_corpus.py".

    Raises:
      ConfigError: there is no such file or name; the message has the nearest names.
    """
    path = Path(recipe)
    # A file wins over a shipped recipe of the same name.
    if path.is_file():
        return path
    written = str(recipe)
    name = written
    if written.startswith(_PREFIX):
        name = written.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    recipes = shipped_recipes()
    for full_name, file in recipes.items():
        if name in (full_name, _short_name(full_name)):
            return file
    short_name = _short_name(written).removesuffix(_SUFFIX)
    hint = did_you_mean(short_name, map(_short_name, recipes), num_names=3)
    raise ConfigError(
        f"{recipe}: no such recipe; {hint}expected the path of a Python file or a name that "
        "`bert-jax recipes` lists"
    )


def _short_name(name: str) -> str:
    return name.rpartition("/")[2]


def load_recipe(recipe: str | Path) -> Callable[..., Any]:
    """Returns the `get_config` function of a recipe, given its file or the name of a shipped one.

    Raises:
      ConfigError: there is no such recipe, or its file defines no `get_config`.
    """
    path = find_recipe(recipe)
    module = import_file(path, "recipe")
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(
            f"{recipe}: no function get_config; a recipe defines get_config(...) -> Experiment"
        )
    return module.get_config


def call_recipe(get_config: Callable[..., Any], assignments: Sequence[str], file: str) -> Any:
    """Calls a recipe with "name=value" arguments, typed by its signature.

    Raises:
      ConfigError: an argument is unknown, missing, or of the wrong type, or the signature does not
        say which type it has.
    """
    path = Path(getattr(getattr(get_config, "__code__", None), "co_filename", file))
    with errors_of_user_code(path, "recipe"):
        parameters = inspect.signature(get_config, eval_str=True).parameters
    arguments: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--arg {assignment}: expected NAME=VALUE, as in size=tiny")
        if name not in parameters:
            raise unknown_field(f"--arg {assignment}", name, list(parameters))
        check_given_once("--arg", name, text, seen)
        annotation = parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            raise ConfigError(
                f"{file}: the parameter {name!r} of get_config has no type; add one, as in "
                f"`{name}: str`"
            )
        try:
            # A parameter of type str takes the text as it is: --arg name=1 is the name "1".
            value = text if annotation is str else json.loads(text)
        except json.JSONDecodeError:
            value = text
        arguments[name] = from_json(annotation, value, f"--arg {name}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise ConfigError(f"{file} needs --arg {name}=...")
    with errors_of_user_code(path, "recipe"):
        return get_config(**arguments)


def import_file(path: Path, kind: str) -> types.ModuleType:
    """Runs a Python file that a user wrote, and returns its module.

    Args:
      kind: what the file is, for messages, such as "recipe".

    Raises:
      ConfigError: it is not a Python file, or it fails; the message has the line and the error.
    """
    # The path becomes the `co_filename` that `errors_of_user_code` looks for.
    spec = importlib.util.spec_from_file_location(f"{kind}_{path.stem}", os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: a {kind} is a Python file; expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    with errors_of_user_code(path, kind):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def errors_of_user_code(path: Path, kind: str) -> Generator[None]:
    """Reports any error of a user's file with its line; it is not an error of this package."""
    try:
        yield
    except UserError:
        raise
    # SystemExit too, because a recipe that calls sys.exit would end the command without a message.
    except (Exception, SystemExit) as error:
        file = os.path.abspath(path)
        lines = [
            line
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename == file
        ]
        if isinstance(error, SyntaxError) and error.filename == file:
            lines = [error.lineno or 0]
        location = f"{path}, line {lines[-1]}" if lines else f"{path}"
        raise ConfigError(
            f"{location}: the {kind} raised {type(error).__name__}: {error}"
        ) from error
