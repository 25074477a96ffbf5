"""Cells: each once, in a process of its own; stopped, killed and failed ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.studies.job_runner import Interrupted, Job, JobRunner, is_finished, progress_fraction

# What stands in for `bert-jax finetune`: notes when it begins and ends, and does as it is told.
CHILD = """
import os, signal, sys, time
from pathlib import Path
from bert_jax.runs.run_folder import lock_run_folder

what, _, run = sys.argv[1:]
run = Path(run)
journal = run.parent / "journal.txt"

def note(word):
    with journal.open("a") as stream:
        stream.write(f"{run.name} {word}\\n")

def stop(*_):
    note("saved")
    sys.exit(75)

signal.signal(signal.SIGTERM, stop)
with lock_run_folder(run):
    note("begins")
    if what == "fail" and not (run / "mended").exists():
        sys.exit("error: the data is damaged;\\nmend it")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "long" and not (run.parent / "hurry").exists():
        time.sleep(60)
    if what == "slow":
        time.sleep(3)
    note("ends")
"""
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def command(tmp_path, monkeypatch) -> tuple[str, ...]:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    file = tmp_path / "child.py"
    file.write_text(CHILD)
    return (sys.executable, str(file))


def cells(**what: str) -> list[Job]:
    return [Job(name=name, arguments=(told,)) for name, told in what.items()]


def run(output: Path, command: tuple[str, ...], some: list[Job]) -> dict[str, str]:
    with JobRunner(output, command) as runner:
        return runner.run(some)


def journal(output: Path) -> list[str]:
    file = output / "journal.txt"
    return file.read_text().splitlines() if file.exists() else []


def await_line(output: Path, line: str) -> None:
    for _ in range(600):
        if line in journal(output):
            return
        time.sleep(0.05)
    raise AssertionError(f"{line!r} is not in {journal(output)}")


def test_each_cell_is_run_once_in_order(tmp_path, command, capfd):
    output, some = tmp_path / "output", cells(b="go", a="go")
    assert run(output, command, some[:1]) == {}
    assert run(output, command, some) == {}
    assert journal(output) == ["b begins", "b ends", "a begins", "a ends"]
    assert all(is_finished(output, cell) for cell in some)
    assert not is_finished(output, Job(name="a", arguments=("other",)))
    told = capfd.readouterr().err
    assert "1 of 2 runs were finished before" in told and "[1/1] a finished" in told


def test_a_failure_is_told_and_tried_again_and_the_others_run(tmp_path, command):
    output, some = tmp_path / "output", cells(bad="fail", dead="die", good="go")
    failed = run(output, command, some)
    assert list(failed) == ["bad", "dead"]
    assert failed["bad"].startswith("the data is damaged; mend it (exit code 1; ")
    assert failed["dead"].startswith("it said nothing (killed by SIGKILL; ")
    assert failed["bad"].endswith("bad/log.txt)")
    assert is_finished(output, some[2])
    (output / "bad" / "mended").touch()
    assert run(output, command, some[:1]) == {}
    assert journal(output).count("good begins") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_same_command_goes_on(tmp_path, command, number):
    output, some = tmp_path / "output", cells(one="go", two="long", three="go")

    def strike() -> None:
        await_line(output, "two begins")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=strike)
    thread.start()
    before = signal.getsignal(number)
    with pytest.raises(Interrupted):
        run(output, command, some)
    thread.join()
    assert signal.getsignal(number) is before
    assert journal(output) == ["one begins", "one ends", "two begins", "two saved"]
    (output / "hurry").touch()
    assert run(output, command, some) == {}
    assert journal(output)[4:] == ["two begins", "two ends", "three begins", "three ends"]


def test_a_run_left_behind_by_a_killed_command_is_waited_for(tmp_path, command, capfd):
    output = tmp_path / "output"
    code = (
        "import sys\nfrom pathlib import Path\nfrom bert_jax.studies.job_runner import *\n"
        "with JobRunner(Path(sys.argv[1]), sys.argv[2:]) as runner:\n"
        "    runner.run([Job(name='one', arguments=('slow',))])"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, str(output), *command])
    await_line(output, "one begins")
    killed.kill()
    killed.wait()
    assert run(output, command, cells(one="slow")) == {}
    # Never two at a time: the second begins after the first has ended.
    assert journal(output) == ["one begins", "one ends"] * 2
    assert "which still trains there" in capfd.readouterr().err


def test_a_folder_has_one_command_and_one_set_of_settings(tmp_path):
    with JobRunner(tmp_path) as runner:
        runner.write_or_check_settings({"epochs": (2.0, 3.0), "model": "a"})
        runner.write_or_check_settings({"epochs": (2.0, 3.0), "model": "a"})
        with pytest.raises(UserError, match="'a' there, 'b' now"):
            runner.write_or_check_settings({"epochs": (2.0, 3.0), "model": "b"})
        with pytest.raises(UserError, match="is in use"):
            with JobRunner(tmp_path):
                pass


def test_progress_is_read_from_the_runs_own_log(tmp_path):
    assert progress_fraction(tmp_path) == 0.0
    (tmp_path / "config.json").write_text('{"config": {"train": {"phases": [{"steps": 80}]}}}')
    assert progress_fraction(tmp_path) == 0.0
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n{"step": 20}\n')
    assert progress_fraction(tmp_path) == 0.25
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 3')
    assert progress_fraction(tmp_path) == 0.0
