"""Estimates times from the compiler's report, and compiles for a TPU without one.

Covers bench/tpu_estimate.py.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from bench import tpu_estimate as compiled_module
from bench.tpu_estimate import collective_seconds, estimate_compiled, estimate_phase
from bert_jax.apps.plan import compile as compile_module
from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.parallel.tpu_slices import all_slices, find_slice

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
)


def planned(*changes: str):
    recipe = "configs/pretrain/bert.py"
    experiment, _ = planned_experiment(recipe, ["size=tiny"], list(changes), 30522)
    return experiment, make_inputs(experiment)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@needs_libtpu
@pytest.mark.slow
def test_estimate_of_step_with_kernels():
    experiment, inputs = planned("objective.compute.attention=pallas")
    found = estimate_phase(experiment, inputs[0], 0, find_slice("v5e-16"))
    assert found.out_of_memory is None and found.peak_bytes > 0
    assert found.kernel_seconds > 0 and found.schedule_seconds > found.kernel_seconds
    assert found.roofline_seconds is not None and 0 < found.mfu["roofline"] < 1
    assert found.collectives is not None and found.collectives["all-reduce"][1] > 4 * 4.3e6


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("slice_name", ["v4-32", "v5e-16", "v5p-32", "tpu7x-32"])
def test_copy_overcount_matches_xla_analysis(slice_name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.charged_copies", slice_name],
        capture_output=True,
        text=True,
        env={**os.environ, **compile_module.LIBTPU_ENVIRONMENT},
        check=False,
    )
    assert not done.returncode, done.stderr
    reference, *rows = map(json.loads, done.stdout.splitlines())
    # The correction uses the bandwidth of tpu_slices.json, so it must not be smaller than XLA's.
    bandwidth = find_slice(slice_name).generation.device_bandwidth
    assert 0.8 * bandwidth < reference["bandwidth"] < 1.01 * bandwidth
    assert len(rows) == 4 and all(row["copies"]["copy"][0] for row in rows)
    for row in rows:
        charged = sum(
            compiled_module.COPY_OVERCOUNT[kind] * time for kind, (_, time) in row["copies"].items()
        )
        assert row["optimal"] == pytest.approx(row["products"] + charged, rel=0.01), row


STEP = """\
HloModule jit_step, is_scheduled=true

ENTRY %main (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0} parameter(0)
  %copy = (bf16[409500000]{0:S(1)}, bf16[409500000], u32[]) copy-start(%a)
  %slice = ((bf16[8,128]{1,0}), bf16[819000000]{0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={}
  ROOT %fusion = f32[8,128]{1,0} fusion(%a), kind=kLoop, calls=%f, CYCLES
}
"""


def make_report(cycles: int, optimal: float) -> dict:
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    text = STEP.replace("CYCLES", config)
    return {"out_of_memory": None, "peak_bytes": 0, "optimal_seconds": optimal, "text": text}


def test_roofline_subtracts_overcounted_copies():
    tpu_slice = find_slice("v5e-16")
    # 1 ms for the copy, 2 ms for the slice; 3 operations of unknown cost subtract a second each.
    found = estimate_compiled(
        make_report(15_000_000, 0.02 - 3), tpu_slice, 1.0, attention_kernel_seconds=(0.001, 0.002)
    )
    assert found.schedule_seconds == pytest.approx(15e6 / 1.5e9 + 0.001)
    assert found.roofline_seconds == pytest.approx(0.02 - 3 * 1e-3 - 2 * 2e-3 + 0.002)
    assert found.mfu["schedule"] == pytest.approx(1 / 16 / (found.schedule_seconds * 197e12))


def test_long_step_has_no_roofline():
    """Whole seconds of the analysis have no meaning, so 1.4 s would be read as 0.4."""
    found = estimate_compiled(make_report(2_000_000_000, 1.4), find_slice("v5e-16"), 1.0)
    assert found.roofline_seconds is None and found.seconds == {"schedule": pytest.approx(2 / 1.5)}


def test_program_with_loop_has_no_roofline():
    """The analysis counts the body of a loop only once."""
    loop = """%one (p: s32[]) -> s32[] {
  ROOT %p = s32[] parameter(0)
}

ENTRY"""
    while_op = '  %w = s32[] while(%a), condition=%one, body=%one, known_trip_count":{"n":"3"}'
    text = (
        make_report(1, 0.02)["text"]
        .replace("ENTRY", loop)
        .replace("  ROOT %fusion", f"{while_op}\n  ROOT %fusion")
    )
    assert (
        estimate_compiled(
            {**make_report(1, 0.02), "text": text}, find_slice("v5e-16"), 1.0
        ).roofline_seconds
        is None
    )


def test_collective_seconds_over_links_of_corner_chip():
    tpu_slice = all_slices()["v5e-16"]
    collectives = {("all-reduce", ()): [1, 96e6], ("all-gather", tuple(range(16))): [1, 96e6]}
    assert collective_seconds(collectives, tpu_slice) == pytest.approx(
        (2 * 90e6 + 90e6) / (2 * 45e9)
    )
    # The result of a reduce-scatter is one device's shard of the sum.
    assert collective_seconds({("reduce-scatter", ()): [1, 6e6]}, tpu_slice) == pytest.approx(
        90e6 / (2 * 45e9)
    )


def test_collective_seconds_of_two_devices_per_chip():
    tpu_slice = all_slices()["v3-32"]
    assert collective_seconds({("all-reduce", (0, 1)): [1, 96e6]}, tpu_slice) == 0
    all_devices = collective_seconds({("all-reduce", ()): [1, 96e6]}, tpu_slice)
    assert all_devices == pytest.approx(2 * 90e6 / (2 * 100e9))
    one_group = collective_seconds({("all-reduce", tuple(range(0, 32, 2))): [1, 96e6]}, tpu_slice)
    assert one_group == pytest.approx(2 * all_devices)
