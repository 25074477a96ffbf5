"""Two-way tables between our parameter paths and the names of another format.

A row pairs our path with their name; `*` stands for the layer's number in both. A tensor that no
row names is an error, and so is a row that finds nothing: what a conversion leaves out stands in
the table, with the reason.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.errors import UserError
from bert_jax.params.paths import PathTable


@dataclass(frozen=True)
class NameMapping:
    """One parameter: our path, their name, and whether a matrix is transposed between them."""

    internal: str
    external: str
    transposed: bool = False


@dataclass(frozen=True)
class Ignored:
    """A tensor of theirs that is left out, with the reason."""

    external: str
    reason: str


class NameTable:
    """The rows of one format, read in either direction.

    Args:
      separator: what parts the segments of their names, "." or "/".
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
        """Their tensors by our paths. A transposed one is a view: nothing is copied.

        Raises:
          UserError: the table does not know a tensor (named), or two of them are one parameter.
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
        """Parameters by path, {"a/b": leaf}, as their tensors; the inverse of `from_theirs`."""
        found = {}
        for path, leaf in flat.items():
            row = self._by_internal[path]
            name = _fill_wildcards(self._path(row.external), row.internal, path).replace(
                "/", self._separator
            )
            found[name] = leaf.T if row.transposed else leaf
        return found

    def parameter_names(self, names: Iterable[str], source: str) -> list[str]:
        """Those of `names` that are parameters, sorted; UserError for a name that is unknown."""
        return sorted(n for n in names if isinstance(self._find_row(n, source), NameMapping))

    def _find_row(self, name: str, source: str) -> NameMapping | Ignored:
        try:
            return self._by_external[self._path(name)]
        except KeyError:
            raise UserError(
                f"{source}: the tensor {name!r} is not a part of BERT or its heads "
                f"(table {self.name!r}); expected names such as {self._example()!r}"
            ) from None

    def _example(self) -> str:
        return self._by_external.rows[0][1].external

    def _path(self, name: str) -> str:
        return name.replace(self._separator, "/")


def _fill_wildcards(target: str, pattern: str, name: str) -> str:
    """`target` with its `*` replaced by what stands in `name` at those of `pattern`."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "([^/]*)"), name)
    assert found is not None, f"{name} was matched by {pattern}"
    for value in found.groups():
        target = target.replace("*", value, 1)
    return target
