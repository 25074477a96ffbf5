"""Sweeps: which settings are tried, and what is said of them."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bert_jax.atomic_io import write_json
from bert_jax.cli import build_parser, main
from bert_jax.cli.arguments.task import task_config
from bert_jax.data.finetuning.config import Columns
from bert_jax.errors import ConfigError
from bert_jax.studies import job_runner
from bert_jax.studies.job_runner import JobRunner
from bert_jax.studies.sweep import Range, Search, parse_ranges, parse_values
from bert_jax.studies.sweep_chart import sweep_chart


class Pretender(JobRunner):
    """Runs no process: accuracy is a function of the arguments, and of nothing else."""

    def _run_one(self, cell, bar):
        run = self._folder / cell.name
        told = build_parser().parse_args(["finetune", *cell.arguments, "--run", str(run)])
        seed, rate = told.seed, told.learning_rate
        task = task_config(told)
        assert isinstance(task, Columns) and task.label == "label" and told.model == "m"
        run.mkdir(parents=True, exist_ok=True)
        with (self._folder / "journal.txt").open("a") as stream:
            stream.write(f"{cell.name}\n")
        if rate > 0.5:
            return "diverged"
        told = {"overrides": told.overrides, "epochs": told.epochs, "batch": told.batch_size}
        write_json(run / "told.json", told)
        accuracy = 0.9 - abs(np.log10(rate) + 4) / 10 + seed / 100
        write_json(run / "evaluation.json", {"dev": {"accuracy": accuracy, "f1": accuracy / 2}})
        write_json(run / job_runner.FINISHED_FILE, {"arguments": list(cell.arguments)})
        return None


@pytest.fixture
def flags(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setattr(job_runner, "JobRunner", Pretender)
    files = []
    for split in ("train", "dev"):
        file = tmp_path / f"{split}.csv"
        file.write_text("text,label\ngood,yes\nbad,no\n")
        files += [f"--{split}", str(file)]
    named = ["--text", "text", "--label", "label", "--model", "m"]
    return ["sweep", "columns", *files, *named, "--output", str(tmp_path / "output")]


def results_in(output: Path) -> dict:
    return json.loads((output / "results.json").read_text())


def test_a_grid_from_flags_to_files(flags, tmp_path, capsys):
    output = tmp_path / "output"
    grid = ["--grid", "learning_rate=1e-5,1e-4,0.9", 'train.tuning.frozen=[],["encoder/**"]']
    shared = ["--seeds", "0", "3", "1", "--batch-size", "8"]
    shared += ["--set", "objective.classifier_dropout=0.2"]
    assert main([*flags, *grid, *shared]) == 1
    told = capsys.readouterr()
    runs = [json.loads(file.read_text()) for file in output.glob("*/seed-3/told.json")]
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
    expected = np.array([0.9, 0.93, 0.91])
    assert best["accuracy"]["median"] == pytest.approx(np.median(expected))
    assert best["accuracy"]["mean"] == pytest.approx(expected.mean())
    assert best["accuracy"]["std"] == pytest.approx(expected.std(ddof=1))
    assert best["accuracy"]["values"] == pytest.approx({"0": 0.9, "1": 0.91, "3": 0.93})
    assert len(results["failed"]) == 6 and set(results["failed"].values()) == {"diverged"}
    assert "diverged" in told.err
    # Best first; settings without a run are in results.json, not in the table.
    rows = [line for line in told.out.splitlines()[2:]]
    assert len(rows) == 4 and rows[0].split("|")[1].strip() == "0.0001"
    page = (output / "table.html").read_text()
    assert "encoder/**" in page and page.count("<svg") == 2
    charts = re.findall(r"<svg.*?</svg>", page)
    assert [len(list(ElementTree.fromstring(c).iter("circle"))) for c in charts] == [12, 12]


def test_what_is_finished_is_not_repeated_when_more_is_asked_for(flags, tmp_path, capsys):
    output = tmp_path / "output"
    assert main([*flags, "--grid", "learning_rate=1e-5,1e-4", "epochs=2"]) == 0
    assert main([*flags, "--grid", "epochs=2", "learning_rate=1e-4,1e-3", "--seeds", "0", "1"]) == 0
    run = (output / "journal.txt").read_text().splitlines()
    assert len(run) == len(set(run)) == 5
    assert len(results_in(output)["trials"]) == 2
    assert "1 of 4 runs were finished before" in capsys.readouterr().err
    assert main([*flags, "--grid", "learning_rate=1e-5", "--batch-size", "8"]) == 1
    assert "shared.batch_size: None there, 8 now" in capsys.readouterr().err


def test_random_draws(flags, tmp_path):
    draws = ["--random", "12", "--range", "learning_rate=1e-6..1e-3:log", "--grid", "epochs=2,3"]
    assert main([*flags, *draws]) == 0
    few = [row["setting"] for row in results_in(tmp_path / "output")["trials"]]
    assert len(few) == 12 and {row["epochs"] for row in few} == {2, 3}
    assert all(1e-6 <= row["learning_rate"] <= 1e-3 for row in few)
    search = Search(
        values={"epochs": (2, 3), "batch_size": (16, 32)},
        ranges={"learning_rate": Range(low=1e-6, high=1e-3, log=True)},
        num_samples=20,
    )
    more = [{k: v for k, v in s.items() if k != "batch_size"} for s in search.settings()]
    assert more[:12] == few


def test_draws_follow_their_laws():
    draws = np.random.default_rng(0)
    log = Range(low=1e-6, high=1e-2, log=True)
    drawn = [np.log10(log.sample(draws)) for _ in range(4000)]
    assert stats.kstest(drawn, stats.uniform(-6, 4).cdf).pvalue > 1e-3
    even = [Range(low=0.1, high=0.3).sample(draws) for _ in range(4000)]
    assert stats.kstest(even, stats.uniform(0.1, 0.2).cdf).pvalue > 1e-3
    whole = [Range(low=2, high=5).sample(draws) for _ in range(4000)]
    assert stats.chisquare(np.bincount(whole)[2:]).pvalue > 1e-3 and set(whole) == {2, 3, 4, 5}
    halves = [Range(low=1, high=64, log=True).sample(draws) for _ in range(4000)]
    assert {1, 64} <= set(halves) and np.median(halves) == pytest.approx(6, abs=1)


def test_values_are_json_or_words():
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
        (["--grid", "epochs="], "expected values, each once"),
        (["--grid", "epochs=2,2"], "expected values, each once"),
        (["--grid", "epochs=2", "epochs=3"], "names epochs twice"),
        (["--grid", "epochs=0"], "epochs is 0, expected a number above 0"),
        (["--grid", "seed=1,2"], "name several with --seeds"),
        (["--grid", "epochs=2", "--epochs", "3"], "epochs is both searched over and set"),
        (["--grid", "epochs=2", "--seeds", "1", "1"], "a seed occurs twice"),
        (["--range", "epochs=2..3"], "--range needs --random N"),
        (["--random", "2", "--range", "epochs=3..2"], "expected ascending"),
        (["--random", "2", "--range", "epochs=0..2:log"], "above 0 for a logarithmic one"),
        (["--random", "2", "--range", "epochs=2,3"], "expected FIELD=LOW..HIGH"),
        (["--random", "2", "--range", "epochs=2..3:exp"], "expected FIELD=LOW..HIGH"),
        (["--random", "0", "--grid", "epochs=2"], "--random is 0, expected 1 or more"),
        (["--random", "1", "--range", "epochs=2..3", "--grid", "epochs=2"], "both in --grid and"),
    ],
)
def test_mistakes_are_told(flags, arguments, message, capsys):
    assert main([*flags, *arguments]) == ConfigError.exit_code
    told = capsys.readouterr().err
    assert told.startswith("error: ") and message in told


def test_charts_place_values_to_scale_or_side_by_side():
    def dots(points) -> list[float]:
        svg = ElementTree.fromstring(sweep_chart(points, title="t", field="<f>"))
        return [float(circle.get("cx", "nan")) for circle in svg.iter("circle")]

    log = dots([(1e-5, 0.5), (1e-4, 0.6), (1e-3, 0.7)])
    assert log[1] - log[0] == pytest.approx(log[2] - log[1], abs=0.2)
    even = dots([(0.1, 0.5), (0.2, 0.6), (0.4, 0.7)])
    assert even[2] - even[1] == pytest.approx(2 * (even[1] - even[0]), abs=0.3)
    words = dots([("gelu", 0.5), (True, 0.6), ([1], 0.7), ("gelu", 0.8)])
    assert words[0] == words[3] and words[1] - words[0] == pytest.approx(
        words[2] - words[1], abs=0.2
    )
    assert len(dots([(3, 0.5)])) == 1 and len(dots([(0, 0.5), (0, 0.5)])) == 2
