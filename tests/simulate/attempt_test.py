"""One life of a pod, with hosts that are a few lines of Python without JAX."""

import os
import signal
import sys
import time

import pytest

from bert_jax.simulate import attempt as life_module
from bert_jax.simulate.attempt import Attempt, free_port, newest_checkpoint_step, run_attempt
from bert_jax.simulate.scenario import Kill, Scenario
from bert_jax.simulate.simulated_host import host_environment

# What every host does: finds its number, says it, and then runs the lines that it was given.
BEGIN = """
import os, sys, time
here = int(os.environ.get("BERT_JAX_PROCESS_ID", 0))
run = sys.argv[1]
print(f"process {here} of 2: begins after step 0 of 9", flush=True)
def log(step):
    with open(os.path.join(run, "aside"), "w") as stream:
        stream.write('{"split": "train", "step": %d}\\n' % step)
    os.replace(os.path.join(run, "aside"), os.path.join(run, "metrics.jsonl"))
"""


@pytest.fixture
def one_life(tmp_path):
    """Lines of Python -> what came of two hosts that run them, and what was heard."""

    def get(lines: str, *, stop=None, **changes) -> tuple[Attempt, list[tuple[int, str]]]:
        heard: list[tuple[int, str]] = []
        made = {
            "command": (sys.executable, "-c", BEGIN + lines, str(tmp_path)),
            "run": tmp_path,
            "hosts_per_attempt": (2,),
            "devices_per_host": 1,
            "steps": 9,
        }
        found = run_attempt(
            Scenario(**made | changes),
            0,
            on_line=lambda host, line: heard.append((host, line)),
            log=lambda line: heard.append((-1, line)),
            next_signal=stop or (lambda: None),
        )
        return found, heard

    return get


def test_hosts_that_are_done(one_life):
    found, heard = one_life("print('[Gloo] Rank 0 is connected'); print('hello')")
    assert found == Attempt(num_hosts=2, exit_codes={0: 0, 1: 0}, resumed_from={0: 0, 1: 0})
    assert sorted(h for h in heard if h[1] == "hello") == [(0, "hello"), (1, "hello")]
    assert not any("Gloo" in line for _, line in heard)


def test_the_one_that_fails_first_is_known_with_what_it_said(one_life):
    found, _ = one_life("if here: print('error: no'); print('more'); sys.exit(3)\ntime.sleep(1)")
    assert found.exit_codes == {0: 0, 1: 3} and found.first_failed_host == 1
    assert found.errors == {1: "error: no"}


def test_a_host_is_killed_at_its_step_and_those_that_hang_are_ended(one_life, monkeypatch):
    monkeypatch.setattr(life_module, "GRACE_SECONDS", 0.5)
    kill = Kill(host=1, step=4, signal_to_send=signal.SIGKILL)
    lines = "if here == 0:\n  for step in range(1, 6): log(step); time.sleep(.1)\ntime.sleep(99)"
    found, heard = one_life(lines, kills=(kill,))
    assert found.exit_codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert found.killed in [(kill, 4), (kill, 5)]
    assert found.first_failed_host == 1 and found.killed_by_simulator == [0]
    assert any("SIGKILL to host 1; step" in line for _, line in heard)


def test_a_log_of_a_former_life_kills_nobody(one_life, tmp_path):
    """The file is there with high steps until the run writes it anew."""
    (tmp_path / "metrics.jsonl").write_text('{"split": "train", "step": 8}\n')
    kill = Kill(host=1, step=4, signal_to_send=signal.SIGTERM)
    found, _ = one_life("time.sleep(.5)\nif here == 0: log(2)", kills=(kill,))
    assert found.killed is None and found.exit_codes == {0: 0, 1: 0}


def test_a_step_that_is_saved_already_kills_nobody(one_life, tmp_path):
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    kill = Kill(host=1, step=4, signal_to_send=signal.SIGTERM)
    found, heard = one_life("if here == 0: log(6)\ntime.sleep(.3)", kills=(kill,))
    assert found.killed is None
    assert (-1, "step 5 is saved already: no SIGTERM at step 4") in heard


def test_a_request_to_stop_reaches_every_host(one_life):
    begun = time.monotonic()
    asked = []

    def stop():
        if asked or time.monotonic() - begun < 1.0:
            return None
        asked.append(True)
        return signal.SIGTERM

    lines = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\ntime.sleep(30)"
    found, _ = one_life(lines, stop=stop)
    assert found.exit_codes == {0: 75, 1: 75} and found.first_failed_host is None


def test_a_dropped_host_is_not_started(one_life):
    found, heard = one_life("", missing_hosts=frozenset({1}))
    assert found.exit_codes == {0: 0}
    assert (-1, "host 1 is not started") in heard


def test_the_environment_of_a_host(monkeypatch):
    monkeypatch.setenv("BERT_JAX_PROCESS_ID", "7")
    monkeypatch.setenv("BERT_JAX_HEARTBEAT_SECONDS", "33")
    found = host_environment(1, 4, 2, 5000)
    assert found["BERT_JAX_COORDINATOR"] == "127.0.0.1:5000"
    assert found["BERT_JAX_PROCESS_ID"] == "1" and found["BERT_JAX_NUM_PROCESSES"] == "4"
    assert found["BERT_JAX_LOCAL_DEVICES"] == "2" and found["JAX_PLATFORMS"] == "cpu"
    assert found["BERT_JAX_HEARTBEAT_SECONDS"] == "33"
    assert found["BERT_JAX_RENDEZVOUS_SECONDS"] == "40"
    assert found["PATH"] == os.environ["PATH"]
    alone = host_environment(0, 1, 2, 5000)
    assert not {"BERT_JAX_COORDINATOR", "BERT_JAX_PROCESS_ID"} & alone.keys()


def test_the_newest_checkpoint(tmp_path):
    assert newest_checkpoint_step(tmp_path) == 0
    for name in ("5", "10", "12.orbax-checkpoint-tmp", "9.damaged"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest_checkpoint_step(tmp_path) == 10


def test_two_ports_beside_each_other():
    assert 0 < free_port() < 65535
