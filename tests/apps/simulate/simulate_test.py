"""Runs `bert-jax simulate` with real processes, collectives, and signals.

Covers bert_jax/apps/simulate/cli.py and the modules of bert_jax/apps/simulate/ together.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.text_corpus import prepare_corpus
from tests.helpers.same_parameters import assert_same_parameters

ROOT = Path(__file__).parents[3]
RECIPE = str(ROOT / "tests" / "helpers" / "tiny_recipe.py")
AGREED = "all hosts agree on every saved and resumed step"
STEPS = 60
"""JAX may notice SIGTERM seconds later; a shorter run may be complete by then."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    return str(prepare_corpus(tmp_path_factory.mktemp("corpus"), num_documents=12))


def start(run: Path, corpus: str, *flags: str, steps: int = STEPS, **variables: str):
    command = [sys.executable, "-m", "bert_jax", "simulate", RECIPE, "--run", str(run), *flags]
    return subprocess.Popen(
        [*command, "--arg", f"corpus={corpus}", f"steps={steps}"],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def simulate(run: Path, corpus: str, *flags: str, expect: int = 0, **settings) -> tuple[str, str]:
    """Returns the summary, and the output of the hosts."""
    process = start(run, corpus, *flags, **settings)
    summary, output = process.communicate(timeout=580)
    assert process.returncode == expect, summary + output[-4000:]
    return summary, output


def losses(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows]


# attempt_test.py kills hosts, supervisor_test.py restarts them, and preemption_test.py stops two.
@pytest.mark.slow
def test_sigterm_to_one_of_two_hosts(corpus, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "2", "--devices", "1", "--kill", "host=1@step=7")
    summary, output = simulate(run, corpus, *flags, steps=12)
    first, second = summary.split("attempt 2: ")
    (step,) = re.findall(r"all 2 hosts saved step (\d+)", first)
    assert "SIGTERM to host 1 after step" in first and "exit code 75 on hosts 0, 1" in first
    assert f"resumed after step {step}\n" in second and "exit code 0 on hosts 0, 1" in second
    assert f"the run is complete: 12 steps; {AGREED}" in summary
    assert [number for number, _ in losses(run)] == list(range(1, 13))
    assert f"[host 1] process 1 of 2: saved step {step}; " in output
    assert "[Gloo]" not in output


def test_missing_host_is_named(corpus, tmp_path):
    flags = ("--hosts", "2", "--devices", "1", "--missing-host", "host=1")
    summary, output = simulate(
        tmp_path / "run", corpus, *flags, expect=76, BERT_JAX_RENDEZVOUS_SECONDS="1"
    )
    error = r"error: process 1 of 2 did not report to process 0 at 127.0.0.1:\d+ within 1 s"
    assert re.search(rf"\[host 0\] {error}; present: 0 \(pid ", output)
    assert "host 1 not started" in summary and "exit code 76 on host 0" in summary
    assert re.search(rf"message of host 0: {error}", summary)
    assert "the run is not complete" in summary and not (tmp_path / "run").exists()


def test_invalid_scenario_is_an_error_before_any_start(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    command = ["simulate", RECIPE, "--run", str(tmp_path / "run"), "--arg", f"corpus={corpus}"]
    assert main([*command, "--hosts", "2", "--kill", "host=2@step=7"]) == 2
    assert capsys.readouterr().err.endswith(
        "error: --kill host=2@step=7: expected a host from 0 to 1 in attempt 1\n"
    )


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory) -> Path:
    """Returns a run of four hosts without any kill."""
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    simulate(run, corpus, "--hosts", "4", "--devices", "2")
    return run


@pytest.mark.slow
def test_sigterm_to_one_of_four_hosts_is_bit_exact(corpus, uninterrupted, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "4", "--devices", "2", "--kill", "host=2@step=3", "host=0@step=12")
    summary, _ = simulate(run, corpus, *flags)
    assert len(re.findall(r"all 4 hosts saved step \d+", summary)) == 2
    assert summary.count("exit code 75 on hosts 0, 1, 2, 3") == 2
    assert AGREED in summary
    assert losses(run) == losses(uninterrupted)
    assert_same_parameters(run, uninterrupted)


@pytest.mark.slow
def test_sigkill_repeats_steps_since_checkpoint_bit_exact(corpus, uninterrupted, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "4", "--devices", "2", "--signal", "KILL")
    summary, _ = simulate(run, corpus, *flags, "--kill", "host=2@step=8", "host=0@step=17")
    assert summary.count("SIGKILL to host") == 2
    resumed = [int(n) for n in re.findall(r"resumed after step (\d+)", summary)]
    assert len(resumed) == 2 and all(step % 5 == 0 for step in resumed)
    assert AGREED in summary
    assert losses(run) == losses(uninterrupted)
    assert_same_parameters(run, uninterrupted)


@pytest.mark.slow
def test_number_of_hosts_changes_between_attempts(corpus, uninterrupted, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "1", "--hosts-after-restart", "4", "2", "--devices", "1")
    summary, _ = simulate(run, corpus, *flags, "--kill", "host=0@step=3", "host=3@step=8")
    for line in (
        "attempt 1: 1 host x 1",
        "attempt 2: 4 hosts x 1",
        "attempt 3: 2 hosts x 1",
        AGREED,
    ):
        assert line in summary
    steps, found = zip(*losses(run), strict=True)
    expected = [loss for _, loss in losses(uninterrupted)]
    assert steps == tuple(range(1, STEPS + 1))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_all_hosts_name_the_missing_host(corpus, tmp_path):
    flags = ("--hosts", "4", "--devices", "2", "--missing-host", "host=3")
    summary, output = simulate(tmp_path / "run", corpus, *flags, expect=76)
    for host in range(3):
        assert f"[host {host}] error: process 3 of 4 did not report to process 0 at" in output
    assert "host 3 not started" in summary and "exit code 76 on hosts 0, 1, 2" in summary


@pytest.mark.slow
def test_sigterm_to_simulator_stops_hosts_and_run_resumes(corpus, uninterrupted, tmp_path):
    run = tmp_path / "run"
    process = start(run, corpus, "--hosts", "4", "--devices", "2")
    while not (run / "metrics.jsonl").exists() or len(losses(run)) < 4:
        time.sleep(0.1)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    summary, output = process.communicate(timeout=300)
    assert process.returncode == 75, summary + output
    assert "stopped by a signal; run the same command to resume" in summary
    simulate(run, corpus, "--hosts", "4", "--devices", "2")
    assert_same_parameters(run, uninterrupted)
