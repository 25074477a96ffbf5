"""Tests that the report of a run is complete, escaped, self-contained, and correct."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from bert_jax.errors import UserError
from bert_jax.report.run_report import write_report
from bert_jax.report.svg_charts import Series, downsample, line_chart, ticks


def write_run(folder, steps=300, results=True, name="<b>&run"):
    config = {"type": "Experiment", "name": name, "train": {"rate": 1e-4, "betas": [0.9, 0.999]}}
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
            row = {"split": "evaluation", "step": step, "phase": "", "mlm_loss": 3.25}
            rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if results:
        content = {"held_out": {"mlm_loss": 3.125, "nsp_accuracy": 0.75}, "note": "<i>"}
        (folder / "evaluation.json").write_text(json.dumps(content))


def test_report_shows_curves_config_versions_and_results(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    titles = (
        "Loss",
        "Accuracy",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
        "Padding fraction",
    )
    for text in (*titles, "something new", "length-512", "abc123", "0.10.2", "train.betas.1"):
        assert text in page, text
    assert "held_out.nsp_accuracy</th><td>75%" in page
    assert "<b>30,000</b>tokens/s, median" in page
    # Two processes trained one after the other, 150 steps of half a second each.
    assert "<b>2m 30s</b>training time" in page


def test_text_is_escaped(tmp_path):
    write_run(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "&lt;b&gt;&amp;run" in page and "<b>&run" not in page
    assert "&lt;i&gt;" in page and "<i>" not in page


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
    assert "No step has been logged yet" in write_report(tmp_path).read_text()


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


def test_thinning_keeps_the_mean_and_short_curves():
    points = [(float(x), math.sin(x)) for x in range(1200)]
    short = downsample(points, 240)
    assert len(short) == 240 and downsample(points[:50]) == points[:50]
    assert sum(y for _, y in short) / 240 == pytest.approx(sum(y for _, y in points) / 1200)


def test_chart_without_points_is_empty():
    assert line_chart([Series(label="a", points=[])], title="a") == ""
