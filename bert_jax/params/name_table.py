"""Maps parameter paths to the tensor names of another format and back, by one table.

A row pairs a path with a name; `*` is the number of the layer in both. A row can also pair several
paths with one tensor. A tensor that no row names is an error. A tensor that the conversion leaves
out has a row of its own, with the reason.
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
class Packed:
    """Pairs several parameters with one tensor that contains all of them, such as a joint QKV.

    The parameters have the same shape. In the tensor they follow one another along their output
    axis, which is the last axis of a kernel [in, out] and of a bias [out] here. `transposed` as in
    `NameMapping`: PyTorch's linear weights are [out, in].
    """

    internals: tuple[str, ...]
    external: str
    transposed: bool = False

    def unpack(self, tensor: np.ndarray, name: str, source: str) -> list[np.ndarray]:
        """Returns the parameters, as views; UserError if the tensor has no equal parts."""
        joint = tensor.T if self.transposed else tensor
        count = len(self.internals)
        if joint.ndim == 0 or joint.shape[-1] % count:
            raise UserError(
                f"{source}: the tensor {name!r} has shape {list(tensor.shape)}; expected an output "
                f"axis that can be split into {count} equal parts"
            )
        return np.split(joint, count, axis=-1)

    def pack(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the tensor of parameters in the order of `internals`; the inverse of `unpack`."""
        joint = np.concatenate(parts, axis=-1)
        return joint.T if self.transposed else joint


@dataclass(frozen=True)
class Ignored:
    """Names a tensor of the other format that is not a parameter, with the reason."""

    external: str
    reason: str


def check_floating_point(tensor: np.ndarray, name: str, source: str) -> None:
    """Raises a UserError for a tensor of integers, as quantized files have for their weights."""
    if tensor.dtype.kind in "biu":
        raise UserError(
            f"{source}: the tensor {name!r} has dtype {tensor.dtype}; expected floating-point "
            "numbers; save the model without quantization"
        )


class NameTable:
    """Holds the rows of one format, for use in either direction.

    Args:
      separator: what separates the segments of the format's names, "." or "/".
    """

    def __init__(
        self,
        name: str,
        rows: Sequence[NameMapping | Packed],
        ignored: Sequence[Ignored],
        separator: str,
    ):
        self.name = name
        self._separator = separator
        self._by_internal: PathTable[tuple[str, NameMapping | Packed]] = PathTable(
            name, [(pattern, (pattern, row)) for row in rows for pattern in _internals(row)]
        )
        self._by_external: PathTable[NameMapping | Packed | Ignored] = PathTable(
            name, [(self._path(row.external), row) for row in (*rows, *ignored)]
        )

    def from_external(
        self, tensors: Mapping[str, np.ndarray], source: str, advice: str = ""
    ) -> dict[str, np.ndarray]:
        """Returns tensors of the other format by parameter path; transposed ones are views.

        Args:
          source: the file, for messages.
          advice: what else helps against an unknown tensor, to follow the usual advice.

        Raises:
          UserError: the table has no row for a tensor (named), two tensors are one parameter, a
            tensor that contains several parameters cannot be split into them, or a parameter is
            not of floating-point numbers.
        """
        found: dict[str, np.ndarray] = {}
        for name, tensor in tensors.items():
            row = self._find_row(name, source, advice)
            match row:
                case Ignored():
                    continue
                case NameMapping():
                    parameters = [tensor.T if row.transposed else tensor]
                case Packed():
                    parameters = row.unpack(tensor, name, source)
            check_floating_point(tensor, name, source)
            for pattern, parameter in zip(_internals(row), parameters, strict=True):
                internal = _fill_wildcards(pattern, self._path(row.external), self._path(name))
                if internal in found:
                    raise UserError(
                        f"{source}: two tensors are the parameter {internal}; one is {name!r}"
                    )
                found[internal] = parameter
        return found

    def to_external(self, flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns parameters by tensor name of the other format; the inverse of `from_external`.

        Raises:
          KeyError: only some of the parameters of a `Packed` row are in `flat`.
        """
        found: dict[str, np.ndarray] = {}
        for path in flat:
            pattern, row = self._by_internal[path]
            name = _fill_wildcards(self._path(row.external), pattern, path)
            if name in found:  # packed together with another parameter of the row
                continue
            match row:
                case NameMapping():
                    found[name] = flat[path].T if row.transposed else flat[path]
                case Packed():
                    packed_paths = [_fill_wildcards(p, pattern, path) for p in row.internals]
                    found[name] = row.pack([flat[each] for each in packed_paths])
        return {name.replace("/", self._separator): tensor for name, tensor in found.items()}

    def external_name(self, path: str) -> str:
        """Returns the name of the tensor that has a parameter, or has it among others."""
        pattern, row = self._by_internal[path]
        name = _fill_wildcards(self._path(row.external), pattern, path)
        return name.replace("/", self._separator)

    def internal_paths(self, name: str) -> list[str]:
        """Returns the parameters that a tensor has, in their order in it; KeyError if unknown."""
        row = self._by_external[self._path(name)]
        if isinstance(row, Ignored):
            return []
        external, path = self._path(row.external), self._path(name)
        return [_fill_wildcards(pattern, external, path) for pattern in _internals(row)]

    def parameter_names(self, names: Iterable[str], source: str) -> list[str]:
        """Returns the names that are parameters, sorted; UserError for a name without a row."""
        return sorted(n for n in names if not isinstance(self._find_row(n, source), Ignored))

    def _find_row(self, name: str, source: str, advice: str = "") -> NameMapping | Packed | Ignored:
        try:
            return self._by_external[self._path(name)]
        except KeyError:
            raise UserError(
                f"{source}: unknown tensor {name!r}; names of the format {self.name!r} look like "
                f"{self._example()!r}; check that config.json belongs to these weights{advice}"
            ) from None

    def _example(self) -> str:
        return self._by_external.rows[0][1].external

    def _path(self, name: str) -> str:
        return name.replace(self._separator, "/")


def _internals(row: NameMapping | Packed) -> tuple[str, ...]:
    return row.internals if isinstance(row, Packed) else (row.internal,)


def _fill_wildcards(target: str, pattern: str, name: str) -> str:
    """Replaces each `*` of `target` by what the `*` of `pattern` matches in `name`."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "([^/]*)"), name)
    assert found is not None, f"{name} was matched by {pattern}"
    for value in found.groups():
        target = target.replace("*", value, 1)
    return target
