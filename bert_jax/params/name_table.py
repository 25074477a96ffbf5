"""Maps parameter paths to the tensor names of another format and back, by one table.

A row pairs a path with a name; `*` is the number of the layer in both. A tensor that no row names
is an error. A tensor that the conversion leaves out has a row of its own, with the reason.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.errors import UserError
from bert_jax.params.paths import PathTable


@dataclass(frozen=True)
class NameMapping:
    """Pairs a parameter path with a tensor name; `transposed` if the file has the transpose."""

    internal: str
    external: str
    transposed: bool = False


@dataclass(frozen=True)
class Ignored:
    """Names a tensor of the other format that is not a parameter, with the reason."""

    external: str
    reason: str


class NameTable:
    """Holds the rows of one format, for use in either direction.

    Args:
      separator: what separates the segments of the format's names, "." or "/".
    """

    def __init__(
        self, name: str, rows: Sequence[NameMapping], ignored: Sequence[Ignored], separator: str
    ):
        self.name = name
        self._separator = separator
        self._by_internal: PathTable[NameMapping] = PathTable(
            name, [(row.internal, row) for row in rows]
        )
        self._by_external: PathTable[NameMapping | Ignored] = PathTable(
            name, [(self._path(row.external), row) for row in (*rows, *ignored)]
        )

    def from_external(
        self, tensors: Mapping[str, np.ndarray], source: str
    ) -> dict[str, np.ndarray]:
        """Returns tensors of the other format by parameter path; transposed ones are views.

        Args:
          source: the file, for messages.

        Raises:
          UserError: the table has no row for a tensor (named), or two tensors are one parameter.
        """
        found: dict[str, np.ndarray] = {}
        for name, tensor in tensors.items():
            row = self._find_row(name, source)
            if isinstance(row, Ignored):
                continue
            internal = _fill_wildcards(row.internal, self._path(row.external), self._path(name))
            if internal in found:
                raise UserError(
                    f"{source}: two tensors are the parameter {internal}; one is {name!r}"
                )
            found[internal] = tensor.T if row.transposed else tensor
        return found

    def to_external(self, flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns parameters by tensor name of the other format; the inverse of `from_external`."""
        found = {}
        for path, leaf in flat.items():
            row = self._by_internal[path]
            name = _fill_wildcards(self._path(row.external), row.internal, path).replace(
                "/", self._separator
            )
            found[name] = leaf.T if row.transposed else leaf
        return found

    def parameter_names(self, names: Iterable[str], source: str) -> list[str]:
        """Returns the names that are parameters, sorted; UserError for a name without a row."""
        return sorted(n for n in names if isinstance(self._find_row(n, source), NameMapping))

    def _find_row(self, name: str, source: str) -> NameMapping | Ignored:
        try:
            return self._by_external[self._path(name)]
        except KeyError:
            raise UserError(
                f"{source}: unknown tensor {name!r}; names of the format {self.name!r} look like "
                f"{self._example()!r}; check that config.json belongs to these weights"
            ) from None

    def _example(self) -> str:
        return self._by_external.rows[0][1].external

    def _path(self, name: str) -> str:
        return name.replace(self._separator, "/")


def _fill_wildcards(target: str, pattern: str, name: str) -> str:
    """Replaces each `*` of `target` by what the `*` of `pattern` matches in `name`."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "([^/]*)"), name)
    assert found is not None, f"{name} was matched by {pattern}"
    for value in found.groups():
        target = target.replace("*", value, 1)
    return target
