"""Tests what experiment trackers get, that a resumed run continues, and that failures stop none."""

import importlib
import json
import logging
import sqlite3
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.config.config_lib import override, to_json
from bert_jax.errors import UserError
from bert_jax.runs import trackers
from bert_jax.runs.hooks import StepEvent
from bert_jax.runs.trackers import Track
from bert_jax.train.evaluate_and_save import make_hooks
from tests.helpers.event_files import read_scalars

EXPERIMENT = tiny_experiment("tracked", "corpus", two_length_phases(8))
CONFIG = to_json(EXPERIMENT)


def event(step: int) -> StepEvent:
    return StepEvent(
        step=step,
        total_steps=8,
        phase="length-32",
        position=8 * step,
        batch_size=8,
        clock=lambda: float(step),
        tokens=256 * step,
        device_metrics={"loss": jnp.float32(step / 8)},
    )


def track(name, folder, steps, resume_step=0):
    """Tracks some steps, an evaluation after the last, and the final results."""
    hook = Track(name, folder, CONFIG, every=1, resume_step=resume_step)
    for step in steps:
        hook(event(step))
    hook.write_evaluation(steps[-1], {"mlm_loss": 1.5})
    hook.write_final(
        {"dev": {"accuracy": 0.75, "f1_at_0.5": 1, "best": None}, "ok": True, "loss": 2}
    )
    hook.close()


class FakeServer:
    """Stands for a tracker: records runs, or raises."""

    def __init__(self, problem: Exception | None = None):
        self.ids, self.values, self.problem = [], {}, problem

    def start(self, folder, run_id, config, resume_step):
        self.ids.append(run_id)

        def log(step, values):
            if self.problem is not None:
                raise self.problem
            self.values.setdefault(step, {}).update(values)

        return trackers._Tracked(run_id or "new", log, lambda: None)


def use(monkeypatch, start):
    monkeypatch.setitem(trackers._START, "wandb", start)


def test_tracker_gets_what_the_log_has_under_one_id(tmp_path, monkeypatch):
    server = FakeServer()
    use(monkeypatch, server.start)
    track("wandb", tmp_path, range(1, 6))
    track("wandb", tmp_path, range(5, 9), resume_step=4)
    assert server.ids == [None, "new"]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "new"}
    assert [server.values[step]["train/loss"] for step in range(1, 9)] == [
        n / 8 for n in range(1, 9)
    ]
    assert server.values[6]["train/tokens_per_second"] == 256
    assert server.values[8]["evaluation/mlm_loss"] == 1.5
    final = {name: value for name, value in server.values[8].items() if name.startswith("final/")}
    assert final == {"final/dev/accuracy": 0.75, "final/dev/f1_at_0.5": 1, "final/loss": 2}


def test_failing_tracker_is_one_warning_without_passwords(tmp_path, monkeypatch, caplog):
    use(monkeypatch, FakeServer(OSError("https://me:secret@server/api is down")).start)
    monkeypatch.setattr(logging.getLogger("bert_jax"), "propagate", True)
    track("wandb", tmp_path, range(1, 4))
    (record,) = caplog.records
    assert "metrics did not reach wandb: OSError: https://server/api is down" in caplog.text
    assert record.levelname == "WARNING" and "secret" not in caplog.text


def test_silent_server_delays_the_end_by_a_limit(tmp_path, monkeypatch, caplog):
    def start(*_):
        return trackers._Tracked("id", lambda *_: sleeping.wait(), lambda: None)

    sleeping = trackers.threading.Event()
    use(monkeypatch, start)
    monkeypatch.setattr(trackers, "SECONDS_TO_FINISH", 0.05)
    monkeypatch.setattr(logging.getLogger("bert_jax"), "propagate", True)
    track("wandb", tmp_path, [1])
    sleeping.set()
    assert "TimeoutError: no answer" in caplog.text


def test_only_a_new_run_needs_a_tracker_that_starts(tmp_path, monkeypatch):
    def start(*_):
        raise RuntimeError("no login\nlong explanation")

    use(monkeypatch, start)
    with pytest.raises(UserError, match=r"--track wandb: RuntimeError: no login; fix this"):
        track("wandb", tmp_path, [1])
    track("wandb", tmp_path, [5], resume_step=4)
    assert not (tmp_path / "trackers.json").exists()


@pytest.mark.parametrize("name", trackers._START)
def test_missing_package_is_an_error_at_once(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, trackers._PACKAGES[name], None)
    command = ["pretrain", "tests/helpers/tiny_recipe.py", "--run", str(tmp_path / "run")]
    command += ["--arg", "corpus=missing"]
    for flags in (["--track", name], ["--set", f"train.logging.track={name}"]):
        assert main([*command, *flags]) == 1
        assert f"pip install 'bert_jax[{name}]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("index", [0, 1])
def test_only_the_first_process_tracks(index, tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    monkeypatch.setattr(jax, "process_index", lambda: index)
    on_process_0 = "bert_jax.train.evaluate_and_save.run_on_process_0"
    monkeypatch.setattr(on_process_0, lambda start: start() if index == 0 else None)
    parts = types.SimpleNamespace(latest_valid_step=None)
    experiment = override(EXPERIMENT, ["train.logging.track=tensorboard"])
    hooks = make_hooks(experiment, tmp_path, 0, parts, parts, parts)  # pyright: ignore
    tracking = [hook for hook in hooks if isinstance(hook, Track)]
    for hook in hooks[: len(hooks) - 1]:  # the last stands for the watchdog
        hook.close()
    assert len(tracking) == (index == 0)
    assert (tmp_path / "trackers.json").exists() == (index == 0)


def test_tensorboard_has_one_value_for_each_step(tmp_path):
    pytest.importorskip("tensorboardX")
    track("tensorboard", tmp_path, range(1, 6))
    track("tensorboard", tmp_path, range(5, 9), resume_step=4)
    scalars = read_scalars(tmp_path / "tensorboard")
    assert scalars["train/loss"] == {step: step / 8 for step in range(1, 9)}
    assert scalars["evaluation/mlm_loss"][8] == 1.5 and scalars["final/dev/accuracy"][8] == 0.75


def package(name):
    """Imports the package of a tracker, or skips the test."""
    return pytest.importorskip(name, reason="not in the test extra: its dependencies are large")


def test_wandb_continues_a_run_offline(tmp_path, monkeypatch):
    package("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    track("wandb", tmp_path, range(1, 6))
    track("wandb", tmp_path, range(5, 9), resume_step=4)
    run_id = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    files = list((tmp_path / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert files and any(b"final/dev/accuracy" in file.read_bytes() for file in files)


def test_mlflow_continues_a_run_in_a_database(tmp_path, monkeypatch):
    package("mlflow")
    package("sqlalchemy")
    address = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    track("mlflow", tmp_path, range(1, 6))
    track("mlflow", tmp_path, range(5, 9), resume_step=4)
    run_id = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    client = importlib.import_module("mlflow").MlflowClient(address)
    history = client.get_metric_history(run_id, "train/loss")
    assert {each.step: each.value for each in history} == {step: step / 8 for step in range(1, 9)}
    data = client.get_run(run_id).data
    assert data.metrics["final/dev/accuracy"] == 0.75
    assert data.params["train.schedule.peak_learning_rate"] == "0.01"


def test_trackio_continues_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read by the import
    package("trackio")
    track("trackio", tmp_path, range(1, 6))
    track("trackio", tmp_path, range(5, 9), resume_step=4)
    name = json.loads((tmp_path / "trackers.json").read_text())["trackio"]
    with sqlite3.connect(tmp_path / "bert_jax.db") as database:
        rows = database.execute("select step, run_name, metrics from metrics").fetchall()
    assert {run for _, run, _ in rows} == {name} and {step for step, _, _ in rows} == {*range(1, 9)}
    assert any("final/dev/accuracy" in json.loads(metrics) for _, _, metrics in rows)
