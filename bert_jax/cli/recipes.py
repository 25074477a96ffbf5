"""Runs `bert-jax recipes`: lists the shipped recipes with their arguments, or prints one."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bert_jax.config.flags import positional
from bert_jax.config.recipes import find_recipe, import_file, shipped_recipes

HELP = "list the recipes of `pretrain` with their arguments, or print the source of one"

EPILOG = """examples:
  bert-jax recipes
  bert-jax recipes small_corpus > my_recipe.py
  bert-jax pretrain my_recipe.py --run runs/mine --arg corpus=prepared/train

`pretrain`, `show-config`, `plan` and `simulate` take the name of a recipe or the path of a Python
file; `finetune` takes either with --config. Arguments in square brackets may be omitted.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the recipe to print."""

    name: str | None = positional("NAME", "recipe to print (default: list all recipes)", None)


def run(args: Arguments) -> None:
    """Prints the list, or the source of the named recipe."""
    if args.name is not None:
        print(find_recipe(args.name).read_text(), end="")
        return
    for name, file in shipped_recipes().items():
        recipe = import_file(file, "recipe")
        summary = (recipe.__doc__ or "").partition("\n")[0]
        print(f"{name}: {summary}")
        print(f"  --arg {' '.join(_arguments(recipe.get_config))}")


def _arguments(get_config: Callable[..., Any]) -> list[str]:
    """Returns NAME=TYPE for each required argument, and [NAME=DEFAULT] for each other one."""
    parameters = inspect.signature(get_config).parameters.values()
    return [
        f"{each.name}={_type_name(each.annotation)}"
        if each.default is each.empty
        else f"[{each.name}={_default(each.default)}]"
        for each in parameters
    ]


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation)).upper()


def _default(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)  # as --arg is parsed
