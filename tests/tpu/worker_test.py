"""Tests the worker with real processes on fake hosts; the trainer is a stub.

Covers tpu/worker.py, tpu/host/start.sh and tpu/host/bootstrap.sh.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from tests.helpers.tpu.cloud import DATA, HERE, ONE, ROOT, FakeCloud
from tests.helpers.tpu.fake_gcloud import hosts
from tpu.job import Job
from tpu.worker import combine_exit_codes, find_host, work

NODE = "node"
POD = ("--", "pretrain", "configs/pretrain/bert.py", "--arg", "corpus=@data/wiki/train")
GLUE = ("--", "glue", "--glue-dir", "@data/wiki", "say=HOME")
SECRET = "projects/p/secrets/hf"
VALUE = "correct-horse-battery"
TIMEOUT_SECONDS = 120


class Pod:
    """Runs `tpuctl work` on the hosts of a slice."""

    def __init__(self, cloud: FakeCloud, python: Path):
        self.cloud = cloud
        self.processes: list[subprocess.Popen[bytes]] = []
        self.variables = {"BERT_TPU_PYTHON": str(python), "BERT_TPU_ATTEMPT": "1"}
        self.variables["BERT_TPU_HOSTS"] = ",".join(map(hosts.address, range(4)))
        hosts.prepare(cloud.folder, NODE, 4)

    def home(self, host: int) -> Path:
        """Returns the home folder of a host."""
        return self.cloud.folder / "hosts" / f"{NODE}-{host}"

    def environment(self, host: int, **variables: str) -> dict[str, str]:
        """Returns the environment of a process on a host."""
        return {**hosts.environment(self.cloud.folder, NODE, host), **self.variables, **variables}

    def start(self, host: int, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts the worker of a host."""
        command = [str(ROOT / "tpu/tpuctl"), "work", "--slice", "v6e-16", *ONE, *DATA, *words]
        process = subprocess.Popen(
            command,
            env=self.environment(host, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.processes.append(process)
        return process

    def run(self, host: int, *words: str, **variables: str) -> int:
        """Runs the worker of a host and returns its exit code, which the bucket must have, too."""
        process = self.start(host, *words, **variables)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        code = process.returncode
        assert self.exit_object(host, code).exists(), output.decode()
        return code

    def exit_object(self, host: int, code: int) -> Path:
        """Returns the object that reports an exit code."""
        return self.cloud.object(f"attempts/1/host-{host}.exit-{code}")

    def log(self, host: int) -> str:
        """Returns the log of a host in the bucket."""
        return self.cloud.object(f"attempts/1/host-{host}.log").read_text()


@pytest.fixture
def pod(cloud: FakeCloud, tmp_path: Path):
    """Provides a pod whose Python is the stub trainer."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE}/stub_trainer.py "$@"\n')
    python.chmod(0o755)
    made = Pod(cloud, python)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
    hosts.kill(cloud.folder, NODE)


def await_true(check: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def test_all_hosts_train_together(pod: Pod):
    started = [pod.start(host, *POD, "say=BERT_JAX_COORDINATOR") for host in range(4)]
    for host, process in enumerate(started):
        assert process.wait(timeout=TIMEOUT_SECONDS) == 0
        assert pod.exit_object(host, 0).exists()
        assert "BERT_JAX_COORDINATOR is 127.0.0.2:8476" in pod.log(host)
        run_folder = pod.home(host) / "bert_jax/runs/r1/run"
        assert (run_folder / "began.txt").read_text() == f"{host}\n"
        assert (run_folder.parent / "data/wiki/train/0.records").exists()
    # Host 0 copies its folder to the bucket.
    assert pod.cloud.object("run/began.txt").read_text() == "0\n"
    assert "corpus=data/wiki/train" in pod.log(0)


def test_verify_writes_to_the_run_folder(pod: Pod):
    assert pod.run(0, "--", "verify", "say=HOME") == 0
    assert "verify say=HOME --output run --checkpoints " in pod.log(0)
    assert pod.cloud.object("run/table.md").exists()  # what the stub writes to --output


def test_run_folder_of_an_earlier_attempt_is_fetched(pod: Pod):
    for name in ("run/metrics.jsonl", "run/checkpoints/7/data"):
        pod.cloud.object(name).parent.mkdir(parents=True, exist_ok=True)
        pod.cloud.object(name).write_text("x")
    outdated = pod.home(1) / "bert_jax/runs/r1/run/outdated"
    outdated.parent.mkdir(parents=True)
    outdated.touch()
    assert pod.run(1, *POD) == 0
    found = {path.name for path in outdated.parent.iterdir()}
    assert found == {"metrics.jsonl", "began.txt"}


def test_sigterm_saves(pod: Pod):
    process = pod.start(0, *POD, "run=yes")
    began = pod.home(0) / "bert_jax/runs/r1/run/began.txt"
    await_true(lambda: began.exists() and b"begins" in log_of(pod))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=TIMEOUT_SECONDS) == 75
    assert pod.cloud.object("run/checkpoints/7/checksums.json").exists()
    assert pod.cloud.object("run/saved.txt").exists() and "saved step 7" in pod.log(0)


def log_of(pod: Pod) -> bytes:
    """Returns the local log of host 0."""
    file = pod.home(0) / "bert_jax/runs/r1/1.log"
    return file.read_bytes() if file.exists() else b""


@pytest.mark.parametrize(
    ("key", "value"),
    [("preempted", "TRUE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")],
)
def test_preemption_notice_saves(pod: Pod, key: str, value: str):
    process = pod.start(0, *POD, "run=yes")
    await_true(lambda: b"begins" in log_of(pod))
    hosts.set_metadata(pod.home(0), f"instance/{key}", value)
    assert process.wait(timeout=TIMEOUT_SECONDS) == 75
    assert "the machine is about to be preempted" in pod.log(0)


@pytest.mark.parametrize(
    ("word", "code"), [("end=1", 1), ("end=2", 2), ("end=134", 134), ("die=yes", 137)]
)
def test_exit_codes_of_the_trainer_are_reported(pod: Pod, word: str, code: int):
    assert pod.run(2, *POD, word) == code
    assert f"exit code {code}" in pod.log(2)


def test_exit_object_of_a_repeated_attempt_is_replaced(pod: Pod):
    assert pod.run(2, *POD, "end=75") == 75
    assert pod.run(2, *POD) == 0
    assert not pod.exit_object(2, 75).exists()


def test_secret_reaches_the_trainer_but_no_log(pod: Pod):
    pod.cloud.script(secrets={SECRET: VALUE})
    assert pod.run(0, "--env-secret", f"MY_VALUE={SECRET}", *POD, "say=MY_VALUE") == 0
    assert "MY_VALUE is <MY_VALUE>" in pod.log(0)
    files = [*pod.cloud.folder.rglob("*")]
    texts = [file.read_bytes() for file in files if file.is_file() and file.name != "script.json"]
    assert not [text for text in texts if VALUE.encode() in text]


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        ({}, ("--env-secret", f"X={SECRET}"), "Secret [projects/p/secrets/hf] was not found"),
        ({"deny_storage": [["read", "gs://bucket/data"]]}, (), "does not have storage.objects.get"),
        ({}, ("--data", "more=gs://bucket/nothing"), "gs://bucket/nothing"),
    ],
)
def test_missing_data_and_permissions_are_permanent(pod: Pod, script, words, message):
    pod.cloud.script(**script)
    assert pod.run(3, *words, *POD) == 78
    assert f"error: gcloud {'secrets' if 'Secret' in message else 'storage'}" in pod.log(3)
    assert message in pod.log(3) and "what to do: " in pod.log(3)


def test_temporary_storage_error_is_retried(pod: Pod):
    fail = {"match": "storage rsync .*data/wiki", "times": 1, "text": "HTTPError 503"}
    pod.cloud.script(fail=[fail])
    assert pod.run(1, *POD) == 0


def test_failed_installation_may_work_on_another_slice(pod: Pod, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin/uv"
    uv.write_text("#!/bin/sh\necho no network >&2; exit 1\n")
    uv.chmod(0o755)
    path = f"{uv.parent}:{pod.environment(0)['PATH']}"
    assert pod.run(0, *POD, BERT_TPU_PYTHON="", PATH=path) == 76
    assert "no network" in pod.log(0) and "could not be installed" in pod.log(0)


def test_unexpected_error_is_reported(pod: Pod):
    pod.home(0).joinpath("bert_jax/runs/r1").mkdir(parents=True)
    pod.home(0).joinpath("bert_jax/runs/r1/data").write_text("a file, not a folder")
    assert pod.run(0, *POD) == 1
    assert "unexpected error in the worker" in pod.log(0) and "NotADirectoryError" in pod.log(0)


def test_each_chip_runs_a_shard_and_host_0_writes_the_table(pod: Pod):
    started = [pod.start(host, *GLUE) for host in range(4)]
    for process in started:
        assert process.wait(timeout=TIMEOUT_SECONDS) == 0
    run_folder = pod.cloud.object("run")
    assert len([*run_folder.glob("cell-*/finished.json")]) == 16
    assert (
        json.loads((run_folder / "results.json").read_text()) and (run_folder / "table.md").exists()
    )
    shards = [line for line in pod.log(2).splitlines() if "--shard" in line]
    assert [line.split()[-1] for line in shards] == ["8", "9", "10", "11"]
    # What completes a folder is copied after everything else in it.
    lines = pod.cloud.commands("storage rsync", str(pod.home(1) / "bert_jax/runs/r1/run gs://"))
    assert ["finished" in line.split("--exclude=")[1] for line in lines] == [True, False]


def test_host_0_reports_the_failure_of_another_host(pod: Pod):
    pod.exit_object(2, 134).parent.mkdir(parents=True)
    pod.exit_object(2, 134).touch()
    assert pod.run(0, *GLUE) == 134
    assert "host 2 has exited with code 134" in pod.log(0)
    assert not pod.cloud.object("run/table.md").exists()


def test_second_start_does_nothing(pod: Pod):
    command = [str(ROOT / "tpu/host/start.sh"), "unit-1", "600", "--slice", "v6e-16", *ONE, *DATA]
    outputs = []
    for _ in range(2):
        environment = pod.environment(0, XLA_FLAGS="--a=1 --b=2", HF_TOKEN="x")
        done = subprocess.run([*command, *POD], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs == ["unit-1 was started\n", "unit-1 was started before\n"]
    await_true(pod.exit_object(0, 0).exists)
    starts = pod.home(0) / ".fake-systemd/starts.txt"
    assert starts.read_text() == "unit-1\n"


def test_host_without_systemd_can_be_started_again(pod: Pod, tmp_path: Path):
    (tmp_path / "sudo").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sudo").chmod(0o755)
    path = f"{tmp_path}:{pod.environment(0)['PATH']}"
    command = [str(ROOT / "tpu/host/start.sh"), "unit-1", "600", *ONE, *POD]
    for _ in range(2):
        done = subprocess.run(command, env=pod.environment(0, PATH=path), capture_output=True)
        assert done.returncode == 1


def test_hosts_of_skypilot_are_recognized():
    variables = {
        "SKYPILOT_NODE_RANK": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4",
        "SKYPILOT_TASK_ID": "sky-managed-1",
    }
    host = find_host(variables)
    assert (host.number, host.addresses[1], len(host.addresses)) == (2, "10.0.0.2", 4)
    other = find_host({**variables, "SKYPILOT_NODE_IPS": "10.0.0.5"})
    assert other.attempt != host.attempt and host.attempt.startswith("sky-")


def test_machine_that_is_no_host_is_rejected(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="this machine is not a host of a slice"):
        find_host({})
    monkeypatch.setenv("BERT_TPU_METADATA", "file:///nowhere")
    with pytest.raises(UserError, match="returned the worker number None, expected 0 to 3"):
        find_host({"BERT_TPU_HOSTS": "a,b,c,d"})


def test_slice_with_another_number_of_hosts_is_rejected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERT_TPU_HOSTS", "127.0.0.1")
    job = Job(bucket="gs://bucket", run_id="r1", slice="v6e-16", arguments=("glue",))
    with pytest.raises(UserError, match="the slice has 1 hosts, but v6e-16 has 4"):
        work(job)


@pytest.mark.parametrize(
    ("codes", "stop_requested", "expected"),
    [
        ([0, 0], False, 0), ([0, 1], False, 1), ([134, 75], False, 75), ([0, 143], True, 75),
        ([0, 143], False, 143), ([], True, 75),
    ],
)  # fmt: skip
def test_exit_codes_are_combined(codes: list[int], stop_requested: bool, expected: int):
    assert combine_exit_codes(codes, stop_requested=stop_requested) == expected


def test_worker_runs_on_the_python_of_tpu_images():
    """Tests what can be tested without Python 3.10: only the standard library is imported."""
    command = [sys.executable, "-S", "-c", "import tpu.worker, tpu.cli"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0
