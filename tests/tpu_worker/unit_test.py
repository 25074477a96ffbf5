"""Tests whole attempts with real trainers: complete, preempted, killed, resumed.

Covers tpu/worker/job.py.
"""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from bert_jax.params import paths
from bert_jax.pretrained.load import load_model
from tests.helpers.tpu.fake_pod import FakePod, await_true
from tests.helpers.tpu.metadata_server import serving


def put_corpus(pod: FakePod, corpus: Path) -> dict:
    shutil.copytree(corpus, pod.bucket / "data" / "tiny")
    return {"data": {"tiny": "gs://bucket/data/tiny"}}


def pretrain(steps: int, every: int = 3) -> list[str]:
    arguments = ["corpus=@data/tiny/train", f"steps={steps}", f"every={every}"]
    return ["pretrain", "@data/tiny/recipe.py", "--arg", *arguments]


def parameters(pod: FakePod) -> dict[str, np.ndarray]:
    return paths.flatten(load_model(pod.run / "run").params)


def steps_logged(pod: FakePod) -> list[int]:
    rows = (pod.run / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["step"] for row in rows if json.loads(row)["split"] == "train"]


@pytest.mark.slow
def test_two_hosts_train_to_the_end(make_pod, corpus):
    pod = make_pod(2)
    pod.write_job_spec(0, pretrain(6), **put_corpus(pod, corpus))
    pod.launch(0)
    assert pod.await_end(0) == {0: 0, 1: 0}, pod.all_logs()
    await_true(lambda: (pod.run / "DONE.json").exists(), 30)
    assert json.loads((pod.run / "DONE.json").read_text())["run_id"] == "try"
    assert steps_logged(pod) == [1, 2, 3, 4, 5, 6]
    state = pod.read(0, "host-0.heartbeat.json")
    assert (state["phase"], state["step"]) == ("ended", 6)
    assert "process 1 of 2" in pod.log(0, 1)
    assert (pod.run / "run" / "report.html").exists()
    passing = [file for kind in ("tmp", "partial") for file in (pod.run / "run").rglob(f"*.{kind}")]
    assert not passing and not (pod.run / "run" / "lock").exists()
    assert parameters(pod)
    # A broken connection may repeat the start even after the end.
    again = pod.agent("start", 0, 1)
    assert again.returncode == 0 and "has already ended (0: done)" in again.stdout
    assert pod.starts(1) == ["bert-try-0"]
    assert pod.unit(0, 1)["ActiveState"] == "inactive"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus) -> dict[str, np.ndarray]:
    """Returns the parameters after 24 undisturbed steps on four hosts."""
    with serving() as metadata:
        pod = FakePod(tmp_path_factory.mktemp("undisturbed") / "cloud", metadata, 4)
        pod.write_job_spec(0, pretrain(24, every=8), **put_corpus(pod, corpus))
        pod.launch(0)
        assert pod.await_end(0, 400) == dict.fromkeys(range(4), 0), pod.all_logs()
        return parameters(pod)


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for path, value in one.items():
        np.testing.assert_array_equal(value, other[path], err_msg=path)


@pytest.mark.slow
def test_resume_after_a_preemption_notice_is_bit_identical(make_pod, corpus, undisturbed):
    pod = make_pod(4)
    data = put_corpus(pod, corpus)
    pod.write_job_spec(0, pretrain(24, every=8), **data)
    pod.launch(0)
    await_true(lambda: (pod.run / "run/metrics.jsonl").exists(), 240, pod.all_logs)
    pod.metadata.set(2, "instance/preempted", "TRUE")
    assert pod.await_end(0) == dict.fromkeys(range(4), 75), pod.all_logs()
    (step,) = {line.split(" saved step ")[1].split(";")[0] for line in saves(pod, 0)}
    assert 1 <= int(step) < 24
    assert pod.read(0, "host-0.heartbeat.json")["step"] == int(step)
    assert steps_logged(pod) == list(range(1, int(step) + 1))

    for host in range(4):  # a new slice has no files of the old one
        pod.make_host(host)
    pod.write_job_spec(1, pretrain(24, every=8), **data)
    pod.launch(1)
    assert pod.await_end(1, 400) == dict.fromkeys(range(4), 0), pod.all_logs()
    assert f"begins after step {step} of 24" in pod.log(1, 3)
    assert steps_logged(pod) == list(range(1, 25))
    assert_equal(parameters(pod), undisturbed)


@pytest.mark.slow
def test_resume_after_an_interrupted_save_is_bit_identical(make_pod, corpus, undisturbed):
    pod = make_pod(4)
    data = put_corpus(pod, corpus)
    pod.write_job_spec(0, pretrain(24, every=8), **data)
    pod.launch(0)
    checkpoints = pod.run / "run/checkpoints"
    await_true(lambda: (checkpoints / "8/checksums.json").exists(), 240, pod.all_logs)
    for host in range(4):
        pod.metadata.set(host, "instance/preempted", "TRUE")
    await_true(lambda: any("asked to stop" in local_log(pod, host) for host in range(4)), 60)
    time.sleep(0.3)
    for host in range(4):
        pod.kill(0, host)
    # Simulates an interrupted write: a step without its last objects.
    newest = max(int(p.name) for p in checkpoints.iterdir() if p.name.isdecimal())
    half = checkpoints / str(newest + 1)
    shutil.copytree(checkpoints / str(newest), half)
    (half / "checksums.json").unlink()

    for host in range(4):
        pod.make_host(host)
    pod.write_job_spec(1, pretrain(24, every=8), **data)
    pod.launch(1)
    assert pod.await_end(1, 400) == dict.fromkeys(range(4), 0), pod.all_logs()
    assert f"begins after step {newest} of 24" in pod.log(1, 0)
    assert steps_logged(pod) == list(range(1, 25))
    assert_equal(parameters(pod), undisturbed)


def saves(pod: FakePod, incarnation: int) -> list[str]:
    lines = [pod.log(incarnation, host).splitlines() for host in range(pod.hosts)]
    found = [line for each in lines for line in each if " saved step " in line]
    assert len(found) == pod.hosts, pod.all_logs()
    return found


def local_log(pod: FakePod, host: int) -> str:
    file = pod.home(host) / "bert_jax/runs/try/0.log"
    return file.read_text() if file.exists() else ""
