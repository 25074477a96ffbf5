"""Runs sweeps with fake runs and checks the settings that are tried, the table, and the charts.

Covers bert_jax/apps/studies/sweep.py, bert_jax/apps/studies/trials.py and
bert_jax/apps/studies/cli/sweep.py.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bert_jax.__main__ import main, parse_command
from bert_jax.apps.studies import jobs
from bert_jax.apps.studies.jobs import JobRunner
from bert_jax.apps.studies.sweep import Range, Search, parse_ranges, parse_values, sweep_chart
from bert_jax.config.labeled_data import Columns
from bert_jax.errors import ConfigError
from bert_jax.io.atomic_io import write_json


class FakeJobRunner(JobRunner):
    """Fakes every run: the accuracy is a function of the arguments."""

    def _run_one(self, job, bar):
        run = self._folder / job.name
        args = parse_command([text.replace("{folder}", str(run)) for text in job.arguments])
        seed, rate = args.seed, args.learning_rate
        task = args.task_config()
        assert isinstance(task, Columns) and task.label == "label" and Path(args.model).is_dir()
        run.mkdir(parents=True, exist_ok=True)
        with (self._folder / "journal.txt").open("a") as stream:
            stream.write(f"{job.name}\n")
        if rate > 0.5:
            return "diverged"
        settings = {"overrides": args.set, "epochs": args.epochs, "batch": args.batch_size}
        write_json(run / "settings.json", settings)
        accuracy = 0.9 - abs(np.log10(rate) + 4) / 10 + seed / 100
        write_json(run / "evaluation.json", {"dev": {"accuracy": accuracy, "f1": accuracy / 2}})
        write_json(run / jobs.FINISHED_FILE, {"arguments": list(job.arguments)})
        return None


@pytest.fixture
def flags(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setattr(jobs, "JobRunner", FakeJobRunner)
    files = []
    for split in ("train", "dev"):
        file = tmp_path / f"{split}.csv"
        file.write_text("text,label\ngood,yes\nbad,no\n")
        files += [f"--{split}", str(file)]
    named = ["--text", "text", "--label", "label", "--model", str(tmp_path)]
    return ["sweep", "columns", *files, *named, "--output", str(tmp_path / "output")]


def results_in(output: Path) -> dict:
    return json.loads((output / "results.json").read_text())


def test_sweep_command_with_grid(flags, tmp_path, capsys):
    output = tmp_path / "output"
    grid = ["--grid", "learning_rate=1e-5,1e-4,0.9", 'train.tuning.frozen=[],["encoder/**"]']
    shared = ["--num-seeds", "3", "--batch-size", "8"]
    shared += ["--set", "objective.classifier_dropout=0.2"]
    assert main([*flags, *grid, *shared]) == 1
    captured = capsys.readouterr()
    runs = [json.loads(file.read_text()) for file in output.glob("*/seed-2/settings.json")]
    assert len(runs) == 4 and all(row["batch"] == 8 and row["epochs"] is None for row in runs)
    assert sorted(row["overrides"] for row in runs)[::2] == [
        ["objective.classifier_dropout=0.2", 'train.tuning.frozen=["encoder/**"]'],
        ["objective.classifier_dropout=0.2", "train.tuning.frozen=[]"],
    ]
    results = results_in(output)
    assert len(results["trials"]) == 6 and results["best_metric"] == "accuracy"
    assert results["best_setting"] == {"learning_rate": 1e-4, "train.tuning.frozen": []}
    best_setting = results["best_setting"]
    best = next(row for row in results["trials"] if row["setting"] == best_setting)["dev"]
    expected = np.array([0.9, 0.91, 0.92])
    assert best["accuracy"]["median"] == pytest.approx(np.median(expected))
    assert best["accuracy"]["mean"] == pytest.approx(expected.mean())
    assert best["accuracy"]["std"] == pytest.approx(expected.std(ddof=1))
    assert best["accuracy"]["values"] == pytest.approx({"0": 0.9, "1": 0.91, "2": 0.92})
    assert len(results["failed"]) == 6 and set(results["failed"].values()) == {"diverged"}
    assert "diverged" in captured.err
    # Sorted from best to worst; settings without a finished run are only in results.json.
    rows = [line for line in captured.out.splitlines()[2:]]
    assert len(rows) == 4 and rows[0].split("|")[1].strip() == "0.0001"
    page = (output / "table.html").read_text()
    assert "encoder/**" in page and page.count("<svg") == 2
    charts = re.findall(r"<svg.*?</svg>", page)
    assert [len(list(ElementTree.fromstring(c).iter("circle"))) for c in charts] == [12, 12]


def test_finished_runs_are_not_repeated(flags, tmp_path, capsys):
    output = tmp_path / "output"
    assert main([*flags, "--grid", "learning_rate=1e-5,1e-4", "epochs=2"]) == 0
    assert main([*flags, "--grid", "epochs=2", "learning_rate=1e-4,1e-3", "--num-seeds", "2"]) == 0
    run = (output / "journal.txt").read_text().splitlines()
    assert len(run) == len(set(run)) == 5
    assert len(results_in(output)["trials"]) == 2
    assert "1 of 4 runs are already finished" in capsys.readouterr().err
    assert main([*flags, "--grid", "learning_rate=1e-5", "--batch-size", "8"]) == 1
    assert "shared.batch_size: was None, now 8" in capsys.readouterr().err


def test_random_search(flags, tmp_path):
    rng = ["--random", "12", "--range", "learning_rate=1e-6..1e-3:log", "--grid", "epochs=2,3"]
    assert main([*flags, *rng]) == 0
    first_settings = [row["setting"] for row in results_in(tmp_path / "output")["trials"]]
    assert len(first_settings) == 12 and {row["epochs"] for row in first_settings} == {2, 3}
    assert all(1e-6 <= row["learning_rate"] <= 1e-3 for row in first_settings)
    search = Search(
        values={"epochs": (2, 3), "batch_size": (16, 32)},
        ranges={"learning_rate": Range(low=1e-6, high=1e-3, log=True)},
        num_samples=20,
    )
    more_settings = [{k: v for k, v in s.items() if k != "batch_size"} for s in search.settings()]
    assert more_settings[:12] == first_settings


def test_samples_follow_their_distributions():
    rng = np.random.default_rng(0)
    log = Range(low=1e-6, high=1e-2, log=True)
    sampled = [np.log10(log.sample(rng)) for _ in range(4000)]
    assert stats.kstest(sampled, stats.uniform(-6, 4).cdf).pvalue > 1e-3
    uniform = [Range(low=0.1, high=0.3).sample(rng) for _ in range(4000)]
    assert stats.kstest(uniform, stats.uniform(0.1, 0.2).cdf).pvalue > 1e-3
    integers = [Range(low=2, high=5).sample(rng) for _ in range(4000)]
    assert stats.chisquare(np.bincount(integers)[2:]).pvalue > 1e-3 and set(integers) == {
        2,
        3,
        4,
        5,
    }
    log_integers = [Range(low=1, high=64, log=True).sample(rng) for _ in range(4000)]
    assert {1, 64} <= set(log_integers) and np.median(log_integers) == pytest.approx(6, abs=1)


def test_parse_values_and_ranges():
    found = parse_values(["a=1,2.5,true,null", 'b=[1,2],["x,y"]', "learning-rate=1e-5,x"])
    assert found == {
        "a": (1, 2.5, True, None),
        "b": ([1, 2], ["x,y"]),
        "learning_rate": (1e-5, "x"),
    }
    assert parse_ranges(["a=1..4", "b=1e-6..1e-4:log"]) == {
        "a": Range(low=1, high=4),
        "b": Range(low=1e-6, high=1e-4, log=True),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to search over"),
        (["--grid", "epochs"], "expected FIELD="),
        (["--grid", "epochs="], "expected different values"),
        (["--grid", "epochs=2,2"], "expected different values"),
        (["--grid", "epochs=2", "epochs=3"], "--grid has the field epochs twice"),
        (["--grid", "epochs=0"], "epochs is 0, expected a number above 0"),
        (["--grid", "seed=1,2"], "set the number of seeds with --num-seeds"),
        (["--grid", "epochs=2", "--epochs", "3"], "epochs is both searched over and set"),
        (
            ["--grid", "epochs=2", "--num-seeds", "0"],
            "--num-seeds is 0, expected a number at least",
        ),
        (["--range", "epochs=2..3"], "--range needs --random N"),
        (["--random", "2", "--range", "epochs=3..2"], "expected LOW < HIGH"),
        (["--random", "2", "--range", "epochs=0..2:log"], "both above 0 for :log"),
        (["--random", "2", "--range", "epochs=2,3"], "expected FIELD=LOW..HIGH"),
        (["--random", "2", "--range", "epochs=2..3:exp"], "expected FIELD=LOW..HIGH"),
        (["--random", "0", "--grid", "epochs=2"], "--random 0: expected at least 1"),
        (["--random", "1000000000", "--grid", "epochs=2"], "expected at least 1, at most 10,000"),
        (["--random", "1", "--range", "epochs=2..3", "--grid", "epochs=2"], "both in --grid and"),
    ],
)
def test_invalid_arguments(flags, arguments, message, capsys):
    assert main([*flags, *arguments]) == ConfigError.exit_code
    captured = capsys.readouterr().err
    assert captured.startswith("error: ") and message in captured


def test_chart_positions_are_to_scale_or_evenly_spaced():
    def dots(points) -> list[float]:
        svg = ElementTree.fromstring(sweep_chart(points, title="t", field="<f>"))
        return [float(circle.get("cx", "nan")) for circle in svg.iter("circle")]

    log = dots([(1e-5, 0.5), (1e-4, 0.6), (1e-3, 0.7)])
    assert log[1] - log[0] == pytest.approx(log[2] - log[1], abs=0.2)
    uniform = dots([(0.1, 0.5), (0.2, 0.6), (0.4, 0.7)])
    assert uniform[2] - uniform[1] == pytest.approx(2 * (uniform[1] - uniform[0]), abs=0.3)
    strings = dots([("gelu", 0.5), (True, 0.6), ([1], 0.7), ("gelu", 0.8)])
    assert strings[0] == strings[3] and strings[1] - strings[0] == pytest.approx(
        strings[2] - strings[1], abs=0.2
    )
    assert len(dots([(3, 0.5)])) == 1 and len(dots([(0, 0.5), (0, 0.5)])) == 2
