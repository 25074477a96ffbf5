"""`bert-jax simulate` from its command line: real processes, real collectives, real signals."""

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

from bert_jax.checkpoints.checkpointer import restore_params
from bert_jax.params import paths
from bert_jax.testing.text_corpus import prepare_corpus

ROOT = Path(__file__).parents[2]
RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
AGREED = "all hosts agreed on every step that they saved and began after"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    return str(prepare_corpus(tmp_path_factory.mktemp("corpus"), num_documents=12))


def start(run: Path, corpus: str, *flags: str, steps: int = 20, **variables: str):
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
    """The account, and what the hosts said."""
    process = start(run, corpus, *flags, **settings)
    account, said = process.communicate(timeout=580)
    assert process.returncode == expect, account + said[-4000:]
    return account, said


def losses(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows]


def same_bits(run: Path, other: Path) -> bool:
    trees = [paths.flatten(restore_params(folder / "checkpoints")[0]) for folder in (run, other)]
    assert trees[0].keys() == trees[1].keys()
    return all(np.array_equal(leaf, trees[1][path]) for path, leaf in trees[0].items())


def test_sigterm_to_one_of_two_hosts(corpus, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "2", "--devices", "1", "--kill", "host=1@step=7")
    account, said = simulate(run, corpus, *flags, steps=12)
    first, second = account.split("start 2: ")
    (step,) = re.findall(r"all 2 hosts saved step (\d+)", first)
    assert "SIGTERM to host 1, when step" in first and "exit code 75 on hosts 0, 1" in first
    assert f"began after step {step}\n" in second and "exit code 0 on hosts 0, 1" in second
    assert f"the run is complete: 12 steps, and {AGREED}" in account
    assert [number for number, _ in losses(run)] == list(range(1, 13))
    assert f"[host 1] process 1 of 2: saved step {step}; run the same" in said
    assert "[Gloo]" not in said


def test_a_host_that_never_starts_is_named(corpus, tmp_path):
    flags = ("--hosts", "2", "--devices", "1", "--missing-host", "host=1")
    account, said = simulate(
        tmp_path / "run", corpus, *flags, expect=76, BERT_JAX_RENDEZVOUS_SECONDS="1"
    )
    error = r"error: process 1 of 2 did not report to process 0 at 127.0.0.1:\d+ within 1 s"
    assert re.search(rf"\[host 0\] {error}; there are 0 on ", said)
    assert "host 1 not started" in account and "exit code 76 on host 0" in account
    assert re.search(rf"host 0 said: {error}", account)
    assert "the run is not complete" in account and not (tmp_path / "run").exists()


def test_a_mistake_in_the_plan_is_told_before_anything_starts(corpus, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "2", "--kill", "host=2@step=7")
    _, said = simulate(run, corpus, *flags, expect=2)
    assert said.endswith("error: --kill host=2@step=7: start 1 has 2 hosts, 0 to 1\n")


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory) -> Path:
    """A run of four hosts that nothing happened to."""
    run = tmp_path_factory.mktemp("straight") / "run"
    simulate(run, corpus, "--hosts", "4", "--devices", "2")
    return run


@pytest.mark.slow
def test_sigterm_to_one_of_four_hosts_changes_no_bit(corpus, straight, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "4", "--devices", "2", "--kill", "host=2@step=8", "host=0@step=16")
    account, _ = simulate(run, corpus, *flags)
    assert len(re.findall(r"all 4 hosts saved step \d+", account)) == 2
    assert account.count("exit code 75 on hosts 0, 1, 2, 3") == 2
    assert AGREED in account
    assert losses(run) == losses(straight)
    assert same_bits(run, straight)


@pytest.mark.slow
def test_sigkill_of_a_host_costs_the_steps_since_the_checkpoint_alone(corpus, straight, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "4", "--devices", "2", "--signal", "KILL")
    account, _ = simulate(run, corpus, *flags, "--kill", "host=2@step=8", "host=0@step=17")
    assert account.count("SIGKILL to host") == 2
    again = [int(n) for n in re.findall(r"began after step (\d+)", account)]
    assert len(again) == 2 and all(step % 5 == 0 for step in again)
    assert AGREED in account
    assert losses(run) == losses(straight)
    assert same_bits(run, straight)


@pytest.mark.slow
def test_one_then_four_then_two_hosts(corpus, straight, tmp_path):
    run = tmp_path / "run"
    flags = ("--hosts", "1", "--hosts-after-restart", "4", "2", "--devices", "1")
    account, _ = simulate(run, corpus, *flags, "--kill", "host=0@step=6", "host=3@step=13")
    for line in ("start 1: 1 x 1", "start 2: 4 x 1", "start 3: 2 x 1", AGREED):
        assert line in account
    steps, found = zip(*losses(run), strict=True)
    expected = [loss for _, loss in losses(straight)]
    assert steps == tuple(range(1, 21))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_all_hosts_name_the_missing_one_with_the_usual_wait(corpus, tmp_path):
    flags = ("--hosts", "4", "--devices", "2", "--missing-host", "host=3")
    account, said = simulate(tmp_path / "run", corpus, *flags, expect=76)
    for host in range(3):
        assert f"[host {host}] error: process 3 of 4 did not report to process 0 at" in said
    assert "host 3 not started" in account and "exit code 76 on hosts 0, 1, 2" in account


@pytest.mark.slow
def test_sigterm_to_the_simulator_stops_all_hosts_and_it_goes_on(corpus, straight, tmp_path):
    run = tmp_path / "run"
    process = start(run, corpus, "--hosts", "4", "--devices", "2")
    while not (run / "metrics.jsonl").exists() or len(losses(run)) < 4:
        time.sleep(0.1)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    account, said = process.communicate(timeout=300)
    assert process.returncode == 75, account + said
    assert "stopped as asked; the same command goes on from there" in account
    simulate(run, corpus, "--hosts", "4", "--devices", "2")
    assert same_bits(run, straight)
