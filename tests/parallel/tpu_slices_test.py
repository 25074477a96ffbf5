"""Tests the table of TPU slices: consistency and prices.

That a wheel contains the table is tested in tests/packaging_test.py.
"""

import datetime
import json
import math
from pathlib import Path

import pytest

from bert_jax.errors import ConfigError
from bert_jax.parallel import tpu_slices
from bert_jax.parallel.devices import peak_flops
from bert_jax.parallel.tpu_slices import all_slices, find_slice, prices_as_of

ROOT = Path(__file__).parents[2]
GENERATIONS = {"v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"}
SIXTEEN = {
    # name: (jax.device_count(), type in the Cloud TPU API, name in libtpu)
    "v2-32": (32, "v2-32", "v2:4x4"),
    "v3-32": (32, "v3-32", "v3:4x4"),
    "v4-32": (16, "v4-32", "v4:2x2x4"),
    "v5e-16": (16, "v5litepod-16", "v5e:4x4"),
    "v5p-32": (16, "v5p-32", "v5p:2x2x4"),
    "v6e-16": (16, "v6e-16", "v6e:4x4"),
    "tpu7x-32": (32, None, "tpu7x:2x2x4"),
}


def test_each_generation_has_a_slice_of_16_chips():
    found = {name: each for name, each in all_slices().items() if each.chips == 16}
    assert found.keys() == SIXTEEN.keys()
    assert {each.generation.name for each in found.values()} == GENERATIONS
    for name, (devices, accelerator_type, topology) in SIXTEEN.items():
        each = found[name]
        assert (each.devices, each.hosts) == (devices, 4), name
        assert each.accelerator_type == accelerator_type
        assert each.libtpu_topology == topology
    assert found["v4-32"].generation.chip_config == "megacore"


def test_links_of_a_corner():
    links = {name: each.min_links for name, each in all_slices().items()}
    assert links["v5e-16"] == links["v5e-64"] == links["v5e-4"] == links["v4-8"] == 2
    assert links["v4-32"] == links["tpu7x-32"] == 3
    # Rings: cubes of 4 x 4 x 4 chips, and axes of 16.
    assert links["v5e-256"] == links["v6e-256"] == 4
    assert links["v4-128"] == links["v4-512"] == 6


@pytest.mark.parametrize("each", all_slices().values(), ids=lambda each: each.name)
def test_slice_fields_are_consistent(each):
    generation = each.generation
    sizes = [int(size) for size in each.topology.split("x")]
    # The slice of Kaggle is one host of 8 chips.
    assert math.prod(sizes) == each.chips == (8 if each.name == "v5e-8" else 4) * each.hosts
    assert len(sizes) == generation.link_axes in (2, 3)
    assert generation.devices_per_chip in (1, 2)
    assert 0.9 < generation.usable_hbm_gib / generation.hbm_gib < 1.02
    assert each.device_hbm_gib * each.devices == generation.usable_hbm_gib * each.chips
    assert each.bf16_flops == each.chips * generation.bf16_flops
    assert set(generation.backends) <= {"tpu-api", "gce"} and generation.backends
    # What the Cloud TPU API needs to create the slice.
    if "tpu-api" in generation.backends:
        assert each.accelerator_type and generation.runtime_version
    else:
        assert each.accelerator_type is None
    assert generation.zones
    for price in (generation.usd_on_demand, generation.usd_spot):
        assert price is None or 0.1 < price < 50
    if generation.usd_spot is not None:
        assert generation.usd_spot < generation.usd_on_demand


def test_prices_have_a_date_and_a_source():
    assert datetime.date.fromisoformat(prices_as_of()) > datetime.date(2026, 1, 1)
    assert "list prices" in json.loads(tpu_slices.FILE.read_text())["about"]


def test_price_of_a_slice_is_that_of_all_its_chips():
    assert find_slice("v5e-16").usd_per_hour(spot=False) == pytest.approx(19.2)
    assert find_slice("v5e-16").usd_per_hour(spot=True) == pytest.approx(9.6)
    assert find_slice("v5e-4").usd_per_hour(spot=True) == pytest.approx(2.4)
    assert find_slice("tpu7x-32").usd_per_hour(spot=True) is None


@pytest.mark.parametrize(
    ("name", "nearest"), [("v5e-15", "v5e-16"), ("v5litepod-16", "v5e-16"), ("tpu7-32", "tpu7x-32")]
)
def test_unknown_slice_error_names_the_nearest(name, nearest):
    with pytest.raises(
        ConfigError, match=f"slice '{name}' is not known; the nearest is .{nearest}"
    ):
        find_slice(name)


class Device:
    def __init__(self, kind: str):
        self.device_kind = kind


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        ("TPU v2", 22.5e12),
        ("TPU v3", 61.5e12),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5e", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU v6e", 918e12),
        ("TPU7x", 1153.5e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
    ],
)
def test_peak_flops_of_a_device_are_a_fraction_of_its_chip(kind, each):
    assert peak_flops([Device(kind)] * 16) == pytest.approx(16 * each)


@pytest.mark.parametrize("kind", ["cpu", "TPU v99", "NVIDIA T4"])
def test_unknown_device_has_no_mfu(kind):
    assert peak_flops([Device(kind)]) is None
