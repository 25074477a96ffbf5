"""Turns a frozen dataclass into the flags of a command, and a parsed command into the dataclass.

    @dataclass(frozen=True, kw_only=True)
    class Arguments:
        model: str = positional("MODEL", "run folder or exported model")
        batch_size: int = flag("N", "sequences computed at once", 32)
        truncation: Literal["head", "tail"] | None = flag("", "which part of a long text is read")

A field is the one place where a flag's name (`--batch-size`), type, default and help are defined.
Combinations of flags are checked in the `__post_init__` of the dataclass. The annotation decides
how values are parsed: `tuple[T, ...]` takes several, `Literal` is a choice, and `bool` without
`switch` makes `--name` and `--no-name`. Inherited fields are flags that several commands share.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from bert_jax.errors import ConfigError

T = TypeVar("T")

REQUIRED: Any = dataclasses.MISSING
"""The default of a flag that must be given."""


def flag(
    metavar: str | tuple[str, ...],
    help: str,
    default: Any = None,
    *,
    group: str = "",
    **settings: Any,
) -> Any:
    """Makes a field that `--name` sets.

    Args:
      metavar: what stands for the value in `--help`; "" for the choices or the name.
      help: a noun phrase; " (default: ...)" is added to it unless it has one.
      group: heading in `--help`.
      settings: further arguments of `add_argument`, such as `type`, a function of the word, which
        may raise ValueError or argparse.ArgumentTypeError.
    """
    settings |= {"help": help, "metavar": metavar or None}
    return dataclasses.field(default=default, metadata={"group": group, "settings": settings})


def positional(metavar: str, help: str, default: Any = REQUIRED, **settings: Any) -> Any:
    """Makes a field that a positional argument sets, which is optional if it has a `default`."""
    settings |= {"help": help, "metavar": metavar}
    metadata = {"group": "", "settings": settings, "positional": True}
    return dataclasses.field(default=default, metadata=metadata)


def switch(help: str, default: bool | None = False, *, group: str = "") -> Any:
    """Makes a field that `--name` sets to True."""
    return flag("", help, default, group=group, action="store_true")


def add_flags(parser: argparse.ArgumentParser, arguments: type, common: Sequence[str] = ()) -> None:
    """Adds the fields of a dataclass to a parser, optional positional arguments last.

    Args:
      common: the fields that most users need, which `--help` lists first, in this order; the others
        follow in their groups, and those without a group at the end. (): no such order.
    """

    def order(field: "dataclasses.Field[Any]") -> tuple[int, bool]:
        # argparse fills positional words in order, so those with a default come last.
        if not common or "positional" in field.metadata:
            return 0, _may_be_omitted(field)
        is_common, has_group = field.name in common, bool(field.metadata["group"])
        rank = common.index(field.name) if is_common else len(common) + (not has_group)
        return rank, False

    hints, usage = typing.get_type_hints(arguments), list[argparse.Action]()
    groups: dict[str, Any] = {"": parser}
    for field in sorted(dataclasses.fields(arguments), key=order):
        group = field.metadata["group"]
        if "positional" in field.metadata or field.name in common:
            group = ""
        elif common and not group:
            group = "other options"
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        settings = {**_settings_of_type(field, hints[field.name]), **field.metadata["settings"]}
        # `add_argument` raises a TypeError if a switch has a metavar.
        if settings["metavar"] is None or settings.get("action") == "store_true":
            settings.pop("metavar")
        # argparse formats help with %, so that a percent sign is written twice.
        help_text = settings["help"] + _default_text(field, settings["help"])
        settings["help"] = help_text.replace("%", "%%")
        is_positional = field.metadata.get("positional", False)
        if not is_positional:
            settings["required"] = field.default is REQUIRED
        name = field.name if is_positional else flag_name(field.name)
        # A flag that is not given leaves no attribute, and the dataclass has the default.
        added = groups[group].add_argument(name, default=argparse.SUPPRESS, **settings)
        if is_positional or field.default is REQUIRED:
            usage.append(added)
    # The usage of argparse has all flags, which can be 25 lines above an error message.
    words = [_usage(each) for each in sorted(usage, key=lambda each: bool(each.option_strings))]
    if len(words) < len(dataclasses.fields(arguments)):
        words.append("[OPTION ...]")
    parser.usage = " ".join(["%(prog)s", *words])


def _usage(argument: argparse.Action) -> str:
    """Returns a word of the usage: "MODEL", "[TEXT ...]" or "--run FOLDER"."""
    metavar = argument.metavar or argument.dest.upper()
    value = f"{metavar} ..." if argument.nargs in ("+", "*") else str(metavar)
    text = " ".join([*argument.option_strings, value])
    return f"[{text}]" if argument.nargs in ("?", "*") else text


def _may_be_omitted(field: "dataclasses.Field[Any]") -> bool:
    return "positional" in field.metadata and field.default is not REQUIRED


def _settings_of_type(field: "dataclasses.Field[Any]", hint: Any) -> dict[str, Any]:
    """Returns the arguments of `add_argument` that follow from the type of a field."""
    settings = field.metadata["settings"]
    if "type" in settings or settings.get("action") == "store_true":
        return {}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (member for member in typing.get_args(hint) if member is not types.NoneType)
    found: dict[str, Any] = {}
    if typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
        if settings.get("action") != "append":
            found["nargs"] = "*" if _may_be_omitted(field) else "+"
            if "positional" not in field.metadata:
                found["action"] = "extend"  # `--set a=1 --set b=2` is `--set a=1 b=2`
    elif _may_be_omitted(field):
        found["nargs"] = "?"
    if typing.get_origin(hint) is typing.Literal:
        return {**found, "choices": typing.get_args(hint)}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {**found, "type": hint}


def _default_text(field: "dataclasses.Field[Any]", help_text: str) -> str:
    value = field.default
    is_shown = not (value is None or value is False or value is REQUIRED or value in ("", ()))
    if not is_shown or "(default" in help_text:
        return ""
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f" (default: {shown})"


def flag_name(field: str) -> str:
    """Returns "--batch-size" for "batch_size"."""
    return f"--{field.replace('_', '-')}"


def from_namespace(arguments: type[T], namespace: argparse.Namespace) -> T:
    """Makes the dataclass of `add_flags` from a parsed command.

    Raises:
      ConfigError: flags are given that exclude each other, or that a value needs others.
    """
    values = vars(namespace)
    given = {f.name: values[f.name] for f in _fields(arguments) if f.name in values}
    return arguments(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def given(args: Any, *names: str, of: type | None = None) -> dict[str, Any]:
    """Returns {field: value} of the flags that were given with another value than their default.

    Args:
      names: fields to look at; none: all fields of the class `of`.
    """
    defaults = {field.name: field.default for field in _fields(of or type(args))}
    values = {name: getattr(args, name) for name in names or defaults}
    return {name: value for name, value in values.items() if value != defaults[name]}


def first_given(args: Any, *names: str, of: type | None = None) -> str | None:
    """Returns the first of the flags that was given, as "--batch-size"; None if none was."""
    return next((flag_name(name) for name in given(args, *names, of=of)), None)


def check_needs(args: Any, needed: str, *names: str) -> None:
    """Raises a ConfigError if a flag was given without the flag `needed`, so it has no effect.

    Args:
      needed: the field of the flag without which `names` do nothing.
      names: fields whose defaults mean that they were not given.
    """
    if not given(args, needed) and (name := first_given(args, *names)):
        raise ConfigError(
            f"{name} needs {flag_name(needed)}, which is not given; add it, or remove {name}"
        )


def _fields(arguments: type) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(typing.cast(Any, arguments))
