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
from bert_jax.paths import PathTable


@dataclass(frozen=True)
class Row:
    """One parameter: our path, their name, and whether a matrix is transposed between them."""

    ours: str
    theirs: str
    transposed: bool = False


@dataclass(frozen=True)
class Dropped:
    """A tensor of theirs that is left out, with the reason."""

    theirs: str
    reason: str


class NameTable:
    """The rows of one format, read in either direction.

    Args:
      separator: what parts the segments of their names, "." or "/".
    """

    def __init__(self, name: str, rows: Sequence[Row], dropped: Sequence[Dropped], separator: str):
        self.name = name
        self._separator = separator
        self._by_ours: PathTable[Row] = PathTable(name, [(row.ours, row) for row in rows])
        self._by_theirs: PathTable[Row | Dropped] = PathTable(
            name, [(self._path(row.theirs), row) for row in (*rows, *dropped)]
        )

    def from_theirs(self, tensors: Mapping[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
        """Their tensors by our paths. A transposed one is a view: nothing is copied.

        Raises:
          UserError: the table does not know a tensor (named), or two of them are one parameter.
        """
        found: dict[str, np.ndarray] = {}
        for name, tensor in tensors.items():
            row = self._row(name, source)
            if isinstance(row, Dropped):
                continue
            ours = _fill(row.ours, self._path(row.theirs), self._path(name))
            if ours in found:
                raise UserError(f"{source}: two tensors are the parameter {ours}; one is {name!r}")
            found[ours] = tensor.T if row.transposed else tensor
        return found

    def to_theirs(self, flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Parameters by path, {"a/b": leaf}, as their tensors; the inverse of `from_theirs`."""
        found = {}
        for path, leaf in flat.items():
            row = self._by_ours[path]
            name = _fill(self._path(row.theirs), row.ours, path).replace("/", self._separator)
            found[name] = leaf.T if row.transposed else leaf
        return found

    def kept(self, names: Iterable[str], source: str) -> list[str]:
        """Those of `names` that are parameters, sorted; UserError for a name that is unknown."""
        return sorted(n for n in names if isinstance(self._row(n, source), Row))

    def _row(self, name: str, source: str) -> Row | Dropped:
        try:
            return self._by_theirs[self._path(name)]
        except KeyError:
            raise UserError(
                f"{source}: the tensor {name!r} is not a part of BERT or its heads "
                f"(table {self.name!r}); expected names such as {self._example()!r}"
            ) from None

    def _example(self) -> str:
        return self._by_theirs.rows[0][1].theirs

    def _path(self, name: str) -> str:
        return name.replace(self._separator, "/")


def _fill(target: str, pattern: str, name: str) -> str:
    """`target` with its `*` replaced by what stands in `name` at those of `pattern`."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "([^/]*)"), name)
    assert found is not None, f"{name} was matched by {pattern}"
    for value in found.groups():
        target = target.replace("*", value, 1)
    return target
