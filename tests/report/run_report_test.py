"""Tests that the report of a run is complete, escaped, self-contained, and correct.

Covers bert_jax/report/run_report.py, run_data.py, curves.py, html.py and svg_charts.py.
"""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from bert_jax.errors import UserError
from bert_jax.report.run_report import write_report
from bert_jax.report.svg_charts import Series, downsample, line_chart, smooth, ticks
from tests.helpers.report_markup import Report


def write_run(folder, steps=300, results=True, name="<b>&run", baselines=None, attempts=()):
    phases = [{"steps": n, "seq_length": L, "batch_size": 8} for n, L in ((200, 128), (100, 512))]
    schedule = {"type": "WarmupLinear", "peak_learning_rate": 1e-4, "warmup_steps": 5}
    checkpoints = {"best_metric": "mlm_loss", "best_mode": "min"}
    config = {
        "type": "Experiment",
        "name": name,
        "objective": {"model": {"type": "BertConfig", "vocab_size": 8000, "hidden_size": 64}},
        "data": {"type": "PretrainingData", "corpus": "<corpus>"},
        "train": {"phases": phases, "schedule": schedule, "checkpoints": checkpoints},
        "betas": [0.9, 0.999],
    }
    made = {"config": config, "fingerprint": "abc123", "versions": {"jax": "0.10.2"}}
    (folder / "config.json").write_text(json.dumps(made))
    rows = []
    for step in range(10, steps + 1, 10):
        rows.append(
            {
                "split": "train",
                "step": step,
                "phase": "length-128" if step <= 200 else "length-512",
                "seconds": step * 0.5 if step <= 150 else (step - 150) * 0.5,
                "loss": 2 + 8 * math.exp(-step / 80),
                "mlm_loss": None if step == 50 else 1.5 + 7 * math.exp(-step / 80),
                "nsp_loss": 0.5,
                "mlm_accuracy": 1 - math.exp(-step / 200),
                "mlm_accuracy_masked": 0.3,
                "mlm_accuracy_random": 0.2,
                "mlm_accuracy_kept": 0.8,
                "learning_rate": 1e-4 * (1 - step / 300),
                "grad_norm": 1.0,
                "padding_fraction": 0.02,
                "tokens_per_second": 30000.0,
                "something_new": 5.0,
            }
        )
        if step % 100 == 0:
            loss = 3.25 if step == 100 else 3.125
            rows.append({"split": "evaluation", "step": step, "phase": "", "mlm_loss": loss})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if results:
        content = {"held_out": {"mlm_loss": 3.125, "nsp_accuracy": 0.75}, "note": "<i>"}
        (folder / "evaluation.json").write_text(json.dumps(content))
    if baselines:
        (folder / "baselines.json").write_text(json.dumps(baselines))
    (folder / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in attempts))


def start(time="2026-11-22T10:52:18+00:00", step=0, **more):
    return {"event": "start", "time": time, "step": step, "command": "bert-jax pretrain <x>"} | more


def end(seconds, outcome, message=""):
    return {"event": "end", "seconds": seconds, "outcome": outcome, "message": message}


def test_report_shows_curves_config_versions_and_results(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    titles = re.findall("<h3>(.*?)</h3>", page)
    assert titles == [
        "Masked-LM loss",
        "Next-sentence loss",
        "Total loss",
        "Masked-LM accuracy",
        "Masked-LM accuracy by what the position shows",
        "Learning rate (from the config)",
        "Gradient norm",
        "Tokens per second",
        "Padding, in percent of all positions",
        "Something new",
    ]
    for text in ("128 tokens up to update 200, then 512 tokens", "abc123", "0.10.2", "betas.1"):
        assert text in page, text
    assert "held_out.nsp_accuracy</th><td>75.00%" in page
    assert "30,000 tokens/s (median)" in page
    # Two processes trained one after the other, 150 steps of half a second each.
    assert "2m 30s in training steps" in page
    assert page.index("Held-out masked-LM loss") < page.index("<svg")


def test_headline_compares_held_out_loss_with_baselines(tmp_path):
    write_run(tmp_path, baselines={"bigram": 4.5, "unigram": 6.25, "mlm_loss": 3.125})
    (table,) = Report(write_report(tmp_path).read_text()).tables["Held-out masked-LM loss", ""]
    assert [row[:2] for row in table] == [
        ["this model", "3.125"],
        ["bigram, given the true left neighbor", "4.500"],
        ["unigram", "6.250"],
        ["guessing among 8,000 tokens", f"{math.log(8000):.3f}"],
    ]
    (tmp_path / "baselines.json").unlink()
    assert f"bert-jax baselines {tmp_path}" in write_report(tmp_path).read_text()


def test_run_without_evaluation_shows_mean_training_loss(tmp_path):
    write_run(tmp_path, steps=90, results=False)
    page = Report(write_report(tmp_path).read_text()).text
    losses = [1.5 + 7 * math.exp(-step / 80) for step in range(10, 91, 10) if step != 50]
    assert f"Training masked-LM loss{sum(losses) / len(losses):.4g}Mean of the last 8" in page


def test_run_before_its_first_evaluation_is_not_called_one_without(tmp_path):
    write_run(tmp_path, steps=90, results=False)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "This run has no evaluation" in Report(write_report(tmp_path).read_text()).text
    config["config"]["train"]["evaluation"] = {"type": "HeldOutEval", "corpus": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    page = Report(write_report(tmp_path).read_text()).text
    assert "No evaluation has taken place" in page and "This run has no evaluation" not in page


def test_total_loss_is_charted_only_if_it_is_a_sum(tmp_path):
    write_run(tmp_path)
    assert "Total loss" in write_report(tmp_path).read_text()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("nsp_loss", None)
        row["loss"] = row["mlm_loss"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Total loss" not in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("attempts", "text"),
    [
        ([start(), end(90, "complete")], "complete, 300 updates"),
        ([start(), end(90, "stopped early")], "complete: stopped early after 300 of 300 updates"),
        ([start(), end(90, "stopped by a signal")], "stopped by a signal after 300 of 300 updates"),
        ([start(), end(90, "failed", "loss is <nan>")], "after 300 of 300 updates: loss is <nan>"),
        ([start()], "not finished: 300 of 300 updates are logged"),
        ([], "complete, 300 updates"),
    ],
)
def test_report_names_state_of_the_run(tmp_path, attempts, text):
    write_run(tmp_path, attempts=attempts)
    assert Report(write_report(tmp_path).read_text()).text.startswith(f"{tmp_path.name}Pretraining")
    assert text in write_report(tmp_path).read_text().replace("&lt;", "<").replace("&gt;", ">")


def test_wall_time_adds_up_processes_that_ended(tmp_path):
    data = {"Training corpus": "<books>: 8 documents"}
    attempts = [
        start(num_parameters=1234567, data=data),
        end(90.0, "stopped by a signal"),
        start(time="2026-11-22T11:00:00+00:00", step=150),
        start(time="2026-11-22T12:00:00+00:00", step=150, num_parameters=1234567, data=data),
        end(31.0, "complete"),
    ]
    write_run(tmp_path, attempts=attempts)
    report = Report(write_report(tmp_path).read_text())
    assert "2m 01s in total without 1 of 3 processes" in report.facts["Time"]
    assert "started 2026-11-22 10:52:18 UTC" in report.facts["Time"]
    assert "1,234,567 parameters" in report.facts["Model"]
    assert report.facts["Training corpus"] == "<books>: 8 documents"
    (table,) = report.tables["Commands", "Commands"]
    assert [row[2] for row in table[1:]] == ["1m 30s", "unknown", "31s"]
    assert table[1][4] == "bert-jax pretrain <x>"


def test_text_is_escaped(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "&lt;b&gt;&amp;run" in page and "<b>&run" not in page
    assert "&lt;corpus&gt;" in page and "<corpus>" not in page


def test_report_loads_nothing_external(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "<script" not in page and "http://" not in page and "https://" not in page
    assert not re.search(r"\b(src|href)=|url\(|@import", page)


def test_every_chart_is_well_formed_and_inside_its_frame(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) >= 8
    for chart in charts:
        root = ElementTree.fromstring(chart)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        lines = root.findall("polyline")
        assert lines
        for line in lines:
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width and 0 <= y <= height


def test_report_before_the_first_logged_step(tmp_path):
    write_run(tmp_path, steps=0, results=False)
    page = write_report(tmp_path).read_text()
    assert "no update has been logged yet" in page and "No result yet" in page


def test_report_of_an_empty_config_is_written(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "No result yet" in write_report(tmp_path).read_text()


def test_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        write_report(tmp_path)


@pytest.mark.parametrize("bounds", [(0, 1), (2.13, 2.19), (-5, 900), (1e-5, 3e-5), (3, 3), (0, 0)])
def test_ticks_are_even_and_cover_the_range(bounds):
    marks = ticks(*bounds)
    gaps = [b - a for a, b in itertools.pairwise(marks)]
    assert marks[0] <= bounds[0] + 1e-12 and marks[-1] >= bounds[1] - 1e-12
    assert 2 <= len(marks) <= 9
    assert max(gaps) == pytest.approx(min(gaps))


def test_smoothing_averages_exponentially_within_phases():
    points = [(1.0, 4.0), (2.0, 2.0), (3.0, 8.0), (4.0, 6.0)]
    found = smooth(points, span=3, restarts=[2.0])  # a weight halves with each point
    expected = [4.0, (0.5 * 4 + 2) / 1.5, 8.0, (0.5 * 8 + 6) / 1.5]
    assert [x for x, _ in found] == [1, 2, 3, 4]
    assert [y for _, y in found] == pytest.approx(expected)


def test_learning_rate_shows_warmup_between_logged_updates(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    chart = page[page.index("Learning rate (from") :]
    assert 'aria-label="Learning rate (from the config): schedule from 0 to 0 at update 300"' in (
        chart
    )
    assert "update 5\nschedule: 0.0001" in chart  # the peak, before the first logged update


def test_learning_rate_shows_decay_by_the_square_root(tmp_path):
    write_run(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["config"]["train"]["schedule"] = {
        "type": "WarmupStableDecay",
        "peak_learning_rate": 1e-4,
        "warmup_steps": 5,
        "decay_steps": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    page = write_report(tmp_path).read_text()
    chart = page[page.index("Learning rate (from") :]
    assert "update 200\nschedule: 0.0001" in chart
    half = chart.split("update 225\nschedule: ", 1)[1].split("<", 1)[0]
    assert float(half) == pytest.approx(0.5e-4)


def test_thinning_keeps_the_mean_and_short_curves():
    points = [(float(x), math.sin(x)) for x in range(1200)]
    short = downsample(points, 240)
    assert len(short) == 240 and downsample(points[:50]) == points[:50]
    assert sum(y for _, y in short) / 240 == pytest.approx(sum(y for _, y in points) / 1200)


def test_chart_without_points_is_empty():
    assert line_chart([Series(label="a", points=[])], title="a") == ""


def test_multi_task_headline_is_a_table_of_first_metrics(tmp_path):
    write_run(tmp_path, attempts=[start(), end(9.0, "complete")])
    info = json.loads((tmp_path / "config.json").read_text())
    info["config"]["data"] = {"type": "MultiTaskData"}
    info["config"]["train"]["evaluation"] = {"split": "dev"}
    (tmp_path / "config.json").write_text(json.dumps(info))

    def task(name, *values):
        rows = [{"metric": m, "value": v, "low": v / 2, "high": v} for m, v in values]
        split = {"examples": 40, "metrics_with_intervals": rows, "top_errors": []}
        return {
            "task": name, "kind": "classification", "labels": ["a"], "examples": {"dev": 40},
            "notes": [], "step": 300, "splits": {"dev": split, "test": split},
        }  # fmt: skip

    tasks = {"rte": task("glue/rte", ("accuracy", 0.5)), "b": task("b", ("f1", 0.25), ("mse", 2.0))}
    (tmp_path / "analysis.json").write_text(json.dumps({"tasks": tasks, "mixture": []}))
    report = Report(write_report(tmp_path).read_text())
    (table,) = report.tables["Result of each task", "Result of each task"]
    assert table[1:] == [
        ["rte: dev (40)", "accuracy", "50.00%", "25.00% to 50.00%"],
        ["b: dev (40)", "F1", "0.25", "0.125 to 0.25"],
    ]
    assert "Multi-task fine-tuning · complete" in report.text
    assert "<summary>Analysis of rte</summary>" in (tmp_path / "report.html").read_text()


def test_headline_shows_another_split_if_dev_was_not_evaluated(tmp_path):
    write_run(tmp_path, attempts=(start(), end(1.0, "complete")))
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("PretrainingData", "TextToTextData"))
    (tmp_path / "evaluation.json").write_text(json.dumps({"test": {"rouge1": 12.5}}))
    page = write_report(tmp_path).read_text()
    assert "<h2>ROUGE-1, test</h2>" in page and "No split with labels" not in page
