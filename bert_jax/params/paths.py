"""Maps nested parameters to paths such as "encoder/layers/0/attention/query/kernel", and back.

Whatever depends on the parameter (sharding axes, weight decay, conversion) is a `PathTable`: rows
of a path pattern and a value. `*` matches one path segment, `**` any number of them. A path that no
row matches, or that two rows match, is an error, so that no parameter is treated by accident.
"""

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")

ADAPTER = "adapter"
"""Name under which a model has the parameters of an adapter, by path of the adapted module."""

LAYER_PREFIX = re.compile(r"encoder/(?:groups/\d+/)?layers/\d+/")
"""Matches the start of the path of a parameter of an encoder layer."""

GENERATOR, TEACHER = "generator", "teacher"
AUXILIARY_NETWORKS = (GENERATOR, TEACHER)
"""Names under which a run has a second network, which is not part of the model that it makes.

The parameters of the model are at the root; the second network's are in one subtree.
"""

STATISTICS = "statistics"
"""Name under which a run has running averages that its objective updates, not the optimizer."""


def count_parameters(params: Mapping[str, Any]) -> tuple[int, int]:
    """Counts the elements of arrays by path: those outside of the teacher, and the teacher's."""
    counts = {path: math.prod(leaf.shape) for path, leaf in params.items()}
    in_teacher = sum(n for path, n in counts.items() if path.startswith(f"{TEACHER}/"))
    return sum(counts.values()) - in_teacher, in_teacher


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens a nested dict into one level whose keys are joined by "/"."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            flat.update(flatten(value, path))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nests a dict by its paths; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def fingerprint(params: Mapping[str, Any]) -> str:
    """Hashes names, shapes and values of nested arrays: 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for path, leaf in sorted(flatten(params).items()):
        array = np.ascontiguousarray(leaf)
        # With the shape, because transposed or reshaped arrays may have the same bytes.
        digest.update(f"{path} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def without_auxiliary_networks(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested parameters of the model that a run makes, without what else it has."""
    others = (*AUXILIARY_NETWORKS, STATISTICS)
    return {name: tree for name, tree in params.items() if name not in others}


def map_with_path(function: Callable[[str, Any], Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Applies `function(path, leaf)` to every leaf of a nested dict."""
    return unflatten({path: function(path, leaf) for path, leaf in flatten(tree).items()})


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = [
        r".*" if segment == "**" else re.escape(segment).replace(r"\*", "[^/]*")
        for segment in pattern.split("/")
    ]
    # "**" also matches no segment, so the separator beside it is optional.
    return re.compile("/".join(parts).replace("/.*", "(?:/.*)?").replace(".*/", "(?:.*/)?") + r"\Z")


def matches(pattern: str, path: str) -> bool:
    """Returns whether a path pattern matches a whole path."""
    return _regex(pattern).match(path) is not None


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Returns whether one of several path patterns matches a whole path."""
    return any(matches(pattern, path) for pattern in patterns)


class PathTable(Generic[T]):
    """Maps every path to the value of exactly one row, whose pattern matches the path."""

    def __init__(self, name: str, rows: Sequence[tuple[str, T]]):
        self.name = name
        self.rows = tuple(rows)
        self._found: dict[str, T] = {}

    def __getitem__(self, path: str) -> T:
        """Returns the value of the row that matches `path`; KeyError if none or several do."""
        if path in self._found:
            return self._found[path]
        matching_rows = [
            (pattern, value) for pattern, value in self.rows if _regex(pattern).match(path)
        ]
        if len(matching_rows) != 1:
            found = (
                "no row matches"
                if not matching_rows
                else f"rows {[p for p, _ in matching_rows]} all match"
            )
            raise KeyError(f"table {self.name!r}: {found} the parameter {path!r}")
        self._found[path] = matching_rows[0][1]
        return self._found[path]

    def explain(self, paths: Iterable[str]) -> list[tuple[str, str, T]]:
        """Returns (path, the pattern that matches it, value) for each path."""
        rows = []
        for path in paths:
            value = self[path]
            pattern = next(p for p, _ in self.rows if _regex(p).match(path))
            rows.append((path, pattern, value))
        return rows
