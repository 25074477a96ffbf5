"""Covers `bert-jax verify`: it passes here, and a planted fault fails the check of its name."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.verify import kernels, sharded_steps, training
from bert_jax.apps.verify.checks import Check, Context, Result, Skipped, Target, run_check
from bert_jax.apps.verify.kernels import dropout_checks, kernel_checks, relative_difference
from bert_jax.apps.verify.verify import format_result, make_page, verify
from bert_jax.config.train import MeshConfig
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.models.layers import dropout, pallas_attention
from bert_jax.runs.checkpoints import checksums
from tests.helpers.one_device import one_device_mesh

UPDATES = 6


def context_in(folder: Path) -> Context:
    return Context(target=Target.of_this_machine(), folder=folder, updates=UPDATES)


def run_named(context: Context, *names: str) -> dict[str, Result]:
    checks = [*kernel_checks(), *dropout_checks(), *training.training_checks()]
    with one_device_mesh():
        return {check.name: run_check(check, context) for check in checks if check.name in names}


def statuses(results: dict[str, Result]) -> dict[str, str]:
    return {name: result.status for name, result in results.items()}


@pytest.fixture(scope="module")
def first_training(tmp_path_factory) -> Context:
    context = context_in(tmp_path_factory.mktemp("verify"))
    results = run_named(context, "training, known losses")
    assert statuses(results) == {"training, known losses": "pass"}, results
    return context


@pytest.fixture
def trained(first_training, tmp_path) -> Context:
    """Returns a context of its own that continues from the first training."""
    folder = tmp_path / "copy"
    shutil.copytree(first_training.folder, folder)
    return dataclasses.replace(first_training, folder=folder, shared=dict(first_training.shared))


def test_all_checks_run_end_to_end(tmp_path, monkeypatch):
    # One mesh with all axes: each mesh is compiled for seconds.
    mesh = MeshConfig(data=2, fsdp=2, tensor=2)
    monkeypatch.setattr(
        sharded_steps, "meshes", lambda *_, simulated: {"data 2 x fsdp 2 x tensor 2": mesh}
    )
    lines: list[str] = []
    report = verify(
        tmp_path, updates=UPDATES, on_result=lambda result: lines.append(format_result(result))
    )
    assert report == json.loads((tmp_path / "verify.json").read_text())
    assert report["status"] == "pass", "\n".join(lines)
    assert {check["status"] for check in report["checks"]} == {"pass"}
    assert len(lines) == len(report["checks"]) >= 20
    assert all(check["value"] is not None and check["seconds"] > 0 for check in report["checks"])
    assert report["devices"]["devices"] == 8 and "jax" in report["versions"]
    page = (tmp_path / "verify.html").read_text()
    assert page == make_page(report) and "27 pass" in page and "<script" not in page


def test_broken_kernel_is_found(tmp_path, monkeypatch):
    """Plants a kernel that ignores the mask; the operations that training runs here are right."""
    monkeypatch.setattr(pallas_attention, "_mask_bias", lambda q, kv: jnp.float32(0))
    names = ("attention kernel, padded, float32", "attention as trained, float32")
    found = run_named(context_in(tmp_path), *names)
    assert statuses(found) == {names[0]: "fail", names[1]: "pass"}
    assert (found[names[0]].value or 0) > 0.01


def test_sum_that_stops_growing_is_found(tmp_path, monkeypatch):
    """Plants the gradient that autodiff would compute, which adds in bfloat16."""
    name = "embedding gradient, bfloat16"
    assert statuses(run_named(context_in(tmp_path), name)) == {name: "pass"}
    monkeypatch.setattr(
        kernels, "embedding_lookup", lambda table, ids: table[ids].astype("float32")
    )
    assert statuses(run_named(context_in(tmp_path), name)) == {name: "fail"}


def test_weak_hash_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(dropout, "finalize_hash", lambda keys: keys)
    names = [check.name for check in dropout_checks()]
    found = statuses(run_named(context_in(tmp_path), *names))
    assert found["dropout, independence"] == found["dropout, same mask everywhere"] == "fail"


def test_loader_with_other_batches_after_resume_is_found(trained, monkeypatch):
    make = PretrainingLoader.__init__

    def start_one_batch_later(self, batch_builder, start: int = 0):
        make(self, batch_builder, start + batch_builder.batch_size * (start > 0))

    monkeypatch.setattr(PretrainingLoader, "__init__", start_one_batch_later)
    found = run_named(trained, "loader, resumed", "resume, bit for bit")
    assert statuses(found) == {"loader, resumed": "fail", "resume, bit for bit": "fail"}
    assert found["loader, resumed"].value == 3


def test_resumed_training_is_equal(trained):
    found = run_named(trained, "loader, resumed", "resume, bit for bit")
    assert set(statuses(found).values()) == {"pass"}, found


def test_flipped_byte_in_a_checkpoint_is_found(trained):
    params = trained.folder / "training/checkpoints" / str(UPDATES // 2) / "params"
    file = max((f for f in params.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    found = run_named(trained, "resume, bit for bit")["resume, bit for bit"]
    assert found.status == "fail" and file.name in found.detail


def test_checksums_that_find_nothing_are_found(trained, monkeypatch):
    name = "checkpoint, damage is found"
    assert statuses(run_named(trained, name)) == {name: "pass"}
    monkeypatch.setattr(checksums, "find_problems", lambda folder, prefixes: [])
    found = run_named(trained, name)[name]
    assert found.status == "fail" and (found.value or 0) > 5


def test_wrong_loss_is_found(first_training, monkeypatch):
    monkeypatch.setattr(training, "_train", lambda *_: {1: 5.0877, 2: 5.0, 5: 4.95})
    found = run_named(first_training, "training, known losses")["training, known losses"]
    assert found.status == "fail" and "after update 5: 4.9500, known 5.0388" in found.detail


def test_tensor_parallelism_is_compared_within_processes_only():
    names = [list(sharded_steps.meshes(4, processes, simulated=False)) for processes in (2, 4)]
    assert names == [["data 4", "fsdp 4", "fsdp 2 x tensor 2"], ["data 4", "fsdp 4"]]


def test_rows_in_another_order_are_found(tmp_path, monkeypatch):
    (check, _), context = sharded_steps.sharding_checks(), context_in(tmp_path)
    assert run_check(check, context).status == "pass"
    put = sharded_steps.sharding.put_batch

    def swap_halves(batch, sharding):
        return put({name: np.roll(rows, len(rows) // 2) for name, rows in batch.items()}, sharding)

    monkeypatch.setattr(sharded_steps.sharding, "put_batch", swap_halves)
    result = run_check(check, context)
    assert (result.status, result.value, result.detail) == ("fail", 32, "32 rows compared")


@pytest.mark.slow
def test_simulated_devices_agree_with_one_device(tmp_path):
    target = dataclasses.replace(Target.of_this_machine(), devices=1)  # as on a machine with one
    context = dataclasses.replace(context_in(tmp_path), target=target)
    result = run_check(sharded_steps.sharding_checks()[1], context)
    assert result.status == "pass" and list(result.numbers) == ["fsdp 2 x tensor 2"], result


@pytest.mark.slow
def test_examples_on_the_wrong_devices_are_found(tmp_path, monkeypatch):
    put = sharded_steps.sharding.put_global_batch

    def repeat_first_half(batch, sharding):
        half = len(batch["input_ids"]) // 2
        is_split = sharding.mesh.size > 1
        return put(
            {
                k: np.tile(v[:half], (2, *[1] * (v.ndim - 1))) if is_split else v
                for k, v in batch.items()
            },
            sharding,
        )

    monkeypatch.setattr(sharded_steps.sharding, "put_global_batch", repeat_first_half)
    monkeypatch.setattr(sharded_steps, "meshes", lambda *_, simulated: {"data": MeshConfig()})
    result = run_check(sharded_steps.sharding_checks()[1], context_in(tmp_path))
    assert result.status == "fail" and (result.value or 0) > 1e-3, result


def check_that(measure) -> Check:
    return Check(name="a", describe=lambda _: "b", unit="c", limit=lambda _: 1.0, measure=measure)


def test_errors_fail_and_reasons_skip(tmp_path):
    def crash(context):
        raise ZeroDivisionError("by zero")

    def skip(context):
        raise Skipped("no such device")

    context = context_in(tmp_path)
    assert run_check(check_that(crash), context).detail == "ZeroDivisionError: by zero"
    assert run_check(check_that(crash), context).status == "fail"
    skipped = run_check(check_that(skip), context)
    assert (skipped.status, skipped.detail, skipped.value) == ("skipped", "no such device", None)
    assert "no such device" in format_result(skipped)


def test_nan_is_not_within_the_limit():
    assert np.isnan(relative_difference([np.array([np.nan, 1.0])], [np.ones(2)]))


def test_exit_code_and_named_check(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pallas_attention, "_mask_bias", lambda q, kv: jnp.float32(0))
    checks = [check for check in kernel_checks() if "padded, float32" in check.name]
    monkeypatch.setattr("bert_jax.apps.verify.verify.all_checks", lambda: checks)
    assert main(["verify", "--output", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("fail     attention kernel, padded, float32")
    assert "failed: attention kernel, padded, float32;" in printed[-2]
    assert json.loads((tmp_path / "out/verify.json").read_text())["status"] == "fail"


def test_dry_run_lists_the_checks_for_16_chips(capsys):
    assert main(["verify", "--dry-run", "--slice", "v5e-16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("data 16, fsdp 16, fsdp 8 x tensor 2" in line for line in lines)
    assert any(line.startswith("step time") and "against plan's" in line for line in lines)
    assert any("the Pallas kernel, compiled" in line for line in lines)
