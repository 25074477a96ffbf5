"""Tests the verbs of the agent on hosts of this machine, with a stub in place of the trainer.

Covers tpu/worker/.
"""

import contextlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.tpu.fake_pod import BUNDLE, FakePod, await_true

STUB = Path(__file__).parents[1] / "helpers/tpu/stub_trainer.py"
CANARY = "canary-7f3a9c51e2"


@pytest.fixture
def make(make_pod, tmp_path):
    """Makes slices whose trainer is the stub."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STUB}" "$@"\n')
    python.chmod(0o755)

    def get(hosts: int = 1, *words: str, **fields) -> FakePod:
        pod = make_pod(hosts)
        pod.extra = {"BERT_TPU_PYTHON": str(python), "BERT_TPU_RENDEZVOUS": "40"}
        pod.write_job_spec(0, ["pretrain", "recipe.py", "--arg", *words], **fields)
        return pod

    return get


def run_verb(pod: FakePod, verb: str, host: int = 0, **more: str) -> tuple[int, str]:
    done = pod.agent(verb, 0, host, **more)
    return done.returncode, done.stdout + done.stderr


def problems(pod: FakePod, host: int = 0, **more: str) -> dict[str, dict]:
    return preflight(pod, host, **more)[1]


def preflight(pod: FakePod, host: int = 0, **more: str) -> tuple[int, dict[str, dict]]:
    """Returns the exit code of a preflight, and its problems and warnings by check."""
    code, text = run_verb(pod, "preflight", host, **more)
    report = pod.read(0, f"host-{host}.preflight.json")
    assert report is not None, text
    assert (code == 0) == report["ok"] == (not report["problems"])
    passing = not all(each["slice_independent"] for each in report["problems"])
    assert code == (0 if report["ok"] else 76 if passing else 78)
    return code, {each["check"]: each for each in [*report["problems"], *report["warnings"]]}


def test_preflight_of_a_good_host_reports_versions(make):
    pod = make()
    assert not problems(pod).keys() - {"huge pages", "open files"}
    report = pod.read(0, "host-0.preflight.json")
    assert report["versions"]["jax"] and report["address"] == "127.0.0.1"
    assert not list(pod.attempt_folder(0).glob("*.probe"))


def test_wrong_package_version_is_reported(make):
    pod = make(2)
    found = pod.agent("preflight", 0, 0) and pod.read(0, "host-0.preflight.json")
    pod.write_job_spec(
        0, ["pretrain", "x"], required_versions={"jax": found["versions"]["jax"], "libtpu": "9.9"}
    )
    both = [problems(pod, 0), problems(pod, 1, FAKE_JAX_VERSION="0.4.1")]
    assert "version of jax" not in both[0]
    assert both[1]["version of jax"]["found"] == "0.4.1"
    assert both[1]["version of jax"]["expected"] == found["versions"]["jax"]
    assert both[0]["version of libtpu"]["expected"] == "9.9"
    assert "tpu/tpuctl sync" in both[0]["version of libtpu"]["fix"]


def test_missing_or_used_chips_are_reported(make):
    pod = make()
    (pod.home(0) / "dev/vfio/3").unlink()
    found = problems(pod)["chips"]
    assert found["found"].startswith("3 in") and found["expected"].startswith("4,")
    held = pod.home(0) / "dev/vfio/2"
    sleep = [sys.executable, "-c", f"f = open({str(held)!r}); print(flush=True); input()"]
    with subprocess.Popen(sleep, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        found = problems(pod)["chips are free"]
        assert f"process {holder.pid}" in found["found"] and f"kill {holder.pid}" in found["fix"]
        holder.kill()
    assert "chips are free" not in problems(pod)


def test_lock_file_is_removed_only_if_chips_are_free(make):
    pod = make()
    lockfile = pod.home(0) / "libtpu_lockfile"
    lockfile.touch()
    with lockfile.open():  # by this process
        assert "chips are free" in problems(pod)
        assert lockfile.exists()
    assert "chips are free" not in problems(pod)
    assert not lockfile.exists()


def test_missing_resources_are_reported_with_numbers(make):
    pod = make(data={"wiki": "gs://bucket/data/wiki"})
    deny = {"deny_storage": [["write", f"{pod.run_url}/attempts/0/host-0.probe"]]}
    (pod.folder / "script.json").write_text(json.dumps(deny))
    work = pod.home(0) / "bert_jax/runs/try"
    work.parent.mkdir(exist_ok=True)
    work.write_text("in the way")
    found = problems(pod, BERT_TPU_MIN_DISK_GB="1e9", BERT_TPU_MIN_MEMORY_GB="1e9")
    assert "GB free" in found["disk"]["found"] and "GB available" in found["memory"]["found"]
    assert found["data wiki"]["found"] == "nothing at gs://bucket/data/wiki"
    assert "403" in found["bucket"]["found"] and "storage.objectAdmin" in found["bucket"]["fix"]
    assert "cannot be written" in found["cache"]["found"]


@pytest.mark.parametrize(
    ("script", "check"),
    [
        pytest.param({}, "data wiki", marks=pytest.mark.slow),
        pytest.param(
            {"deny_storage": [["read", "gs://bucket/data"]]}, "data wiki", marks=pytest.mark.slow
        ),
        pytest.param(
            {"deny_storage": [["write", "gs://bucket/runs/try/attempts/0/host-0.probe"]]},
            "bucket",
            marks=pytest.mark.slow,
        ),
        ({}, "secret HF_TOKEN"),
    ],
)  # fmt: skip
def test_slice_independent_problems_have_their_own_code(make, script, check):
    what, name = check.split(" ") if " " in check else (check, "")
    held = {"HF_TOKEN": "projects/p/secrets/s/versions/latest"} if what == "secret" else {}
    pod = make(data={name: "gs://bucket/data/wiki"} if what == "data" else {}, secrets=held)
    (pod.folder / "script.json").write_text(json.dumps(script))
    code, found = preflight(pod)
    assert found.keys() >= {check} and code == 78
    (pod.home(0) / "dev/vfio/3").unlink()
    code, found = preflight(pod)
    assert found.keys() >= {check, "chips"} and code == 76


def test_transient_secret_error_is_slice_dependent(make):
    pod = make(1, secrets={"HF_TOKEN": "projects/p/secrets/s/versions/latest"})
    fail = {"match": "secrets versions access", "text": "UNAVAILABLE: try again"}
    (pod.folder / "script.json").write_text(json.dumps({"fail": [fail]}))
    assert not problems(pod)["secret HF_TOKEN"]["slice_independent"]


def test_clock_skew_and_proxy_are_warnings(make):
    pod = make()
    pod.metadata.skew = -3600.0
    found = problems(pod, https_proxy="http://x:1")
    assert re.match(r"(3599|360\d) seconds ahead of http", found["clock"]["found"])
    assert "https_proxy is set" in found["proxy"]["found"]
    assert pod.read(0, "host-0.preflight.json")["ok"]
    found = problems(pod, BERT_TPU_CLOCK="http://127.0.0.1:9")
    assert "returned no Date header" in found["clock"]["found"]


def test_wrong_address_and_wrong_bundle_are_problems(make):
    pod = make()
    pod.metadata.set(0, "instance/network-interfaces/0/ip", "10.9.9.9")
    pod.write_job_spec(0, ["pretrain", "x"], bundle="1" * 64)
    found = problems(pod)
    assert "10.9.9.9" in found["address"]["found"] and BUNDLE in found["code"]["found"]


def test_auto_host_number_uses_the_metadata_server(make):
    pod = make(2)
    pod.metadata.set(1, "instance/attributes/agent-worker-number", "0")
    assert "host 0 (127.0.0.1) is ready" in pod.agent("preflight", 0, 1, "auto").stdout.replace(
        "not ready", "ready"
    )
    pod.metadata.set(1, "instance/attributes/agent-worker-number", "7")
    assert "host 1 (127.0.0.2) is ready" in pod.agent("preflight", 0, 1, "auto").stdout
    pod.metadata.set(1, "instance/network-interfaces/0/ip", "10.9.9.9")
    done = pod.agent("preflight", 0, 1, "auto")
    assert done.returncode == 78
    assert "worker '7' and address '10.9.9.9'" in done.stderr


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["start", "gs://bucket/runs/try", "0"], 64, "usage"),
        (["fly", "gs://bucket/runs/try", "0", "0"], 64, "usage"),
        (["start", "gs://bucket/x", "0", "0"], 78, "expected gs://BUCKET/runs/RUN_ID"),
        (["start", "gs://bucket/runs/a;b", "0", "0"], 78, "is not a bucket URL"),
        (["start", "gs://bucket/runs/try", "-1", "0"], 78, "attempt '-1'"),
        (["start", "gs://bucket/runs/try", "0", "4"], 78, "expected 0 to 0, or auto"),
        (["start", "gs://bucket/runs/try", "1", "0"], 78, "does not exist"),
    ],
)
def test_invalid_agent_arguments(make, words, code, message):
    pod = make()
    script = pod.home(0) / "bert_jax" / BUNDLE / "tpu/worker/agent.py"
    done = subprocess.run(
        [sys.executable, str(script), *words],
        env=pod.environment(0),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    "word, code",
    [
        ("end=2", 2),
        pytest.param("end=1", 1, marks=pytest.mark.slow),
        pytest.param("end=70", 70, marks=pytest.mark.slow),
        ("die=yes", 137),
    ],
)
def test_trainer_exit_code_is_reported(make, word, code):
    pod = make(1, word)
    pod.launch(0)
    assert pod.await_end(0, 60) == {0: code}
    assert not (pod.run / "DONE.json").exists()
    assert pod.read(0, "host-0.exit.json")["meaning"]


def test_starts_at_once_run_one_trainer_and_stop_saves(make):
    """Tests also that the unit is a session of its own, so Ctrl-C in the launcher stops no unit."""
    pod = make(1, "run=yes")
    pod.write_job_spec(1, ["pretrain", "x", "--arg", "run=yes"])
    assert pod.agent("preflight", 0, 0).returncode == 0
    with ThreadPoolExecutor(4) as pool:
        starts = list(pool.map(lambda _: run_verb(pod, "start"), range(4)))
    assert {code for code, _ in starts} == {0}
    assert pod.starts(0) == ["bert-try-0"]
    await_true(lambda: "begins" in pod.log(0, 0), 60, pod.all_logs)
    unit = pod.unit(0, 0)
    assert unit["ActiveState"] == "active" and not pod.codes(0)
    pid = int(unit["MainPID"])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[3]) == pid  # the session
    # Another unit of the run is rejected.
    other = pod.agent("unit", 1, 0)
    assert other.returncode == 76 and "another process on this host" in other.stderr
    assert pod.read(1, "host-0.exit.json") is None
    assert "was started before" in run_verb(pod, "preflight")[1]
    assert "has ended (75: saved" in run_verb(pod, "stop")[1]
    assert pod.codes(0) == {0: 75}
    assert (pod.run / "run/saved.txt").exists()
    assert pod.read(0, "host-0.heartbeat.json")["step"] == 7
    assert run_verb(pod, "stop")[0] == 0
    assert "is not running" in pod.agent("stop", 1, 0).stdout
    # A unit that has ended is not started again.
    assert "not started again" in run_verb(pod, "start")[1]
    assert pod.starts(0) == ["bert-try-0"]


@pytest.mark.parametrize(
    "key, value",
    [
        ("instance/preempted", "TRUE"),
        pytest.param(
            "instance/maintenance-event",
            "TERMINATE_ON_HOST_MAINTENANCE",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_preemption_notice_saves(make, key, value):
    pod = make(1, "run=yes")
    pod.metadata.set(0, "instance/maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    pod.launch(0)
    await_true(lambda: "begins" in pod.log(0, 0), 60, pod.all_logs)
    time.sleep(3)  # longer than the polling interval
    assert not pod.codes(0)
    pod.metadata.set(0, key, value)
    assert pod.await_end(0, 60) == {0: 75}
    assert (pod.run / "run/saved.txt").read_text() == "saved\n"
    assert "saved step 7" in pod.log(0, 0)


def test_trainer_that_ignores_sigterm_is_killed(make):
    pod = make(1, "deaf=yes")
    pod.launch(0)
    await_true(lambda: "begins" in pod.log(0, 0), 60, pod.all_logs)
    pid = pod.read(0, "host-0.heartbeat.json")["pid"]
    pod.kill(0, 0)
    await_true(lambda: not Path(f"/proc/{pid}").exists(), 30)
    assert pod.codes(0) == {}
    assert pod.unit(0, 0)["ActiveState"] == "inactive"


def test_host_without_report_is_named(make):
    pod = make(2, "end=0")
    pod.extra["BERT_TPU_RENDEZVOUS"] = "3"
    pod.agent("preflight", 0, 0)
    pod.agent("start", 0, 0)
    await_true(lambda: 0 in pod.codes(0), 60, pod.all_logs)
    assert pod.codes(0) == {0: 76}
    assert "no report after 3 s from host 1 (127.0.0.2)" in pod.log(0, 0)


@pytest.mark.slow  # it waits for 10 s
def test_host_without_started_unit_is_named(make):
    pod = make(2, "end=0")
    pod.extra["BERT_TPU_RENDEZVOUS"] = "1"
    pod.agent("preflight", 0, 0)
    pod.agent("preflight", 0, 1)
    pod.agent("start", 0, 0)
    await_true(lambda: 0 in pod.codes(0), 60, pod.all_logs)
    assert pod.codes(0) == {0: 76}
    assert "after 10 s the trainer has not started on host 1 (127.0.0.2)" in pod.log(0, 0)


@pytest.mark.slow  # the stub of the late host may end before a busy machine polls it
def test_late_host_is_named_and_waited_for(make):
    """Tests a host that ssh did not reach at first; the other hosts wait for it."""
    pod = make(2, "end=0")
    pod.extra["BERT_TPU_RENDEZVOUS"] = "3"
    pod.agent("preflight", 0, 0)
    pod.agent("preflight", 0, 1)
    pod.agent("start", 0, 0)
    late = "after 3 s the trainer has not started on host 1 (127.0.0.2); still waiting"
    await_true(lambda: late in pod.log(0, 0), 30, pod.all_logs)
    pod.agent("start", 0, 1)
    assert pod.await_end(0, 60) == {0: 0, 1: 0}, pod.all_logs()


def test_waiting_host_can_be_stopped(make):
    pod = make(2, "end=0")
    pod.agent("preflight", 0, 0)
    pod.agent("preflight", 0, 1)
    pod.agent("start", 0, 0)
    await_true(lambda: (pod.read(0, "host-0.heartbeat.json") or {}).get("phase") == "waiting", 30)
    begun = time.monotonic()
    assert "has ended (75: saved" in run_verb(pod, "stop")[1]
    assert time.monotonic() - begun < 30 and pod.codes(0) == {0: 75}


@pytest.mark.slow  # test_failed_preflight_of_one_host_stops_all is the fast one
def test_hosts_with_different_versions_do_not_train(make):
    pod = make(2, "end=0")
    pod.agent("preflight", 0, 0)
    pod.agent("preflight", 0, 1, FAKE_JAX_VERSION="0.4.1")
    for host in range(2):
        pod.agent("start", 0, host)
    assert pod.await_end(0, 120) == {0: 76, 1: 76}
    for host in range(2):
        assert "host 1 (127.0.0.2) has jax 0.4.1, host 0 has" in pod.log(0, host)


def test_failed_preflight_of_one_host_stops_all(make):
    pod = make(2, "end=0")
    (pod.home(1) / "dev/vfio/0").unlink()
    for host in range(2):
        pod.agent("preflight", 0, host)
        pod.agent("start", 0, host)
    assert pod.await_end(0, 120) == {0: 76, 1: 76}
    assert "host 1 (127.0.0.2) is not ready: chips: found 3" in pod.log(0, 0)
    assert not (pod.run / "run/began.txt").exists()


def test_successful_attempt_and_later_one_with_unknown_job_spec_key(make):
    pod = make(1, "end=0")
    pod.launch(0)
    assert pod.await_end(0, 60) == {0: 0}
    await_true(lambda: (pod.run / "DONE.json").exists(), 30)
    assert (pod.run / "run/began.txt").read_text() == "0\n"
    assert "\nbegins\n" in pod.log(0, 0)
    await_true(lambda: pod.unit(0, 0)["ActiveState"] == "inactive", 60)
    file = pod.attempt_folder(1) / "job.json"
    file.parent.mkdir()
    order = json.loads((pod.attempt_folder(0) / "job.json").read_text())
    file.write_text(json.dumps({**order, "attempt": 1, "hostess": []}))
    assert pod.agent("unit", 1, 0).returncode == 78
    assert "unknown key hostess" in pod.read(1, "host-0.exit.json")["meaning"]


def test_secret_is_in_no_file_and_no_argv(make):
    pod = make(
        1, "run=yes", "say=HF_TOKEN", secrets={"HF_TOKEN": "projects/p/secrets/s/versions/latest"}
    )
    script = pod.folder / "script.json"
    script.write_text(json.dumps({"secrets": {"projects/p/secrets/s": CANARY}}))
    pod.extra |= {"OTHER_TOKEN": "of-the-caller", "BERT_JAX_TOKEN": "of-the-caller"}
    pod.launch(0)
    await_true(lambda: "begins" in pod.log(0, 0), 60, pod.all_logs)
    await_true(lambda: "HF_TOKEN is <HF_TOKEN>" in pod.log(0, 0), 30, pod.all_logs)
    pid = pod.read(0, "host-0.heartbeat.json")["pid"]
    environment = Path(f"/proc/{pid}/environ").read_text()
    assert CANARY in environment and "of-the-caller" not in environment
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                assert CANARY not in (process / "cmdline").read_text()
    pod.agent("stop", 0, 0)
    script.unlink()
    for file in pod.folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            assert CANARY.encode() not in file.read_bytes(), file


@pytest.mark.slow  # test_secret_is_in_no_file_and_no_argv is the fast one
def test_secret_in_shard_output_is_redacted_in_the_bucket(make):
    pod = make(1)
    secrets = {"projects/p/secrets/s": f'{CANARY}"&'}
    (pod.folder / "script.json").write_text(json.dumps({"secrets": secrets}))
    words = ["glue", "--zip", "say=HF_TOKEN"]
    held = {"HF_TOKEN": "projects/p/secrets/s/versions/latest"}
    pod.write_job_spec(0, words, mode="shards", secrets=held)
    pod.launch(0)
    assert pod.await_end(0, 120) == {0: 0}, pod.all_logs()
    for lane in range(4):
        log = (pod.run / f"run/cell-{lane}/log.txt").read_text()
        assert log == "begins\nHF_TOKEN is <HF_TOKEN>\n"
    assert "HF_TOKEN is <HF_TOKEN>" in (pod.run / "run/results.json").read_text()
    assert (pod.run / "run/table.md").read_text() == "HF_TOKEN is <HF_TOKEN>"
    for file in pod.bucket.rglob("*"):
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file


def test_unreadable_secret_is_reported_by_name(make):
    pod = make(1, "end=0", secrets={"HF_TOKEN": "projects/p/secrets/s/versions/latest"})
    found = problems(pod)["secret HF_TOKEN"]
    assert "projects/p/secrets/s" in found["found"]
    assert "secretmanager.secretAccessor" in found["fix"]
