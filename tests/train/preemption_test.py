"""Tests signals that make a run save and exit, in one and several processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.apps.simulate.attempt import free_port
from bert_jax.errors import UserError
from bert_jax.parallel import processes
from bert_jax.train.preemption import EXIT_PREEMPTED, Preemption

LOOP = """
import os, sys, time
import jax, numpy as np
from jax.experimental import multihost_utils
from bert_jax.parallel import processes
from bert_jax.train.preemption import EXIT_PREEMPTED, Preemption

processes.initialize(processes.config_from_environment())
first, tell = int(os.environ.get("FIRST", 1)), int(os.environ.get("TELL", 5))
with Preemption() as preemption:
    for step in range(first, first + 500):
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"step {step}")
        time.sleep(0.02)
        if step == tell:
            print("running", flush=True)
            time.sleep(3 if step == first else 0)  # time for the notice to arrive before a call
        if preemption.should_stop():
            print("stopped", step, flush=True)
            sys.exit(EXIT_PREEMPTED)
"""


def start(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", LOOP],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_running(process):
    assert any(line == "running\n" for line in process.stdout)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_recorded_and_handlers_are_restored(number, capfd):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Preemption() as preemption:
        assert not preemption.should_stop()
        os.kill(os.getpid(), number)
        assert preemption.should_stop()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert f"{number.name}: will save a checkpoint after this step" in capfd.readouterr().err


def test_second_interrupt_stops_immediately():
    with Preemption() as preemption, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert preemption.should_stop()
        os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_has_its_own_exit_code():
    process = start()
    wait_until_running(process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_PREEMPTED == 75, err
    assert "stopped" in out


def two_processes(**environment):
    port = free_port()
    common = {
        processes.COORDINATOR: f"localhost:{port}",
        processes.NUM_PROCESSES: "2",
        processes.LOCAL_DEVICES: "1",
        processes.HEARTBEAT: "10",
    }
    common |= environment
    return [start(**common, **{processes.PROCESS_ID: str(index)}) for index in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_one_process_stops_both_at_the_same_step(number):
    processes = two_processes()
    wait_until_running(processes[1])
    processes[1].send_signal(number)
    ends = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [EXIT_PREEMPTED] * 2, ends
    assert len({out.splitlines()[-1] for out, _ in ends}) == 1


def test_signal_before_the_first_step_after_resuming_is_not_lost():
    """Tests a resumed run, whose step numbers differ from the calls that JAX's service counts."""
    processes = two_processes(FIRST="1000", TELL="1000")
    wait_until_running(processes[1])
    processes[1].send_signal(signal.SIGTERM)
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [EXIT_PREEMPTED] * 2, ends
    (last_line,) = {out.splitlines()[-1] for out, _ in ends}
    assert 1000 <= int(last_line.removeprefix("stopped ")) <= 1002


def clear(monkeypatch):
    names = ("COORDINATOR", "NUM_PROCESSES", "PROCESS_ID", "LOCAL_DEVICES", "HEARTBEAT_SECONDS")
    for name in names:
        monkeypatch.delenv(f"BERT_JAX_{name}", raising=False)


def test_arguments_take_precedence_over_the_environment(monkeypatch):
    clear(monkeypatch)
    assert processes.config_from_environment() == processes.DistributedConfig()
    monkeypatch.setenv("BERT_JAX_COORDINATOR", "host:1")
    monkeypatch.setenv("BERT_JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("BERT_JAX_PROCESS_ID", "3")
    found = processes.config_from_environment(process_id=2, heartbeat_seconds=7)
    assert found == processes.DistributedConfig(
        coordinator="host:1", num_processes=4, process_id=2, heartbeat_seconds=7
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinator": "host"}, "expected HOST:PORT"),
        ({"coordinator": "host:1"}, "BERT_JAX_NUM_PROCESSES"),
        ({"coordinator": "host:1", "num_processes": 2, "process_id": 2}, "expected 0 to 1"),
        ({"num_processes": 2}, "no coordinator"),
    ],
)
def test_incomplete_process_settings_are_rejected(monkeypatch, arguments, message):
    clear(monkeypatch)
    with pytest.raises(UserError, match=message):
        processes.config_from_environment(**arguments)


def test_invalid_number_in_a_variable_is_named(monkeypatch):
    clear(monkeypatch)
    monkeypatch.setenv("BERT_JAX_PROCESS_ID", "two")
    with pytest.raises(UserError, match="BERT_JAX_PROCESS_ID='two'"):
        processes.config_from_environment()


def test_single_process_needs_no_agreement():
    assert processes.run_on_process_0(lambda: {"step": 3}) == {"step": 3}
