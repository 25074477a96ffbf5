"""Runs attempts with hosts that are a few lines of Python without JAX.

Covers bert_jax/apps/simulate/attempt.py and bert_jax/apps/simulate/attempt.py.
"""

import os
import signal
import sys
import time

import pytest

from bert_jax.apps.simulate import attempt as attempt_module
from bert_jax.apps.simulate.attempt import (
    Attempt,
    free_port,
    host_environment,
    newest_checkpoint_step,
    run_attempt,
)
from bert_jax.apps.simulate.scenario import Kill, Scenario
from bert_jax.train.preemption import START_MESSAGE

# The first lines of every host's script: reads its index and reports the step it begins after.
BEGIN = (
    f"""
START_MESSAGE = {START_MESSAGE!r}
"""
    + """
import os, sys, time
here = int(os.environ.get("BERT_JAX_PROCESS_ID", 0))
run = sys.argv[1]
print(f"process {here} of 2: {START_MESSAGE} step 0 of 9", flush=True)
def log(step):
    with open(os.path.join(run, "new_metrics"), "w") as stream:
        stream.write('{"split": "train", "step": %d}\\n' % step)
    os.replace(os.path.join(run, "new_metrics"), os.path.join(run, "metrics.jsonl"))
"""
)


@pytest.fixture
def run_hosts(tmp_path):
    """Returns a function that runs lines of Python on two hosts: (attempt, printed lines)."""

    def get(lines: str, *, next_signal=None, **changes) -> tuple[Attempt, list[tuple[int, str]]]:
        printed: list[tuple[int, str]] = []
        settings = {
            "command": (sys.executable, "-c", BEGIN + lines, str(tmp_path)),
            "run": tmp_path,
            "hosts_per_attempt": (2,),
            "devices_per_host": 1,
            "steps": 9,
        }
        found = run_attempt(
            Scenario(**settings | changes),
            0,
            on_line=lambda host, line: printed.append((host, line)),
            log=lambda line: printed.append((-1, line)),
            next_signal=next_signal or (lambda: None),
        )
        return found, printed

    return get


def test_hosts_that_complete_the_run(run_hosts):
    found, printed = run_hosts("print('[Gloo] Rank 0 is connected'); print('hello')")
    assert found == Attempt(num_hosts=2, exit_codes={0: 0, 1: 0}, resumed_from={0: 0, 1: 0})
    assert sorted(h for h in printed if h[1] == "hello") == [(0, "hello"), (1, "hello")]
    assert not any("Gloo" in line for _, line in printed)


def test_first_failed_host_and_its_error(run_hosts):
    found, _ = run_hosts("if here: print('error: no'); print('more'); sys.exit(3)\ntime.sleep(1)")
    assert found.exit_codes == {0: 0, 1: 3} and found.first_failed_host == 1
    assert found.errors == {1: "error: no"}


def test_host_is_killed_at_step_and_hanging_hosts_too(run_hosts, monkeypatch):
    monkeypatch.setattr(attempt_module, "GRACE_SECONDS", 0.5)
    kill = Kill(host=1, step=4, signal_to_send=signal.SIGKILL)
    lines = "if here == 0:\n  for step in range(1, 6): log(step); time.sleep(.1)\ntime.sleep(99)"
    found, printed = run_hosts(lines, kills=(kill,))
    assert found.exit_codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert found.killed in [(kill, 4), (kill, 5)]
    assert found.first_failed_host == 1 and found.killed_by_simulator == [0]
    assert any("sending SIGKILL to host 1 after step" in line for _, line in printed)


def test_metrics_of_earlier_attempt_trigger_no_kill(run_hosts, tmp_path):
    """The old file with high steps exists until the run replaces it."""
    (tmp_path / "metrics.jsonl").write_text('{"split": "train", "step": 8}\n')
    kill = Kill(host=1, step=4, signal_to_send=signal.SIGTERM)
    found, _ = run_hosts("time.sleep(.5)\nif here == 0: log(2)", kills=(kill,))
    assert found.killed is None and found.exit_codes == {0: 0, 1: 0}


def test_kill_at_saved_step_is_skipped(run_hosts, tmp_path):
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    kill = Kill(host=1, step=4, signal_to_send=signal.SIGTERM)
    found, printed = run_hosts("if here == 0: log(6)\ntime.sleep(.3)", kills=(kill,))
    assert found.killed is None
    assert (-1, "SIGTERM at step 4 is skipped: step 5 is already saved") in printed


def test_signal_is_forwarded_to_every_host(run_hosts):
    start_time = time.monotonic()
    sent = []

    def next_signal():
        if sent or time.monotonic() - start_time < 1.0:
            return None
        sent.append(True)
        return signal.SIGTERM

    lines = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\ntime.sleep(30)"
    found, _ = run_hosts(lines, next_signal=next_signal)
    assert found.exit_codes == {0: 75, 1: 75} and found.first_failed_host is None


def test_missing_host_is_not_started(run_hosts):
    found, printed = run_hosts("", missing_hosts=frozenset({1}))
    assert found.exit_codes == {0: 0}
    assert (-1, "host 1 is not started (--missing-host)") in printed


def test_host_environment(monkeypatch):
    monkeypatch.setenv("BERT_JAX_PROCESS_ID", "7")
    monkeypatch.setenv("BERT_JAX_HEARTBEAT_SECONDS", "33")
    found = host_environment(1, 4, 2, 5000)
    assert found["BERT_JAX_COORDINATOR"] == "127.0.0.1:5000"
    assert found["BERT_JAX_PROCESS_ID"] == "1" and found["BERT_JAX_NUM_PROCESSES"] == "4"
    assert found["BERT_JAX_LOCAL_DEVICES"] == "2" and found["JAX_PLATFORMS"] == "cpu"
    assert found["BERT_JAX_HEARTBEAT_SECONDS"] == "33"
    assert found["BERT_JAX_RENDEZVOUS_SECONDS"] == "40"
    assert found["PATH"] == os.environ["PATH"]
    single_host = host_environment(0, 1, 2, 5000)
    assert not {"BERT_JAX_COORDINATOR", "BERT_JAX_PROCESS_ID"} & single_host.keys()


def test_newest_checkpoint_step(tmp_path):
    assert newest_checkpoint_step(tmp_path) == 0
    for name in ("5", "10", "12.orbax-checkpoint-tmp", "9.damaged"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest_checkpoint_step(tmp_path) == 10


def test_free_port():
    assert 0 < free_port() < 65535
