"""Parses replica groups in each form that XLA writes, and compares them with NumPy.

Covers bench/tpu_hlo.py.
"""

import numpy as np
import pytest

from bench.tpu_hlo import first_replica_group


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={}, use_global_device_ids=true", ()),
        ("no groups at all", ()),
        ("replica_groups={{0,2},{1,3}}, x", (0, 2)),
        ("replica_groups=[8,2]<=[16], x", (0, 1)),
        ("replica_groups=[2,8]<=[8,2]T(1,0), x", tuple(range(0, 16, 2))),
        ("replica_groups=mesh['axis_0'=16,'axis_1'=1] {'axis_0'}, x", tuple(range(16))),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=1,'axis_2'=2] {'axis_2'}, x", (0, 1)),
        (
            "replica_groups=mesh['axis_0'=8,'axis_1'=1,'axis_2'=2] {'axis_0','axis_1'}, x",
            tuple(range(0, 16, 2)),
        ),
        (
            "replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=8], device_ids=([8,2]T(1,0)) "
            "{'axis_0'}, x",
            (0, 1),
        ),
    ],
)
def test_first_replica_group(text, group):
    assert first_replica_group(text) == group


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_transposed_device_order_matches_numpy(order):
    devices = np.arange(24).reshape(2, 3, 4).transpose(order).reshape(6, 4)
    permutation = ",".join(map(str, order))
    assert first_replica_group(f"replica_groups=[6,4]<=[2,3,4]T({permutation})") == tuple(
        devices[0]
    )
    mesh = f"replica_groups=mesh['a'=6,'b'=4], device_ids=([2,3,4]T({permutation})) {{'a'}}"
    assert first_replica_group(mesh) == tuple(devices[:, 0])
