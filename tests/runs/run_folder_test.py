"""Tests the lock of a run folder, and the comparison of its config with other configs."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.runs.run_folder import (
    checkpoint_dir,
    lock_run_folder,
    package_versions,
    remove_run,
    replaced_failed_start,
    write_or_check_config,
)

HOLDER = """
import sys, time
from pathlib import Path
from bert_jax.runs.run_folder import lock_run_folder

with lock_run_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@dataclass(frozen=True, kw_only=True)
class ToyLogging:
    every: int = 10


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 100
    rate: float = 1e-4
    logging: ToyLogging = field(default_factory=ToyLogging)


@pytest.fixture
def holder(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_second_process_is_rejected_and_the_first_is_named(tmp_path, holder):
    with pytest.raises(UserError, match=rf"in use: process {holder.pid} on .* trains there"):
        with lock_run_folder(tmp_path):
            pass


def test_lock_of_a_killed_process_is_released(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert str(holder.pid) in (tmp_path / "lock").read_text()
    with lock_run_folder(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()
    with lock_run_folder(tmp_path):
        pass


def test_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used as a run folder"):
        with lock_run_folder(tmp_path / "file" / "run"):
            pass


def test_first_start_writes_config_fingerprint_and_versions(tmp_path):
    write_or_check_config(tmp_path, Config())
    saved = read_json_object(tmp_path / "config.json")
    assert saved["config"]["logging"]["every"] == 10
    assert saved["versions"]["python"] == package_versions()["python"] and saved["versions"]["jax"]
    assert len(saved["fingerprint"]) >= 16
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_same_config_is_accepted_and_the_file_unchanged(tmp_path):
    write_or_check_config(tmp_path, Config())
    before = (tmp_path / "config.json").read_bytes()
    write_or_check_config(tmp_path, Config())
    assert (tmp_path / "config.json").read_bytes() == before


def test_different_config_is_rejected_with_the_differing_fields(tmp_path):
    write_or_check_config(tmp_path, Config())
    other = Config(steps=200, rate=1e-3, logging=ToyLogging(every=5))
    with pytest.raises(UserError) as caught:
        write_or_check_config(tmp_path, other, mutable_fields=["logging.*"])
    message = str(caught.value)
    assert "steps: 100 there, 200 now" in message and "rate: 0.0001 there, 0.001 now" in message
    assert "logging" not in message
    assert read_json_object(tmp_path / "config.json")["config"]["steps"] == 100


def test_mutable_fields_are_updated(tmp_path):
    write_or_check_config(tmp_path, Config())
    changed = replace(Config(), logging=ToyLogging(every=5))
    write_or_check_config(tmp_path, changed, mutable_fields=["logging.every"])
    assert read_json_object(tmp_path / "config.json")["config"]["logging"]["every"] == 5
    with pytest.raises(UserError, match=r"logging\.every: 5 there, 10 now"):
        write_or_check_config(tmp_path, Config())


def test_invalid_config_files_are_named(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"config": {')
    with pytest.raises(UserError, match=r"config\.json: not valid JSON at line 1"):
        write_or_check_config(tmp_path, Config())
    file.write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="was not written by bert_jax"):
        write_or_check_config(tmp_path, Config())
    with pytest.raises(UserError, match="does not exist"):
        read_json_object(tmp_path / "absent.json")
    (tmp_path / "evaluation.json").write_text("[1]")
    with pytest.raises(UserError, match="expected a JSON object, found a list"):
        read_json_object(tmp_path / "evaluation.json")
    file.write_text('{"config": {}, "checkpoints": 5}')
    with pytest.raises(UserError, match="checkpoints is 5; expected the folder"):
        checkpoint_dir(tmp_path)


@dataclass(frozen=True, kw_only=True)
class StartedFrom:
    init_from: str


def test_model_folder_is_the_same_by_another_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "model", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("model")
    run = tmp_path / "run"
    write_or_check_config(run, StartedFrom(init_from="model"), external_dir="./checkpoints")
    saved = (run / "config.json").read_text()
    for spelling in ("model/", str(tmp_path / "model"), "link"):
        write_or_check_config(run, StartedFrom(init_from=spelling))
    assert (run / "config.json").read_text() == saved
    with pytest.raises(UserError, match="init_from: 'model' there, 'other' now"):
        write_or_check_config(run, StartedFrom(init_from="other"))
    (tmp_path / "checkpoints").mkdir()
    config = StartedFrom(init_from="model")
    write_or_check_config(run, config, external_dir=str(tmp_path / "checkpoints"))
    with pytest.raises(UserError, match="leave out --checkpoints"):
        write_or_check_config(run, config, external_dir=str(tmp_path / "model"))


def test_files_of_a_failed_start_return_if_the_next_one_fails(tmp_path):
    write_or_check_config(tmp_path, Config())
    (tmp_path / "vocabulary").mkdir()
    for name in ("mixture.json", "baselines.json", "attempts.jsonl", "vocabulary/vocab.txt"):
        (tmp_path / name).write_text("old")

    def contents() -> dict[str, str]:
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        return {str(file.relative_to(tmp_path)): file.read_text() for file in files}

    before, changed = contents(), Config(steps=5)
    with (
        pytest.raises(UserError, match="another tokenizer"),
        replaced_failed_start(tmp_path, changed, tokenizer_folder="vocabulary") as is_replaced,
    ):
        assert is_replaced and contents().keys() == {f"previous/{name}" for name in before}
        write_or_check_config(tmp_path, changed)
        (tmp_path / "vocabulary").mkdir()
        (tmp_path / "vocabulary" / "spiece.model").write_text("new")
        raise UserError("another tokenizer")
    assert contents() == before and not (tmp_path / "previous").exists()
    with replaced_failed_start(tmp_path, changed, tokenizer_folder="vocabulary"):
        write_or_check_config(tmp_path, changed)
    assert contents().keys() == {"config.json"} and not (tmp_path / "previous").exists()
    (tmp_path / "mixture.json").write_text("old")
    (tmp_path / "evaluation.json").write_text("{}")
    with replaced_failed_start(tmp_path, Config(), tokenizer_folder="vocabulary") as is_replaced:
        assert not is_replaced and contents().keys() >= {"config.json", "mixture.json"}


def test_only_run_folders_are_removed(tmp_path):
    remove_run(tmp_path / "absent")
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "checkpoints").mkdir(parents=True)
    other.mkdir()
    with pytest.raises(UserError, match="other is not a run folder, so nothing was removed"):
        remove_run(other)
    with pytest.raises(UserError, match=r"has the initial weights, .*, so nothing was removed"):
        remove_run(run, str(run / "checkpoints" / "5"))
    tables = run / "data" / "train.jsonl"
    tables.parent.mkdir()
    tables.write_text("{}")
    (run / "compiled").symlink_to(other)
    remove_run(run, str(other))
    assert [*run.iterdir()] == [tables.parent] and tables.is_file() and other.is_dir()
    remove_run(run)  # has nothing but tables, so is not refused as another folder
    (run / "config.json").write_text('{"checkpoints": "gs://bucket/run"}')
    with pytest.raises(UserError, match="are in gs://bucket/run, so nothing was removed"):
        remove_run(run)
    assert (run / "config.json").is_file()
