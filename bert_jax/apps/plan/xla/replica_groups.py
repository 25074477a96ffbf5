"""Parses the replica groups of a collective in XLA's text; standard library only.

XLA writes them in three forms:

    replica_groups={{0,1},{2,3}}              the explicit groups
    replica_groups=[2,4]<=[4,2]T(1,0)         2 groups of 4: the ids 0, 1, ... as an array of shape
                                              [4, 2], transposed by (1, 0), in row-major order
    replica_groups=mesh['a'=4,'b'=2] {'b'}    the groups of a mesh along the named axes;
                                              `device_ids=([4,2]T(1,0))` may give the order of the
                                              devices in it
"""

import itertools
import math
import operator
import re
from collections.abc import Sequence

_EXPLICIT_GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
_IOTA_GROUPS = re.compile(rf"replica_groups=\[\d+,(\d+)\]<={_IOTA}")
_MESH_GROUPS = re.compile(
    rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}"
)


def first_replica_group(text: str) -> tuple[int, ...]:
    """Returns the first replica group of a collective; () if it covers all devices."""
    if found := _EXPLICIT_GROUPS.search(text):
        return _parse_ints(found[1])
    if found := _IOTA_GROUPS.search(text):
        return _iota_device_ids(found[2], found[3])[: int(found[1])]
    if found := _MESH_GROUPS.search(text):
        axes = re.findall(r"'([^']+)'=(\d+)", found[1])
        sizes = [int(size) for _, size in axes]
        devices = _iota_device_ids(found[2] or str(math.prod(sizes)), found[3])
        index_ranges = [range(int(size) if f"'{name}'" in found[4] else 1) for name, size in axes]
        return tuple(
            devices[index] for index in _flat_indices(sizes, range(len(sizes)), index_ranges)
        )
    return ()


def _iota_device_ids(sizes: str, permutation: str | None) -> tuple[int, ...]:
    """Returns the ids 0, 1, ... reshaped to `sizes`, transposed, in row-major order."""
    dims = _parse_ints(sizes)
    axes = _parse_ints(permutation) if permutation else range(len(dims))
    return _flat_indices(dims, axes, [range(dims[axis]) for axis in axes])


def _flat_indices(
    dims: Sequence[int], axes: Sequence[int], index_ranges: Sequence[range]
) -> tuple[int, ...]:
    """Returns the row-major indices of the elements selected by a range for each axis."""
    strides = [math.prod(dims[axis + 1 :]) for axis in axes]
    return tuple(
        sum(map(operator.mul, index, strides)) for index in itertools.product(*index_ranges)
    )


def _parse_ints(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))
