"""Dataclasses as JSON and back, strictly: every field must be there, and no other.

Standard library only, from Python 3.10 on.
"""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Literal, TypeVar

from bert_jax.errors import ConfigError, UserError

T = TypeVar("T")


def to_text(value: Any) -> str:
    """A dataclass as JSON."""
    return json.dumps(asdict(value), indent=2, sort_keys=True) + "\n"


def from_text(cls: type[T], text: str | bytes, where: str) -> T:
    """The inverse of `to_text`; every field must be there, and no other.

    Args:
      where: what is read, for the messages.

    Raises:
      UserError: not JSON, an unknown or missing key (named), a wrong type, or a wrong value.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}") from None
    try:
        return _read(cls, data, "")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _read(annotation: Any, data: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_dataclass(annotation):
        return _read_dataclass(annotation, data, path)
    if origin in (typing.Union, types.UnionType):  # X | None is the only one here
        present = next(each for each in arguments if each is not type(None))
        return None if data is None else _read(present, data, path)
    if origin is tuple and isinstance(data, list):
        return tuple(_read(arguments[0], each, f"{path}[{i}]") for i, each in enumerate(data))
    if origin is dict and isinstance(data, Mapping):
        return {key: _read(arguments[1], each, f"{path}.{key}") for key, each in data.items()}
    if origin is Literal and data in arguments:
        return data
    if annotation is float and type(data) is int:
        return float(data)
    if type(data) is annotation:
        return data
    expected = " or ".join(map(repr, arguments)) if origin is Literal else _plain(annotation)
    raise ConfigError(f"{path or 'the whole'} is {data!r}, expected {expected}")


def _read_dataclass(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or 'the whole'} is {data!r}, expected an object")
    hints, known = typing.get_type_hints(cls), [each.name for each in fields(cls)]
    inside = f"{path}." if path else ""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ConfigError(f"unknown key {inside}{unknown[0]}; known are {', '.join(known)}")
    missing = [key for key in known if key not in data]
    if missing:
        raise ConfigError(f"key {inside}{missing[0]} is missing")
    return cls(**{key: _read(hints[key], data[key], f"{inside}{key}") for key in known})


def _plain(annotation: Any) -> str:
    words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    outer = {tuple: "a list", dict: "an object"}
    return words.get(annotation) or outer.get(typing.get_origin(annotation), str(annotation))
