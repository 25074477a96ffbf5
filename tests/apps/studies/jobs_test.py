"""Runs jobs once each in their own processes, with interrupted, killed, and failed ones."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bert_jax.apps.studies.jobs import (
    FINISHED_FILE,
    FOLDER_PLACEHOLDER,
    Interrupted,
    Job,
    JobRunner,
    is_finished,
    progress_fraction,
)
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json

# Replaces `bert-jax finetune`: records when it begins and ends, and behaves as its argument says.
CHILD = """
import os, signal, sys, time
from pathlib import Path
from bert_jax.runs.run_folder import lock_run_folder

what, _, run = sys.argv[1:]
run = Path(run)
journal = run.parent / "journal.txt"

def note(event):
    with journal.open("a") as stream:
        stream.write(f"{run.name} {event}\\n")

def stop(*_):
    note("saved")
    sys.exit(75)

signal.signal(signal.SIGTERM, stop)
with lock_run_folder(run):
    note("begins")
    if what == "fail" and not (run / "fixed").exists():
        sys.exit("error: the data is damaged;\\nfix it")
    if what == "cache":
        note(os.environ.get("JAX_COMPILATION_CACHE_DIR", "off"))
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "long" and not (run.parent / "hurry").exists():
        time.sleep(60)
    if what == "slow":
        time.sleep(3)
    note("ends")
"""
ROOT = str(Path(__file__).parents[3])


@pytest.fixture
def command(tmp_path, monkeypatch) -> tuple[str, ...]:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    file = tmp_path / "child.py"
    file.write_text(CHILD)
    return (sys.executable, str(file))


def make_jobs(**behaviors: str) -> list[Job]:
    return [
        Job(name=name, arguments=(behavior, "--run", FOLDER_PLACEHOLDER))
        for name, behavior in behaviors.items()
    ]


def run(output: Path, command: tuple[str, ...], jobs: list[Job]) -> dict[str, str]:
    with JobRunner(output, command) as runner:
        return runner.run(jobs)


def journal(output: Path) -> list[str]:
    file = output / "journal.txt"
    return file.read_text().splitlines() if file.exists() else []


def await_line(output: Path, line: str) -> None:
    for _ in range(600):
        if line in journal(output):
            return
        time.sleep(0.05)
    raise AssertionError(f"{line!r} is not in {journal(output)}")


def test_each_job_runs_once_in_order(tmp_path, command, caplog):
    caplog.set_level(logging.INFO)
    output, jobs = tmp_path / "output", make_jobs(b="go", a="go")
    assert run(output, command, jobs[:1]) == {}
    assert run(output, command, jobs) == {}
    assert journal(output) == ["b begins", "b ends", "a begins", "a ends"]
    assert all(is_finished(output, job) for job in jobs)
    assert not is_finished(output, Job(name="a", arguments=("other", "--run", FOLDER_PLACEHOLDER)))
    assert "1 of 2 runs are already finished" in caplog.text
    assert "[1/1] a finished" in caplog.text


def test_failed_jobs_are_reported_and_retried(tmp_path, command):
    output, jobs = tmp_path / "output", make_jobs(bad="fail", dead="die", good="go")
    failed = run(output, command, jobs)
    assert list(failed) == ["bad", "dead"]
    assert failed["bad"].startswith("the data is damaged; fix it (exit code 1; ")
    assert failed["dead"].startswith("no output (killed by SIGKILL; ")
    assert failed["bad"].endswith("bad/log.txt)")
    assert is_finished(output, jobs[2])
    (output / "bad" / "fixed").touch()
    assert run(output, command, jobs[:1]) == {}
    assert journal(output).count("good begins") == 1


def test_jobs_share_a_compilation_cache(tmp_path, command, monkeypatch):
    for variable in ("BERT_JAX_COMPILATION_CACHE", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    assert run(tmp_path / "output", command, make_jobs(a="cache", b="cache")) == {}
    monkeypatch.setenv("BERT_JAX_COMPILATION_CACHE", "off")
    assert run(tmp_path / "output", command, make_jobs(c="cache")) == {}
    folder = tmp_path / "output" / "compiled"
    found = [line for line in journal(tmp_path / "output") if not line.endswith(("begins", "ends"))]
    assert found == [f"a {folder}", f"b {folder}", "c off"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_forwarded_and_same_command_resumes(tmp_path, command, number):
    output, jobs = tmp_path / "output", make_jobs(one="go", two="long", three="go")

    def send_signal() -> None:
        await_line(output, "two begins")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send_signal)
    thread.start()
    before = signal.getsignal(number)
    with pytest.raises(Interrupted):
        run(output, command, jobs)
    thread.join()
    assert signal.getsignal(number) is before
    assert journal(output) == ["one begins", "one ends", "two begins", "two saved"]
    (output / "hurry").touch()
    assert run(output, command, jobs) == {}
    assert journal(output)[4:] == ["two begins", "two ends", "three begins", "three ends"]


def test_waits_for_run_of_killed_command(tmp_path, command, caplog):
    caplog.set_level(logging.INFO)
    output = tmp_path / "output"
    code = (
        "import sys\nfrom pathlib import Path\nfrom bert_jax.apps.studies.jobs import *\n"
        "with JobRunner(Path(sys.argv[1]), sys.argv[2:]) as runner:\n"
        "    runner.run([Job(name='one', arguments=('slow', '--run', '{folder}'))])"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, str(output), *command])
    await_line(output, "one begins")
    killed.kill()
    killed.wait()
    assert run(output, command, make_jobs(one="slow")) == {}
    # The runs do not overlap: the second begins after the first has ended.
    assert journal(output) == ["one begins", "one ends"] * 2
    assert "which is still training there" in caplog.text


def test_folder_lock_and_settings_check(tmp_path):
    with JobRunner(tmp_path) as runner:
        runner.write_or_check_settings({"epochs": (2.0, 3.0), "model": "a"})
        runner.write_or_check_settings({"epochs": (2.0, 3.0), "model": "a"})
        with pytest.raises(UserError, match="was 'a', now 'b'"):
            runner.write_or_check_settings({"epochs": (2.0, 3.0), "model": "b"})
        with pytest.raises(UserError, match="is in use"):
            with JobRunner(tmp_path):
                pass


def test_finished_job_is_found_by_another_spelling_of_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("m", "a"):
        (tmp_path / name).mkdir()
    write_json(tmp_path / "a" / FINISHED_FILE, {"arguments": ["--model", "m", "--train=m/t.csv"]})
    (tmp_path / "m" / "t.csv").touch()
    same = Job(name="a", arguments=("--model", f"{tmp_path}/m/", "--train=./m/t.csv"))
    other = Job(name="a", arguments=("--model", "m", "--train=m"))
    assert is_finished(tmp_path, same) and not is_finished(tmp_path, other)


def test_progress_fraction(tmp_path):
    assert progress_fraction(tmp_path) == 0.0
    (tmp_path / "config.json").write_text('{"config": {"train": {"phases": [{"steps": 80}]}}}')
    assert progress_fraction(tmp_path) == 0.0
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n{"step": 20}\n')
    assert progress_fraction(tmp_path) == 0.25
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 3')
    assert progress_fraction(tmp_path) == 0.0
