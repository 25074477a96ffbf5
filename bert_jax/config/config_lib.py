"""Converts configs to and from JSON, applies `--set` overrides, and compares configs.

A config is a tree of frozen dataclasses. Where a field may hold one of several dataclasses
(`positions: Learned | Rotary`), JSON has the class name under "type". Only classes in the field's
annotation are accepted, so a file cannot make this module import other code.
Imports neither jax nor TensorFlow.
"""

import dataclasses
import functools
import glob
import hashlib
import json
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bert_jax.errors import ConfigError, did_you_mean

T = TypeVar("T")
TYPE_KEY = "type"


def to_json(config: Any) -> Any:
    """Converts a config to dicts, lists and scalars; a dataclass gets its class name as "type"."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values = {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {TYPE_KEY: type(config).__name__, **values}
    if isinstance(config, (tuple, list)):
        return [to_json(item) for item in config]
    if isinstance(config, Mapping):
        return {str(key): to_json(value) for key, value in config.items()}
    # Anything else, such as an array or a function, could not be compared when a run is resumed.
    if config is None or isinstance(config, (bool, int, float, str)):
        return config
    raise ConfigError(f"a config holds a {type(config).__name__}; only plain values are possible")


def from_json(annotation: Any, data: Any, path: str = "") -> Any:
    """Converts JSON data to a value of type `annotation`; the inverse of `to_json`.

    Args:
      path: path of the value in the config, for error messages.

    Raises:
      ConfigError: a key is unknown (the message names the nearest valid one) or missing, or a value
        has the wrong type.
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _from_json_union(typing.get_args(annotation), data, path)
    if dataclasses.is_dataclass(annotation):
        return _from_json_dataclass(annotation, data, path)
    if origin is tuple:
        item = typing.get_args(annotation)[0]
        if not isinstance(data, (list, tuple)):
            raise _wrong_type(path, annotation, data)
        return tuple(from_json(item, value, f"{path}[{i}]") for i, value in enumerate(data))
    # JSON has one type of number, and users write 1 for 1.0.
    if annotation is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if origin is typing.Literal:
        if data not in typing.get_args(annotation):
            allowed = ", ".join(map(repr, typing.get_args(annotation)))
            raise ConfigError(f"{path}: found {data!r}, expected one of {allowed}")
        return data
    if annotation is Any:
        return data
    wanted = types.NoneType if annotation is None else annotation
    # Not `isinstance`: True is an instance of int and would be accepted as a number.
    if type(data) is not wanted:
        raise _wrong_type(path, annotation, data)
    return data


def _from_json_union(members: tuple[Any, ...], data: Any, path: str) -> Any:
    classes = {m.__name__: m for m in members if isinstance(m, type)}
    if isinstance(data, str) and dataclasses.is_dataclass(classes.get(data)):
        data = {TYPE_KEY: data}  # a type by its name, with its defaults: --set ...=WarmupLinear
    if isinstance(data, Mapping) and TYPE_KEY in data:
        if data[TYPE_KEY] not in classes:
            raise ConfigError(
                f"{path}: unknown type {data[TYPE_KEY]!r}; possible: {', '.join(sorted(classes))}"
            )
        return from_json(classes[data[TYPE_KEY]], data, path)
    for member in sorted(members, key=lambda m: m is float):  # int before float keeps 3 an int
        try:
            return from_json(member, data, path)
        except ConfigError:
            continue
    raise _wrong_type(path, typing.Union[members], data)  # noqa: UP007 (members is a value)


def _from_json_dataclass(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong_type(path, cls, data)
    # The type may be left out where only one class is possible.
    if data.get(TYPE_KEY, cls.__name__) != cls.__name__:
        raise ConfigError(f"{path}: found type {data[TYPE_KEY]!r}, expected {cls.__name__!r}")
    hints = _hints(cls)
    values = {key: value for key, value in data.items() if key != TYPE_KEY}
    # An unknown key is an error and not ignored: a misspelled field would keep its default in
    # silence.
    for key in values:
        if key not in hints:
            raise unknown_field(_join(path, key), key, hints)
    try:
        return cls(**{k: from_json(hints[k], v, _join(path, k)) for k, v in values.items()})
    except TypeError as error:  # a required field is missing
        raise ConfigError(f"{path or cls.__name__}: {error}") from None


def override(config: T, assignments: Sequence[str]) -> T:
    """Returns `config` with all "a.b.c=value" applied; values are JSON, or bare words for strings.

    Fields of one config change together, so that those that depend on each other can be in any
    order. A value for "a" is set before values for "a.b".

    Raises:
      ConfigError: a field does not exist (the message names the nearest one), is given twice, or a
        value has the wrong type.
    """
    seen: dict[str, str] = {}
    changes: list[_Change] = []
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--set {assignment}: expected FIELD=VALUE, as in train.steps=1000")
        check_given_once("--set", path, text, seen)
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            # Bare words are strings, so that a shell needs no quotes inside quotes.
            value = text
        changes.append(_Change(path.split("."), value, path))
    return _replace(config, type(config), changes)


def check_given_once(flag: str, name: str, value: str, seen: dict[str, str]) -> None:
    """Adds NAME=VALUE of a flag to those `seen`; ConfigError if the name was given before."""
    if name in seen:
        raise ConfigError(
            f"{flag} {name} is given twice, as {seen[name]!r} and {value!r}; expected one value"
        )
    seen[name] = value


class _Change(NamedTuple):
    """Holds a value for the field that `keys` lead to, and the whole path for messages."""

    keys: list[str]
    value: Any
    path: str


def _replace(config: Any, annotation: Any, changes: Sequence[_Change]) -> Any:
    """Returns a value of a config with changes of it and of what is inside."""
    for change in changes:
        if not change.keys:
            config = from_json(annotation, change.value, change.path)
    by_key: dict[str, list[_Change]] = {}
    for change in changes:
        if change.keys:
            key, *rest = change.keys
            by_key.setdefault(key, []).append(change._replace(keys=rest))
    if not by_key:
        return config
    if isinstance(config, tuple):
        members = (annotation, *typing.get_args(annotation))  # it may be a union with None
        (item,) = (typing.get_args(m)[0] for m in members if typing.get_origin(m) is tuple)
        items = list(config)
        for key, inside in by_key.items():
            if not key.isdigit() or int(key) >= len(items):
                raise ConfigError(f"{inside[0].path}: {key!r} is not an index below {len(items)}")
            items[int(key)] = _replace(items[int(key)], item, inside)
        return tuple(items)
    new: dict[str, Any] = {}
    for key, inside in by_key.items():
        path = inside[0].path
        if not dataclasses.is_dataclass(config):
            raise ConfigError(f"{path}: {key!r} is beyond the last field; this is a plain value")
        hints = _hints(type(config))
        if key not in hints:
            raise unknown_field(path, key, hints)
        new[key] = _replace(getattr(config, key), hints[key], inside)
    return dataclasses.replace(typing.cast(Any, config), **new)


def unknown_field(path: str, key: str, known: Mapping[str, Any] | Sequence[str]) -> ConfigError:
    """Returns the error for a field that does not exist, which names the nearest known one."""
    hint = did_you_mean(key, known).strip() or f"fields here: {', '.join(known)}"
    return ConfigError(f"{path}: no field {key!r}; {hint}")


def _wrong_type(path: str, annotation: Any, data: Any) -> ConfigError:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    name = " or ".join(_type_name(member) for member in members)
    return ConfigError(f"{path or 'config'}: expected {name}, found {data!r}")


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)  # class variables too, which are no fields
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def fingerprint(config: Any) -> str:
    """Returns the first 16 hex digits of the sha256 of the config's canonical JSON."""
    # Sorted keys and no spaces: the order of the fields in a class does not change the hash.
    text = json.dumps(to_json(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flatten(data: Any, path: str = "") -> dict[str, Any]:
    """Flattens JSON data to {"a.b.0.c": scalar}; empty lists and dicts are values, too."""
    if isinstance(data, Mapping):
        items = [(str(key), value) for key, value in data.items()]
    elif isinstance(data, (list, tuple)):
        items = [(str(index), value) for index, value in enumerate(data)]
    else:
        return {path: data}
    if not items:
        return {path: data}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat.update(flatten(value, _join(path, key)))
    return flat


def diff(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """Returns (path, value in a, value in b) of each field that differs; None if it is absent.

    Two spellings of the path of one file or folder do not differ; see `is_same_path`.
    """
    flat_a, flat_b = flatten(a), flatten(b)
    return [
        (path, flat_a.get(path), flat_b.get(path))
        for path in sorted(flat_a.keys() | flat_b.keys())
        if flat_a.get(path) != flat_b.get(path)
        and not is_same_path(flat_a.get(path), flat_b.get(path))
    ]


def is_same_path(a: object, b: object) -> bool:
    """Returns whether two values are paths of one existing file or folder, or equal glob patterns.

    They may be relative or absolute, go through a symbolic link, or end in a slash.
    """
    if not (isinstance(a, str) and isinstance(b, str) and a and b) or "\0" in a + b:
        return False
    real_path = os.path.realpath(a)
    # Only existing paths, or two strings that are no paths could count as equal.
    is_path = glob.has_magic(real_path) or os.path.exists(real_path)
    return is_path and real_path == os.path.realpath(b)
