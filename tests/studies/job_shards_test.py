"""Lanes: every cell on one of them, equally; killed ones go on; the same table in the end."""

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

from bert_jax.cli import main
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.config import LearnedPositions
from bert_jax.runs.run_folder import lock_run_folder, read_json
from bert_jax.studies.job_runner import Job, JobRunner, is_finished
from bert_jax.studies.job_shards import STARTUP_COST, JobShard, assign
from bert_jax.testing.models import small_model

ROOT = str(Path(__file__).parents[2])
# What stands in for `bert-jax finetune`.
CHILD = """
import sys, time
from pathlib import Path
run = Path(sys.argv[-1])
with (run.parent / "journal.txt").open("a") as stream:
    stream.write(f"{run.name}\\n")
sys.exit("error: no luck" if sys.argv[1] == "fail" and not (run / "mended").exists() else 0)
"""

works = st.lists(st.floats(0, 1e6), max_size=60)


def named(some: list[float]) -> list[Job]:
    return [Job(name=f"cell-{n}", arguments=(), cost=work) for n, work in enumerate(some)]


@given(works, st.integers(1, 20), st.randoms())
def test_every_cell_is_on_one_lane_whatever_the_order_of_the_cells(some, count, draw):
    cells = named(some)
    lanes = assign(cells, count)
    assert sorted(c.name for lane in lanes for c in lane) == sorted(c.name for c in cells)
    shuffled = draw.sample(cells, len(cells))
    assert assign(shuffled, count) == lanes
    assert [JobShard(index=n, count=count).select_jobs(shuffled) for n in range(count)] == lanes


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=6), st.integers(1, 3))
def test_no_lane_has_more_than_four_thirds_of_the_best_division(some, count):
    costs = [work + STARTUP_COST for work in some]
    best = min(
        max(sum(cost for cost, at in zip(costs, chosen, strict=True) if at == n) for n in range(3))
        for chosen in itertools.product(range(count), repeat=len(costs))
    )
    loads = [sum(cell.cost + STARTUP_COST for cell in lane) for lane in assign(named(some), count)]
    assert max(loads) <= (4 / 3 - 1 / (3 * count)) * best * (1 + 1e-9)


@given(works, st.integers(1, 20))
def test_two_lanes_differ_by_one_cell_at_most(some, count):
    loads = [sum(cell.cost + STARTUP_COST for cell in lane) for lane in assign(named(some), count)]
    longest = max((work + STARTUP_COST for work in some), default=0.0)
    assert max(loads) - min(loads) <= longest * (1 + 1e-9)


def test_glue_on_sixteen_chips_is_as_long_as_its_longest_run():
    rows = {"mnli": 392702, "qqp": 363846, "qnli": 104743, "sst2": 67349, "cola": 8551}
    rows |= {"stsb": 5749, "mrpc": 3668, "rte": 2490, "wnli": 635}
    cells = [
        Job(name=f"{task}/seed-{seed}", arguments=(), cost=3.0 * count)
        for task, count in rows.items()
        for seed in range(5)
    ]
    loads = [sum(cell.cost for cell in lane) for lane in assign(cells, 16)]
    assert max(loads) == 3 * rows["mnli"]


@pytest.fixture
def command(tmp_path) -> tuple[str, ...]:
    file = tmp_path / "child.py"
    file.write_text(CHILD)
    return (sys.executable, str(file))


def cells(**what: str) -> list[Job]:
    return [Job(name=name, arguments=(told,)) for name, told in what.items()]


def test_lanes_run_their_cells_only_and_leave_a_note(tmp_path, command):
    some, output = cells(a="run", b="run", c="fail", d="run", e="run"), tmp_path / "output"
    failed = {}
    for number in range(2):
        with JobRunner(output, command, shard=JobShard(index=number, count=2)) as runner:
            runner.write_or_check_settings({"model": "one"})
            failed |= runner.run(some)
    assert list(failed) == ["c"] and "no luck" in failed["c"]
    assert sorted((output / "journal.txt").read_text().split()) == ["a", "b", "c", "d", "e"]
    notes = [read_json(output / f"lanes/lane-{number}-of-2.json") for number in range(2)]
    assert notes == [{"jobs": ["a", "c", "e"], "cost": 3.0}, {"jobs": ["b", "d"], "cost": 2.0}]
    (output / "c" / "mended").touch()
    with JobRunner(output, command) as runner:
        assert runner.run(some) == {}
    assert (output / "journal.txt").read_text().split()[5:] == ["c"]
    assert all(is_finished(output, cell) for cell in some)


def test_lanes_share_a_folder_and_nobody_else_may_use_it(tmp_path, command):
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
        pytest.raises(UserError, match=r"in use: process.*runs all cells"),
    ):
        JobRunner(tmp_path, command, shard=two).__enter__()


def test_lanes_that_cannot_be(tmp_path, capsys):
    with pytest.raises(ConfigError, match="shard 2 of 2: expected --shard 0 to 1"):
        JobShard(index=2, count=2)
    glue = ["glue", "--glue-dir", "x", "--model", "x", "--output", str(tmp_path / "output")]
    for flags, words in (
        (["--num-shards", "2"], "--shard I go together"),
        (["--shard", "0"], "--shard I go together"),
        (["--num-shards", "2", "--shard", "2"], "expected --shard 0 to 1"),
        (["--num-shards", "2", "--shard", "0", "--mnli-init"], "run --tasks mnli in shards"),
    ):
        assert main([*glue, *flags]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_lanes_that_are_killed_at_random_make_the_same_table(shared, tmp_path):
    """RTE, WNLI and MRPC as they are, a tiny encoder; three lanes on one machine."""
    export(
        small_model(
            tmp_path / "vocabulary", positions=LearnedPositions(max_position_embeddings=40)
        ),
        tmp_path / "m",
    )
    glue = [sys.executable, "-m", "bert_jax", "glue", "--glue-dir", str(shared / "glue")]
    glue += ["--model", str(tmp_path / "m"), "--tasks", "rte", "wnli", "mrpc", "--seeds", "0", "1"]
    glue += ["--epochs", "1", "--max-length", "32"]
    where = {**os.environ, "PYTHONPATH": ROOT}
    alone, apart = tmp_path / "alone", tmp_path / "apart"
    subprocess.run([*glue, "--output", str(alone)], env=where, check=True, timeout=900)

    draw, kills = random.Random(4), 0

    def start(lane: int) -> subprocess.Popen:
        words = [*glue, "--output", str(apart), "--num-shards", "3", "--shard", str(lane)]
        return subprocess.Popen(words, env=where, start_new_session=True)

    running = {lane: start(lane) for lane in range(3)}
    until = time.monotonic() + 1500
    while running:
        assert time.monotonic() < until
        time.sleep(draw.uniform(3, 12))
        for lane, process in list(running.items()):
            if (code := process.poll()) is not None:
                assert code in (0, 75, -signal.SIGKILL, -signal.SIGTERM)
                del running[lane]
                if code != 0:
                    running[lane] = start(lane)
        if running and kills < 8:
            victim, kills = draw.choice(sorted(running)), kills + 1
            if draw.random() < 0.5:
                running[victim].send_signal(signal.SIGTERM)
            else:  # as when the machine goes: the run of the moment too
                os.killpg(running[victim].pid, signal.SIGKILL)
    subprocess.run([*glue, "--output", str(apart)], env=where, check=True, timeout=300)
    assert kills >= 5
    assert json.loads((apart / "results.json").read_text())["failed"] == {}
    for file in ("results.json", "table.md"):
        assert (apart / file).read_bytes() == (alone / file).read_bytes()
