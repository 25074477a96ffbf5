"""Compiles for a TPU without one, reads memory and times, and bisects the largest batch.

Covers bert_jax/apps/plan/xla/compile_phase.py, bert_jax/apps/plan/xla/compile_worker.py,
bert_jax/apps/plan/xla/compile_report.py, bert_jax/apps/plan/xla/compile_table.py, and
bert_jax/apps/plan/xla/largest_batch.py.
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys

import pytest

from bert_jax.apps.plan.estimate import make_plan
from bert_jax.apps.plan.inputs import make_inputs
from bert_jax.apps.plan.placeholder_corpus import planned_experiment
from bert_jax.apps.plan.plan_json import plan_to_json
from bert_jax.apps.plan.xla import compile_phase as compile_module
from bert_jax.apps.plan.xla import compile_report as compiled_module
from bert_jax.apps.plan.xla.compile_phase import compile_phase
from bert_jax.apps.plan.xla.compile_report import (
    CompiledEstimate,
    collective_seconds,
    estimate_compiled,
)
from bert_jax.apps.plan.xla.compile_table import describe_compiled
from bert_jax.apps.plan.xla.largest_batch import largest_batch
from bert_jax.errors import UserError
from bert_jax.parallel.tpu_slices import all_slices, find_slice

RECIPE = "configs/pretrain/bert.py"
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
)


def planned(*changes: str):
    experiment, _ = planned_experiment(RECIPE, ["size=tiny"], list(changes), 30522)
    return experiment, make_inputs(experiment)


@needs_libtpu
@pytest.mark.slow
def test_compile_phase_fits_and_is_cached(tmp_path):
    experiment, inputs = planned("objective.compute.attention=pallas")
    found = compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"), tmp_path)
    assert found.out_of_memory is None and found.peak_bytes > 0
    assert found.kernel_seconds > 0 and found.schedule_seconds > found.kernel_seconds
    assert found.roofline_seconds is not None and 0 < found.mfu["roofline"] < 1
    assert found.collectives is not None and found.collectives["all-reduce"][1] > 4 * 4.3e6
    # The second call compiles nothing: the result is in the cache.
    written = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"), tmp_path) == found
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == written


@needs_libtpu
@pytest.mark.slow
def test_compile_phase_reports_out_of_memory(tmp_path):
    experiment, inputs = planned("train.phases.1.batch_size=65536")
    found = compile_phase(experiment, inputs[1], 1, find_slice("v2-32"), tmp_path)
    assert found.out_of_memory is not None and "exceed" in found.out_of_memory


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


def test_describe_compiled_with_and_without_fit():
    """A phase that does not fit has no times, neither as text nor as JSON."""
    experiment, inputs = planned()
    plan = make_plan(experiment, find_slice("v5e-16"), inputs=inputs)
    full = CompiledEstimate(out_of_memory="Ran out of memory: 17G of 15.75G")
    good = estimate_compiled(make_report(15_000_000, 0.02), plan.tpu_slice, 1e12)
    text = describe_compiled(plan, [good, full], "libtpu 1", [1024, 16])
    assert "length 512, largest batch size that fits: 16" in text
    assert "length 512 does NOT fit: Ran out of memory: 17G of 15.75G" in text
    (result,) = (line.split()[1:] for line in text.splitlines() if "result" in line)
    (schedule,) = (line.split()[-2:] for line in text.splitlines() if "by schedule, ms" in line)
    assert result == ["fits", "NO"] and schedule == ["10", "-"]
    first, second = plan_to_json(plan, compiled=[good, full], largest_batch_sizes=[512, 16])[
        "compiled"
    ]
    assert second["seconds"] == second["mfu"] == {} and second["out_of_memory"]
    assert first["seconds"]["schedule"] == pytest.approx(0.01)
    assert json.dumps([first, second])


def test_missing_libtpu_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(compile_module.importlib.util, "find_spec", lambda name: None)
    experiment, inputs = planned()
    with pytest.raises(UserError, match=r"pip install 'bert_jax\[tpu\]'"):
        compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"), tmp_path)


GIB = 2**30


@pytest.mark.parametrize(
    "max_per_device",
    [0, 7, 4096, 10_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 16, 100))],
)
@pytest.mark.parametrize("limited_by", ["the compiler", "the margin"])
def test_largest_batch_bisection(max_per_device, limited_by, caplog):
    experiment, inputs = planned()
    tpu_slice, tried_batch_sizes = find_slice("v4-32"), []

    def compiler(experiment, inputs, phase, tpu_slice, cache):
        batch_size = experiment.train.phases[phase].batch_size
        assert inputs.shapes[-1]["B"] == batch_size
        tried_batch_sizes.append(batch_size)
        if limited_by == "the margin":
            return CompiledEstimate(out_of_memory=None, peak_bytes=batch_size * GIB)
        return CompiledEstimate(
            out_of_memory=None if batch_size <= 16 * max_per_device else "out of memory"
        )

    usable_bytes = 16 * max_per_device * GIB
    with caplog.at_level(logging.INFO):
        found = largest_batch(
            experiment, inputs[1], 1, tpu_slice, usable_bytes, compile_fn=compiler
        )
    assert found == 16 * min(max_per_device, 4096)
    assert len(tried_batch_sizes) == len(caplog.messages) <= 25
    assert max(tried_batch_sizes) <= 16 * 4096


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
