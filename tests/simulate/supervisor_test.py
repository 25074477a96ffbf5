"""When a pod is started again and when not; what is told of it. No process is started."""

import signal
from pathlib import Path

import pytest

from bert_jax.simulate import supervisor
from bert_jax.simulate.attempt import Attempt
from bert_jax.simulate.scenario import Kill, Scenario
from bert_jax.simulate.summary import disagreements, summarize
from bert_jax.simulate.supervisor import Outcome, Supervisor

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


def plan(**changes) -> Scenario:
    made = {
        "command": ("true",),
        "run": Path("run"),
        "hosts_per_attempt": (3,),
        "devices_per_host": 2,
        "steps": 20,
    }
    return Scenario(**made | changes)


@pytest.fixture
def outcome(monkeypatch, capsys):
    """The lives that come, and the newest checkpoint after each -> the outcome."""

    def get(*lives: Attempt, checkpoints: tuple[int, ...] = ()) -> Outcome:
        coming, newest = iter(lives), [0, *checkpoints, *[0] * 99]
        count = [0]

        def live(*_, **__) -> Attempt:
            count[0] += 1
            return next(coming)

        monkeypatch.setattr(supervisor, "run_attempt", live)
        monkeypatch.setattr(supervisor, "newest_checkpoint_step", lambda run: newest[count[0]])
        with Supervisor(plan()) as watching:
            return watching.run()

    return get


def test_saved_by_all_is_started_again(outcome):
    assert outcome(SAVED, DONE).exit_code == 0
    assert len(outcome(SAVED, SAVED, DONE).attempts) == 3


def test_a_killed_host_is_started_again(outcome):
    assert outcome(failed(2, ABORTED, 1, KILLED, killed=(KILL, 8)), DONE).exit_code == 0


def test_a_hang_is_started_again(outcome):
    assert outcome(failed(1, 70, 70, 70), DONE).exit_code == 0


@pytest.mark.parametrize("code", [1, 2, 76])
def test_what_would_happen_again_is_not(outcome, code):
    found = outcome(failed(1, ABORTED, code, ABORTED))
    assert (found.exit_code, len(found.attempts)) == (code, 1)


def test_without_progress_it_gives_up_after_three(outcome):
    crash = failed(0, ABORTED, ABORTED, ABORTED)
    assert len(outcome(*[crash] * 9).attempts) == 3
    assert outcome(*[crash] * 9).exit_code == 1
    further = outcome(*[crash] * 5, DONE, checkpoints=(5, 10, 10, 10, 15, 15))
    assert (further.exit_code, len(further.attempts)) == (0, 6)


def test_asked_to_stop_it_does_not_start_again(monkeypatch, capsys):
    def live(*_, **settings) -> Attempt:
        signal.raise_signal(signal.SIGTERM)
        assert settings["next_signal"]() == signal.SIGTERM
        assert settings["next_signal"]() is None
        return SAVED

    monkeypatch.setattr(supervisor, "run_attempt", live)
    before = signal.getsignal(signal.SIGTERM)
    with Supervisor(plan()) as watching:
        found = watching.run()
    assert (found.exit_code, len(found.attempts)) == (75, 1)
    assert signal.getsignal(signal.SIGTERM) == before
    assert "stopped as asked" in summarize(plan(), found)


def after(step: int, life: Attempt = DONE) -> Attempt:
    return Attempt(
        num_hosts=3, exit_codes=life.exit_codes, resumed_from=dict.fromkeys(range(3), step)
    )


def test_the_account_of_a_sigterm():
    found = Outcome(exit_code=0, attempts=(SAVED, after(9)))
    assert summarize(plan(kills=(TERM,)), found) == (
        "start 1: 3 x 2 devices\n"
        "  SIGTERM to host 1, when step 8 was logged\n"
        "  all 3 hosts saved step 9\n"
        "  exit code 75 on hosts 0, 1, 2\n"
        "start 2: 3 x 2 devices\n"
        "  began after step 9\n"
        "  exit code 0 on hosts 0, 1, 2\n"
        "the run is complete: 20 steps, and all hosts agreed on every step that they saved and "
        "began after"
    )


def test_the_account_of_a_sigkill():
    crash = failed(2, ABORTED, ABORTED, KILLED, killed=(KILL, 8), killed_by_simulator=[1])
    text = summarize(plan(kills=(KILL,)), Outcome(exit_code=0, attempts=(crash, after(5))))
    assert "  SIGKILL to host 2, when step 8 was logged\n" in text
    assert "  killed by SIGABRT on hosts 0, 1; killed by SIGKILL on host 2\n" in text
    assert "  host 1 had to be killed\n" in text
    assert "  began after step 5: 3 steps are done again\n" in text


def test_the_account_of_a_kill_that_did_not_come():
    text = summarize(plan(kills=(TERM,)), Outcome(exit_code=0, attempts=(DONE,)))
    assert "no SIGTERM to host 1: step 8 was not seen" in text


def test_hosts_that_disagree_are_named():
    apart = Attempt(num_hosts=3, exit_codes=SAVED.exit_codes, saved={0: 9, 1: 9, 2: 10})
    silent = Attempt(num_hosts=3, exit_codes=SAVED.exit_codes, saved={0: 9, 1: 9})
    assert disagreements(Outcome(exit_code=0, attempts=(SAVED, after(9)))) == []
    (line,) = disagreements(Outcome(exit_code=0, attempts=(apart, after(10))))
    assert line == "start 1: hosts saved different steps (host 0: 9, host 1: 9, host 2: 10)"
    (line,) = disagreements(Outcome(exit_code=0, attempts=(silent, after(9))))
    assert line == "start 1: host 2 did not say which step was saved"
    (line,) = disagreements(Outcome(exit_code=0, attempts=(SAVED, after(5))))
    assert line == "start 2: step 9 was saved, it began after step 5"
    text = summarize(plan(), Outcome(exit_code=1, attempts=(SAVED, after(5))))
    assert "NOT AGREED: start 2: step 9 was saved" in text and "all hosts agreed" not in text
