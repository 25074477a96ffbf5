"""Tests the watchdog on real hangs in processes that must exit with 70 and name the location."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.apps.simulate.attempt import free_port, host_environment
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.errors import UserError
from bert_jax.runs.hooks import StepEvent
from bert_jax.train import watchdog
from bert_jax.train.preemption import EXIT_HUNG
from bert_jax.train.watchdog import Watchdog

ROOT = Path(__file__).parents[2]
HANG = """
import threading
from bert_jax.train.watchdog import Watchdog

def wait_for_nobody():
    threading.Event().wait()

with Watchdog(timeout_seconds=0.5) as watchdog:
    with watchdog.watching("evaluate", 6):
        pass
    with watchdog.watching("save", 7):
        wait_for_nobody()
"""


def start(*command: str, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def event(step: int, total: int = 9) -> StepEvent:
    return StepEvent(
        step=step,
        total_steps=total,
        phase="length-8",
        position=0,
        batch_size=1,
        clock=lambda: 0.0,
        tokens=0,
        device_metrics={},
    )


def test_hanging_save_ends_the_process_and_names_the_location():
    process = start("-c", HANG)
    _, output = process.communicate(timeout=120)
    assert process.returncode == EXIT_HUNG == 70, output
    assert f"watchdog: process 0 of 1 on {socket.gethostname()} hangs in: save 7, for " in output
    assert "last completed: evaluate 6 (BERT_JAX_WATCHDOG_SECONDS=0.5)" in output
    assert "exit code 70; stacks of all threads:\n" in output
    assert "in wait_for_nobody" in output  # the stack of the hanging thread


def test_hanging_process_ends_if_its_messages_cannot_be_written():
    process = start("-c", "import sys; sys.stderr = open('/dev/full', 'w')\n" + HANG)
    try:
        _, output = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == EXIT_HUNG, output


@pytest.fixture
def given_up(monkeypatch):
    """Returns the activities at which a watchdog has given up."""
    activities = []

    def give_up(self, activity):
        activities.append((activity.name, activity.step))
        self.pause()

    monkeypatch.setattr(Watchdog, "_exit_hung", give_up)
    return activities


def wait_until(condition) -> bool:
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_steps_within_the_timeout_continue(given_up):
    with Watchdog(timeout_seconds=0.6) as watching:
        watching.start("step", 1)
        for step in range(1, 9):
            time.sleep(0.15)  # 1.2 s in total
            watching(event(step))
        assert given_up == []
        assert wait_until(lambda: given_up == [("step", 9)])


def test_only_the_training_loop_is_watched(given_up):
    with Watchdog(timeout_seconds=0.1) as watching:
        time.sleep(0.4)
        watching.start("step", 1)
        watching.pause()
        time.sleep(0.4)
        watching(event(9))  # the last event
        time.sleep(0.4)
    assert given_up == []


def test_step_is_watched_again_after_a_save(given_up):
    with Watchdog(timeout_seconds=0.2) as watching:
        watching(event(3))
        with watching.watching("save", 3):
            time.sleep(0.05)
        assert wait_until(lambda: given_up == [("step", 4)])


def test_long_evaluation_is_allowed_but_reported(given_up, monkeypatch, capsys):
    monkeypatch.setitem(watchdog.TIMEOUT_FACTORS, "evaluate", 100.0)
    with Watchdog(timeout_seconds=0.1) as watching, watching.watching("evaluate", 3):
        time.sleep(0.6)
    assert given_up == []
    assert capsys.readouterr().err.count("process 0 of 1 on ") == 1


def test_suspended_process_is_not_killed(given_up, monkeypatch):
    """Tests a clock that jumps by an hour, as after Ctrl-Z, before the step continues."""
    jumps = iter([0.0, 3600.0, 3600.1])
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: next(jumps))
    watching = Watchdog(timeout_seconds=10.0)
    ticks = iter([False, False, True])
    monkeypatch.setattr(watching._stop_event, "wait", lambda timeout: next(ticks))
    watching.start("step", 2)
    watching._watch()
    assert given_up == []


@pytest.mark.parametrize(("text", "seconds"), [("", 0.0), ("0", 0.0), ("2.5", 2.5)])
def test_timeout_from_the_environment(monkeypatch, text, seconds):
    monkeypatch.setenv("BERT_JAX_WATCHDOG_SECONDS", text)
    assert Watchdog().timeout_seconds == seconds  # one process on a CPU is not watched by default


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_invalid_timeout_is_rejected(monkeypatch, text):
    monkeypatch.setenv("BERT_JAX_WATCHDOG_SECONDS", text)
    with pytest.raises(UserError, match="BERT_JAX_WATCHDOG_SECONDS="):
        Watchdog()


@pytest.mark.slow
def test_each_host_names_its_own_hanging_activity(tmp_path):
    """Tests host 1 hanging in its loop, and host 0 in the step that waits for host 1."""
    corpus, port = prepare_corpus(tmp_path / "corpus"), free_port()
    driver = str(ROOT / "tests/helpers/training_driver.py")
    processes = [
        start(
            *(driver, str(corpus), str(tmp_path / "run"), "--hang-at", "5"),
            **{**host_environment(number, 2, 1, port), "BERT_JAX_WATCHDOG_SECONDS": "12"},
        )
        for number in range(2)
    ]
    output = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [EXIT_HUNG] * 2, output
    for number in range(2):
        expected = f"watchdog: process {number} of 2 on {socket.gethostname()} hangs in: step"
        assert expected in output[number]
    assert "hooks.py" in output[0] and "in metrics" in output[0]  # host 0 waits for the device
    assert "in metrics" not in output[1]
