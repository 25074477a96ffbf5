"""Compiles for a TPU without one, reads memory, and bisects the largest batch.

Covers bert_jax/apps/plan/compile.py.
"""

import importlib.util
import json
import logging

import pytest

from bert_jax.apps.plan import compile as compile_module
from bert_jax.apps.plan.compile import CompiledEstimate, compile_phase, largest_batch
from bert_jax.apps.plan.estimate import make_plan
from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.apps.plan.table import describe_compiled, plan_to_json
from bert_jax.errors import UserError
from bert_jax.parallel.tpu_slices import find_slice

RECIPE = "configs/pretrain/bert.py"
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
)


def planned(*changes: str):
    experiment, _ = planned_experiment(RECIPE, ["size=tiny"], list(changes), 30522)
    return experiment, make_inputs(experiment)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@needs_libtpu
@pytest.mark.slow
def test_compile_phase_fits_and_is_cached(tmp_path):
    experiment, inputs = planned("objective.compute.attention=pallas")
    found = compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"))
    assert found.out_of_memory is None and found.peak_bytes > 0
    # The second call compiles nothing: the result is in the cache.
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.gz")}
    assert compile_phase(experiment, inputs[0], 0, find_slice("v5e-16")) == found
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.gz")} == written


@needs_libtpu
@pytest.mark.slow
def test_compile_phase_reports_out_of_memory():
    experiment, inputs = planned("train.phases.1.batch_size=65536")
    found = compile_phase(experiment, inputs[1], 1, find_slice("v2-32"))
    assert found.out_of_memory is not None and "exceed" in found.out_of_memory


def test_describe_compiled_with_and_without_fit():
    experiment, inputs = planned()
    plan = make_plan(experiment, find_slice("v5e-16"), inputs=inputs)
    full = CompiledEstimate(out_of_memory="Ran out of memory: 17G of 15.75G")
    good = CompiledEstimate(out_of_memory=None, peak_bytes=2**30)
    text = describe_compiled(plan, [good, full], "libtpu 1", [1024, 16])
    assert "length 512, largest batch size that fits: 16" in text
    assert "length 512 does NOT fit: Ran out of memory: 17G of 15.75G" in text
    (result,) = (line.split()[1:] for line in text.splitlines() if "result" in line)
    (peak,) = (line.split()[-2:] for line in text.splitlines() if "peak memory, GiB" in line)
    assert result == ["fits", "NO"] and peak == ["1.00", "-"]
    entry = plan_to_json(plan, compiled=[good, full], largest_batch_sizes=[512, 16])
    first, second = entry["compiled"]
    assert first["peak_bytes"] == 2**30 and second["out_of_memory"]
    assert entry["largest_batch_sizes"] == [512, 16] and json.dumps(entry)


def test_missing_libtpu_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(compile_module.importlib.util, "find_spec", lambda name: None)
    experiment, inputs = planned()
    with pytest.raises(UserError, match=r"pip install 'bert_jax\[tpu\]'"):
        compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"))


GIB = 2**30


@pytest.mark.parametrize(
    "max_per_device",
    [0, 7, 4096, 10_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 16, 100))],
)
@pytest.mark.parametrize("limited_by", ["the compiler", "the margin"])
def test_largest_batch_bisection(max_per_device, limited_by, caplog):
    experiment, inputs = planned()
    tpu_slice, tried_batch_sizes = find_slice("v4-32"), []

    def compiler(experiment, inputs, phase, tpu_slice):
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
