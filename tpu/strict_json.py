"""Reads and writes dataclasses as JSON; every field must be present and no other key may be.

Uses only the standard library and runs on Python 3.10.
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
    """Returns a dataclass as JSON text."""
    return json.dumps(asdict(value), indent=2, sort_keys=True) + "\n"


def from_text(cls: type[T], text: str | bytes, source: str) -> T:
    """Parses JSON text into a dataclass; every field must be present and no other key may be.

    Args:
      source: URL or path of the text, for error messages.

    Raises:
      UserError: the text is not JSON, a key is unknown or missing, or a value is invalid.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{source} is not JSON: {error}") from None
    try:
        return _decode(cls, data, "")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _decode(annotation: Any, data: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_dataclass(annotation):
        return _decode_dataclass(annotation, data, path)
    if origin in (typing.Union, types.UnionType):  # `X | None` is the only union that is used
        present = next(each for each in arguments if each is not type(None))
        return None if data is None else _decode(present, data, path)
    if origin is tuple and isinstance(data, list):
        return tuple(_decode(arguments[0], each, f"{path}[{i}]") for i, each in enumerate(data))
    if origin is dict and isinstance(data, Mapping):
        return {key: _decode(arguments[1], each, f"{path}.{key}") for key, each in data.items()}
    if origin is Literal and data in arguments:
        return data
    if annotation is float and type(data) is int:
        return float(data)
    if type(data) is annotation:
        return data
    expected = (
        " or ".join(map(repr, arguments)) if origin is Literal else _describe_type(annotation)
    )
    raise ConfigError(f"{path or 'the JSON value'} is {data!r}, expected {expected}")


def _decode_dataclass(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or 'the JSON value'} is {data!r}, expected an object")
    hints, known = typing.get_type_hints(cls), [each.name for each in fields(cls)]
    prefix = f"{path}." if path else ""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ConfigError(f"unknown key {prefix}{unknown[0]}; known keys: {', '.join(known)}")
    missing = [key for key in known if key not in data]
    if missing:
        raise ConfigError(f"key {prefix}{missing[0]} is missing")
    return cls(**{key: _decode(hints[key], data[key], f"{prefix}{key}") for key in known})


def _describe_type(annotation: Any) -> str:
    scalar_names = {
        str: "a string",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }
    container_names = {tuple: "a list", dict: "an object"}
    return scalar_names.get(annotation) or container_names.get(
        typing.get_origin(annotation), str(annotation)
    )
