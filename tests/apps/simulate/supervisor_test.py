"""Tests when the supervisor restarts the hosts, and the summary; no process is started.

Covers bert_jax/apps/simulate/supervisor.py and bert_jax/apps/simulate/supervisor.py.
"""

import logging
import signal
from pathlib import Path

import pytest

from bert_jax.apps.simulate import supervisor
from bert_jax.apps.simulate.attempt import Attempt
from bert_jax.apps.simulate.scenario import Kill, Scenario
from bert_jax.apps.simulate.supervisor import Outcome, Supervisor, disagreements, summarize

ABORTED, KILLED = -signal.SIGABRT, -signal.SIGKILL
KILL = Kill(host=2, step=8, signal_to_send=signal.SIGKILL)
TERM = Kill(host=1, step=8, signal_to_send=signal.SIGTERM)
DONE = Attempt(num_hosts=3, exit_codes={0: 0, 1: 0, 2: 0})
SAVED = Attempt(
    num_hosts=3,
    killed=(TERM, 8),
    exit_codes=dict.fromkeys(range(3), 75),
    resumed_from=dict.fromkeys(range(3), 0),
    saved=dict.fromkeys(range(3), 9),
)


def failed(first: int, *codes: int, **changes) -> Attempt:
    return Attempt(
        num_hosts=len(codes), exit_codes=dict(enumerate(codes)), first_failed_host=first, **changes
    )


def scenario(**changes) -> Scenario:
    settings = {
        "command": ("true",),
        "run": Path("run"),
        "hosts_per_attempt": (3,),
        "devices_per_host": 2,
        "steps": 20,
    }
    return Scenario(**settings | changes)


@pytest.fixture
def outcome(monkeypatch, capsys):
    """Returns a function from attempts and the newest checkpoint after each to the outcome."""

    def get(*attempts: Attempt, checkpoints: tuple[int, ...] = ()) -> Outcome:
        upcoming, newest = iter(attempts), [0, *checkpoints, *[0] * 99]
        count = [0]

        def fake_run_attempt(*_, **__) -> Attempt:
            count[0] += 1
            return next(upcoming)

        monkeypatch.setattr(supervisor, "run_attempt", fake_run_attempt)
        monkeypatch.setattr(supervisor, "newest_checkpoint_step", lambda run: newest[count[0]])
        with Supervisor(scenario()) as active_supervisor:
            return active_supervisor.run()

    return get


def test_restart_after_all_hosts_saved(outcome, caplog):
    caplog.set_level(logging.INFO)
    assert outcome(SAVED, DONE).exit_code == 0
    assert "[simulator 0s] attempt 2 ended: exit code 0 on hosts 0, 1, 2" in caplog.messages
    assert len(outcome(SAVED, SAVED, DONE).attempts) == 3


def test_restart_after_killed_host(outcome):
    assert outcome(failed(2, ABORTED, 1, KILLED, killed=(KILL, 8)), DONE).exit_code == 0


def test_restart_after_hang(outcome):
    assert outcome(failed(1, 70, 70, 70), DONE).exit_code == 0


@pytest.mark.parametrize("code", [1, 2, 76])
def test_no_restart_after_permanent_error(outcome, code):
    found = outcome(failed(1, ABORTED, code, ABORTED))
    assert (found.exit_code, len(found.attempts)) == (code, 1)


def test_gives_up_after_three_attempts_without_progress(outcome):
    crash = failed(0, ABORTED, ABORTED, ABORTED)
    assert len(outcome(*[crash] * 9).attempts) == 3
    assert outcome(*[crash] * 9).exit_code == 1
    progressing = outcome(*[crash] * 5, DONE, checkpoints=(5, 10, 10, 10, 15, 15))
    assert (progressing.exit_code, len(progressing.attempts)) == (0, 6)


def test_no_restart_after_stop_signal(monkeypatch, capsys):
    def fake_run_attempt(*_, **settings) -> Attempt:
        signal.raise_signal(signal.SIGTERM)
        assert settings["next_signal"]() == signal.SIGTERM
        assert settings["next_signal"]() is None
        return SAVED

    monkeypatch.setattr(supervisor, "run_attempt", fake_run_attempt)
    before = signal.getsignal(signal.SIGTERM)
    with Supervisor(scenario()) as active_supervisor:
        found = active_supervisor.run()
    assert (found.exit_code, len(found.attempts)) == (75, 1)
    assert signal.getsignal(signal.SIGTERM) == before
    assert "stopped by a signal" in summarize(scenario(), found)


def after(step: int, attempt: Attempt = DONE) -> Attempt:
    return Attempt(
        num_hosts=3, exit_codes=attempt.exit_codes, resumed_from=dict.fromkeys(range(3), step)
    )


def test_summary_of_sigterm():
    found = Outcome(exit_code=0, attempts=(SAVED, after(9)))
    assert summarize(scenario(kills=(TERM,)), found) == (
        "attempt 1: 3 hosts x 2 devices\n"
        "  SIGTERM to host 1 after step 8\n"
        "  all 3 hosts saved step 9\n"
        "  exit code 75 on hosts 0, 1, 2\n"
        "attempt 2: 3 hosts x 2 devices\n"
        "  resumed after step 9\n"
        "  exit code 0 on hosts 0, 1, 2\n"
        "the run is complete: 20 steps; all hosts agree on every saved and resumed step"
    )


def test_summary_of_sigkill():
    crash = failed(2, ABORTED, ABORTED, KILLED, killed=(KILL, 8), killed_by_simulator=[1])
    text = summarize(scenario(kills=(KILL,)), Outcome(exit_code=0, attempts=(crash, after(5))))
    assert "  SIGKILL to host 2 after step 8\n" in text
    assert "  killed by SIGABRT on hosts 0, 1; killed by SIGKILL on host 2\n" in text
    assert "  host 1 killed by the simulator\n" in text
    assert "  resumed after step 5: 3 steps are repeated\n" in text


def test_summary_of_kill_that_did_not_happen():
    text = summarize(scenario(kills=(TERM,)), Outcome(exit_code=0, attempts=(DONE,)))
    assert "no SIGTERM to host 1: step 8 was not logged" in text


def test_disagreements():
    disagreeing = Attempt(num_hosts=3, exit_codes=SAVED.exit_codes, saved={0: 9, 1: 9, 2: 10})
    unreported = Attempt(num_hosts=3, exit_codes=SAVED.exit_codes, saved={0: 9, 1: 9})
    assert disagreements(Outcome(exit_code=0, attempts=(SAVED, after(9)))) == []
    (line,) = disagreements(Outcome(exit_code=0, attempts=(disagreeing, after(10))))
    assert line == "attempt 1: hosts saved different steps (host 0: 9, host 1: 9, host 2: 10)"
    (line,) = disagreements(Outcome(exit_code=0, attempts=(unreported, after(9))))
    assert line == "attempt 1: host 2 did not report the saved step"
    (line,) = disagreements(Outcome(exit_code=0, attempts=(SAVED, after(5))))
    assert line == "attempt 2: step 9 was saved, but it resumed after step 5"
    text = summarize(scenario(), Outcome(exit_code=1, attempts=(SAVED, after(5))))
    assert "MISMATCH: attempt 2: step 9 was saved" in text and "all hosts agree" not in text
