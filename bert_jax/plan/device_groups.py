"""Over which devices a collective of a compiled program goes; standard library only.

XLA's texts have three forms for it, of which the second and third are compressed:

    replica_groups={{0,1},{2,3}}              the groups themselves
    replica_groups=[2,4]<=[4,2]T(1,0)         2 groups of 4: the numbers 0, 1, ... laid out as an
                                              array [4, 2], its axes in that order, row by row
    replica_groups=mesh['a'=4,'b'=2] {'b'}    those of a mesh that differ along the axes named
                                              alone; `device_ids=([4,2]T(1,0))` may say in which
                                              order the devices lie in it
"""

import itertools
import math
import operator
import re
from collections.abc import Sequence

_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_ORDER = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
_ARRAY = re.compile(rf"replica_groups=\[\d+,(\d+)\]<={_ORDER}")
_MESH = re.compile(rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_ORDER}\))? \{{([^}}]*)\}}")


def first_group(text: str) -> tuple[int, ...]:
    """The first of a collective's groups of devices; () where it goes over all of them."""
    if found := _LISTED.search(text):
        return _numbers(found[1])
    if found := _ARRAY.search(text):
        return _laid_out(found[2], found[3])[: int(found[1])]
    if found := _MESH.search(text):
        axes = re.findall(r"'([^']+)'=(\d+)", found[1])
        sizes = [int(size) for _, size in axes]
        devices = _laid_out(found[2] or str(math.prod(sizes)), found[3])
        mine = [range(int(size) if f"'{name}'" in found[4] else 1) for name, size in axes]
        return tuple(devices[place] for place in _flat(sizes, range(len(sizes)), mine))
    return ()


def _laid_out(sizes: str, order: str | None) -> tuple[int, ...]:
    """0, 1, ... as an array of these sizes, its axes in another order, row by row."""
    dims = _numbers(sizes)
    axes = _numbers(order) if order else range(len(dims))
    return _flat(dims, axes, [range(dims[axis]) for axis in axes])


def _flat(dims: Sequence[int], axes: Sequence[int], places: Sequence[range]) -> tuple[int, ...]:
    """Where in an array of these sizes, row by row, all `places` are, a range for each axis."""
    strides = [math.prod(dims[axis + 1 :]) for axis in axes]
    return tuple(sum(map(operator.mul, place, strides)) for place in itertools.product(*places))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))
