"""Compiling for a TPU without one: memory, verdict, times; and bisection by a made-up compiler."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.plan import compile as compile_module
from bert_jax.plan.compile import Compiled, compile_phase
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.largest_batch import largest_batch
from bert_jax.plan.slices import all_slices, find_slice
from bert_jax.plan.stand_in import planned_experiment

RECIPE = "configs/pretrain/bert.py"
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: bert_jax[tpu]"
)


def planned(*changes: str):
    experiment, _ = planned_experiment(RECIPE, ["size=tiny"], list(changes), 30522)
    return experiment, make_inputs(experiment)


@needs_libtpu
@pytest.mark.slow
def test_a_step_compiles_with_its_kernel_and_fits(tmp_path):
    experiment, inputs = planned("program.compute.attention=FusedAttention")
    found = compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"), tmp_path)
    assert found.out_of_memory is None and found.peak_bytes > 0
    assert found.kernels > 0 and found.schedule > found.kernels
    assert found.roofline is not None and 0 < found.mfu["roofline"] < 1
    assert found.collectives is not None and found.collectives["all-reduce"][1] > 4 * 4.3e6
    # A second time nothing is compiled: the answer lies in the cache.
    written = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"), tmp_path) == found
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == written


@needs_libtpu
@pytest.mark.slow
def test_the_compiler_says_when_memory_is_too_small(tmp_path):
    experiment, inputs = planned("train.phases.1.batch_size=65536")
    found = compile_phase(experiment, inputs[1], 1, find_slice("v2-32"), tmp_path)
    assert found.out_of_memory is not None and "exceed" in found.out_of_memory


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("where", ["v4-32", "v5e-16", "v5p-32", "tpu7x-32"])
def test_the_analysis_counts_copies_to_on_chip_memory_several_times(where):
    done = subprocess.run(
        [sys.executable, "-m", "tests.plan.charged_copies", where],
        capture_output=True,
        text=True,
        env={**os.environ, **compile_module.ENVIRONMENT},
        check=False,
    )
    assert not done.returncode, done.stderr
    known, *rows = map(json.loads, done.stdout.splitlines())
    # What is taken off is figured with the table's bandwidth: never too much.
    bandwidth = find_slice(where).generation.device_bandwidth
    assert 0.8 * bandwidth < known["bandwidth"] < 1.01 * bandwidth
    assert len(rows) == 4 and all(row["copies"]["copy"][0] for row in rows)
    for row in rows:
        charged = sum(
            compile_module.CHARGED[kind] * time for kind, (_, time) in row["copies"].items()
        )
        assert row["optimal"] == pytest.approx(row["products"] + charged, rel=0.01), row


def test_what_copies_are_charged_too_much_is_taken_off():
    where = find_slice("v5e-16")
    costs = {"cycles": 0, "collectives": {}, "random_bytes": 0, "unknown": {}}
    facts = {"out_of_memory": None, "peak_bytes": 0, "roofline_seconds": 1.0}
    copies = {"copy": [2, 819e6], "slice": [1, 1638e6]}  # 1 and 2 ms
    costs |= {"copies": copies, "loops": 0}
    found = compile_module.estimate({**facts, "costs": costs}, where, 1.0)
    assert found.roofline == pytest.approx(1.0 - 3 * 1e-3 - 2 * 2e-3)
    # What is in a loop is counted once by the analysis: there is no roofline then.
    costs["loops"] = 1
    assert compile_module.estimate({**facts, "costs": costs}, where, 1.0).roofline is None


def test_without_libtpu_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(compile_module.importlib.util, "find_spec", lambda name: None)
    experiment, inputs = planned()
    with pytest.raises(UserError, match=r"pip install 'bert_jax\[tpu\]'"):
        compile_phase(experiment, inputs[0], 0, find_slice("v5e-16"), tmp_path)


@pytest.mark.parametrize("fitting", [0, 1, 7, 16, 100])
def test_bisection_ends_at_the_last_batch_that_fits(fitting):
    experiment, inputs = planned()
    where, tried = find_slice("v4-32"), []

    def compiler(experiment, inputs, phase, where, cache):
        rows = experiment.train.phases[phase].batch_size
        assert inputs.shapes[-1]["B"] == rows
        tried.append(rows)
        return Compiled(out_of_memory=None if rows <= 16 * fitting else "too much")

    found = largest_batch(experiment, inputs[1], 1, where, say=lambda _: None, compiled=compiler)
    assert found == 16 * fitting
    assert len(tried) <= 16


def test_links_take_what_a_corner_chip_can_carry():
    where = all_slices()["v5e-16"]
    seconds = compile_module._link_seconds(
        {"all-reduce": [1, 96e6], "all-gather": [1, 96e6]}, where
    )
    assert seconds == pytest.approx((2 * 90e6 + 90e6) / (2 * 45e9))
