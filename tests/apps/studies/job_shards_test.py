"""Splits jobs into balanced shards; killed shards resume, and the final table is the same.

Covers the shards of bert_jax/apps/studies/jobs.py.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.__main__ import main
from bert_jax.apps.studies.jobs import (
    FOLDER_PLACEHOLDER,
    STARTUP_COST,
    Job,
    JobRunner,
    JobShard,
    assign,
    is_finished,
)
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.runs.run_folder import lock_run_folder

ROOT = str(Path(__file__).parents[3])
# Replaces `bert-jax finetune`.
CHILD = """
import sys, time
from pathlib import Path
run = Path(sys.argv[-1])
with (run.parent / "journal.txt").open("a") as stream:
    stream.write(f"{run.name}\\n")
sys.exit("error: no luck" if sys.argv[1] == "fail" and not (run / "fixed").exists() else 0)
"""

cost_lists = st.lists(st.floats(0, 1e6), max_size=60)


def named_jobs(job_costs: list[float]) -> list[Job]:
    return [Job(name=f"job-{n}", arguments=(), cost=cost) for n, cost in enumerate(job_costs)]


@given(cost_lists, st.integers(1, 20), st.randoms())
def test_assignment_is_complete_and_independent_of_order(job_costs, count, rng):
    jobs = named_jobs(job_costs)
    shards = assign(jobs, count)
    assert sorted(c.name for shard in shards for c in shard) == sorted(c.name for c in jobs)
    shuffled = rng.sample(jobs, len(jobs))
    assert assign(shuffled, count) == shards
    assert [JobShard(index=n, count=count).select_jobs(shuffled) for n in range(count)] == shards


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=6), st.integers(1, 3))
def test_largest_load_is_at_most_four_thirds_of_optimum(job_costs, count):
    costs = [cost + STARTUP_COST for cost in job_costs]
    best = min(
        max(sum(cost for cost, at in zip(costs, chosen, strict=True) if at == n) for n in range(3))
        for chosen in itertools.product(range(count), repeat=len(costs))
    )
    loads = [
        sum(job.cost + STARTUP_COST for job in shard)
        for shard in assign(named_jobs(job_costs), count)
    ]
    assert max(loads) <= (4 / 3 - 1 / (3 * count)) * best * (1 + 1e-9)


@given(cost_lists, st.integers(1, 20))
def test_loads_differ_by_at_most_one_job(job_costs, count):
    loads = [
        sum(job.cost + STARTUP_COST for job in shard)
        for shard in assign(named_jobs(job_costs), count)
    ]
    longest = max((cost + STARTUP_COST for cost in job_costs), default=0.0)
    assert max(loads) - min(loads) <= longest * (1 + 1e-9)


def test_glue_on_16_shards_is_bound_by_longest_job():
    rows = {"mnli": 392702, "qqp": 363846, "qnli": 104743, "sst2": 67349, "cola": 8551}
    rows |= {"stsb": 5749, "mrpc": 3668, "rte": 2490, "wnli": 635}
    jobs = [
        Job(name=f"{task}/seed-{seed}", arguments=(), cost=3.0 * count)
        for task, count in rows.items()
        for seed in range(5)
    ]
    loads = [sum(job.cost for job in shard) for shard in assign(jobs, 16)]
    assert max(loads) == 3 * rows["mnli"]


@pytest.fixture
def command(tmp_path) -> tuple[str, ...]:
    file = tmp_path / "child.py"
    file.write_text(CHILD)
    return (sys.executable, str(file))


def make_jobs(**behaviors: str) -> list[Job]:
    return [
        Job(name=name, arguments=(behavior, "--run", FOLDER_PLACEHOLDER))
        for name, behavior in behaviors.items()
    ]


def test_shards_run_only_their_jobs(tmp_path, command):
    jobs, output = (
        make_jobs(a="run", b="run", c="fail", d="run", e="run"),
        tmp_path / "output",
    )
    failed = {}
    for number in range(2):
        with JobRunner(output, command, shard=JobShard(index=number, count=2)) as runner:
            runner.write_or_check_settings({"model": "one"})
            failed |= runner.run(jobs)
    assert list(failed) == ["c"] and "no luck" in failed["c"]
    assert sorted((output / "journal.txt").read_text().split()) == ["a", "b", "c", "d", "e"]
    (output / "c" / "fixed").touch()
    with JobRunner(output, command) as runner:
        assert runner.run(jobs) == {}
    assert (output / "journal.txt").read_text().split()[5:] == ["c"]
    assert all(is_finished(output, job) for job in jobs)


def test_shards_share_a_locked_folder(tmp_path, command):
    one, two = JobShard(index=0, count=2), JobShard(index=1, count=2)
    with JobRunner(tmp_path, command, shard=one) as first:
        first.write_or_check_settings({"model": "one"})
        with JobRunner(tmp_path, command, shard=two) as second:
            second.write_or_check_settings({"model": "one"})
            with pytest.raises(UserError, match="other settings"):
                second.write_or_check_settings({"model": "two"})
        with pytest.raises(UserError, match="in use: process"):
            JobRunner(tmp_path, command, shard=one).__enter__()
        with pytest.raises(UserError, match="in use: a command with --num-shards"):
            JobRunner(tmp_path, command).__enter__()
    with (
        lock_run_folder(tmp_path),
        pytest.raises(UserError, match=r"in use: process.*runs all jobs"),
    ):
        JobRunner(tmp_path, command, shard=two).__enter__()


def test_invalid_shards(tmp_path, capsys):
    with pytest.raises(ConfigError, match="--shard 2: expected a number from 0 to 1"):
        JobShard(index=2, count=2)
    glue = ["glue", "--glue-dir", "x", "--model", "x", "--output", str(tmp_path / "output")]
    for flags, arguments in (
        (["--num-shards", "2"], "expected both or neither"),
        (["--shard", "0"], "expected both or neither"),
        (["--num-shards", "2", "--shard", "2"], "--shard 2: expected a number from 0 to 1"),
        (["--num-shards", "2", "--shard", "0", "--mnli-init"], "run --tasks mnli in shards"),
    ):
        assert main([*glue, *flags]) == 2
        assert arguments in capsys.readouterr().err


@pytest.mark.slow
def test_randomly_killed_shards_give_the_same_table(shared, tmp_path):
    """The real RTE, WNLI, and MRPC with a tiny encoder; three shards on one machine."""
    export(
        small_model(
            tmp_path / "vocabulary", positions=LearnedPositions(max_position_embeddings=40)
        ),
        tmp_path / "m",
    )
    glue = [sys.executable, "-m", "bert_jax", "glue", "--glue-dir", str(shared / "glue")]
    glue += ["--model", str(tmp_path / "m"), "--tasks", "rte", "wnli", "mrpc", "--num-seeds", "2"]
    glue += ["--epochs", "1", "--max-length", "32"]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    unsharded, sharded = tmp_path / "unsharded", tmp_path / "sharded"
    subprocess.run([*glue, "--output", str(unsharded)], env=environment, check=True, timeout=900)

    rng, kills = random.Random(4), 0

    def start(shard: int) -> subprocess.Popen:
        arguments = [*glue, "--output", str(sharded), "--num-shards", "3", "--shard", str(shard)]
        return subprocess.Popen(arguments, env=environment, start_new_session=True)

    running = {shard: start(shard) for shard in range(3)}
    deadline = time.monotonic() + 1500
    while running:
        assert time.monotonic() < deadline
        time.sleep(rng.uniform(3, 12))
        for shard, process in list(running.items()):
            if (exit_code := process.poll()) is not None:
                assert exit_code in (0, 75, -signal.SIGKILL, -signal.SIGTERM)
                del running[shard]
                if exit_code != 0:
                    running[shard] = start(shard)
        if running and kills < 8:
            victim, kills = rng.choice(sorted(running)), kills + 1
            if rng.random() < 0.5:
                running[victim].send_signal(signal.SIGTERM)
            else:  # kills the active run too, as when the machine fails
                os.killpg(running[victim].pid, signal.SIGKILL)
    subprocess.run([*glue, "--output", str(sharded)], env=environment, check=True, timeout=300)
    assert kills >= 5
    assert json.loads((sharded / "results.json").read_text())["failed"] == {}
    for file in ("results.json", "table.md"):
        assert (sharded / file).read_bytes() == (unsharded / file).read_bytes()
