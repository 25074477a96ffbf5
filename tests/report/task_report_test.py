"""Tests the report of a fine-tuning run: correct numbers, escaped texts, layout in a browser.

Covers bert_jax/report/task_report.py, and the headline of run_report.py.
"""

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from bert_jax.report.run_report import write_report
from bert_jax.report.svg_charts import ticks
from bert_jax.report.task_report import MAX_CLASSES, report_sections
from tests.helpers.browser import browse, find_browser
from tests.helpers.report_markup import Report
from tests.helpers.task_runs import HOSTILE, HOSTILE_LABEL, KINDS

ZERO: Any = 0  # typed, because scikit-learn's default looks like a string
# Each kind is a run of its own. Fast tests see regression in the report of a multi-task run
# (train/workloads/multi_task_test.py); multiple choice has the sections of classification.
SLOW_KINDS = ("regression", "multiple_choice")
each_kind = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW_KINDS else kind for kind in KINDS],
)
SECTIONS = {
    "classification": ["Classes", "Confusion matrix", "Calibration", "Worst errors"],
    "multi-label": ["Labels", "Thresholds of the labels, compared with 0.5", "Worst errors"],
    "regression": ["Predicted value (vertical) by label (horizontal)", "Worst errors"],
    "token_classification": ["Entities by type", "Entity errors by type", "Worst errors"],
    "question_answering": ["By question word (0 to 100)", "Worst errors"],
    "multiple_choice": ["Calibration", "Worst errors"],
}


def read(folder: Path) -> Report:
    return Report((folder / "report.html").read_text(encoding="utf-8"))


def predictions(folder: Path, split: str = "dev") -> list[dict]:
    lines = (folder / f"predictions/{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def percent(fraction: float) -> str:
    return f"{100 * fraction:#.4g}%"


def bare(answer: str) -> str:
    """Removes the words that SQuAD's rules ignore from an answer."""
    return " ".join(word for word in answer.split() if word not in ("a", "the", "."))


def results(report: Report) -> dict[tuple[str, str], str]:
    """Returns (split (examples), metric) -> value of the table of results."""
    (table,) = report.tables["Results", "Results"]
    assert table[0] == ["split (examples)", "metric", "value", "95 % interval"]
    for _, _, value, interval in table[1:]:
        ends = [float(end.rstrip("%")) for end in interval.split(" to ")]
        assert ends[0] <= float(value.rstrip("%")) <= ends[1]
    return {(split, metric): value for split, metric, value, _ in table[1:]}


@each_kind
def test_all_sections_are_present_and_well_formed(task_run, kind):
    report = read(task_run(kind))
    for title in SECTIONS[kind]:
        assert title in report.text, title
    assert "Results" in report.text and "Hardware" in report.text
    first = next(iter(results(report).items()))
    ((split, metric), value) = first
    assert f"{metric[:1].upper()}{metric[1:]} on {split.split()[0]}" in report.text
    assert f"{value}95 % interval: " in report.text
    (data,) = (tables for (title, _), tables in report.tables.items() if title.startswith("Data: "))
    assert data[0][0] == ["split", "examples"] and len(data[0]) >= 3


@each_kind
def test_texts_that_look_like_markup_are_escaped(task_run, kind):
    folder = task_run(kind)
    report = read(folder)  # read() asserts that nothing is loaded or run
    assert not report.tags & {"script", "img"}
    items = report.items["Analysis of dev", "Worst errors"]
    assert items and any(HOSTILE.replace(" ", "") in str(i).replace(" ", "") for i in items)
    assert "<script" not in (folder / "report.html").read_text(encoding="utf-8")


def test_classification_report_equals_scikit_learn(task_run):
    folder = task_run("classification")
    report, predicted = read(folder), predictions(folder)
    references = [row["label"] for row in rows_of(folder.parent / "dev.csv")]
    guess = [row["label"] for row in predicted]
    labels = [HOSTILE_LABEL, "maybe", "no"]

    found = results(report)
    assert found["dev (50)", "accuracy"] == percent(metrics.accuracy_score(references, guess))
    macro = metrics.f1_score(references, guess, average="macro", zero_division=ZERO)
    assert found["dev (50)", "macro F1"] == f"{macro:.4g}"
    assert {split for split, _ in found} == {"dev (50)", "test (30)"}

    (table,) = report.tables["Analysis of dev", "Confusion matrix"]
    counts = [[int(cell.split()[0]) for cell in row[1:]] for row in table[1:]]
    assert [row[0] for row in table[1:]] == table[0][1:] == labels
    assert counts == metrics.confusion_matrix(references, guess, labels=labels).tolist()

    (table,) = report.tables["Analysis of dev", "Classes"]
    columns: Any = metrics.precision_recall_fscore_support(
        references, guess, labels=labels, zero_division=ZERO
    )
    for row, *(precision, recall, f1, support) in zip(table[1:], *columns, strict=True):
        scores = [f"{score:.4g}" for score in (precision, recall, f1)]
        assert row[1:] == [*scores, f"{support}"]

    sure = np.array([max(row["probabilities"].values()) for row in predicted])
    right, error = np.array(references) == guess, 0.0
    for b in range(15):
        here = (sure > b / 15) & (sure <= (b + 1) / 15)
        error += here.mean() * abs(right[here].mean() - sure[here].mean()) if here.any() else 0.0
    assert f"Expected calibration error {error:.4g}:" in report.text
    assert sum(int(row[1]) for row in report.tables["Analysis of dev", "Calibration"][0][1:]) == 50


def test_worst_errors_have_the_largest_losses(task_run):
    folder = task_run("classification")
    rows = rows_of(folder.parent / "dev.csv")
    wrong = sorted(
        (
            -math.log(predicted["probabilities"][row["label"]]),
            predicted["id"],
            row["text"],
            row["label"],
        )
        for row, predicted in zip(rows, predictions(folder), strict=True)
        if predicted["label"] != row["label"]
    )[::-1]
    items = read(folder).items["Analysis of dev", "Worst errors"]
    assert len(items) == min(20, len(wrong)) > 3
    losses = [float(item["loss"]) for item in items]
    assert losses == pytest.approx([loss for loss, *_ in wrong[:20]], rel=1e-3)
    by_id = {name: (text, label) for _, name, text, label in wrong}
    for item in items:
        assert (item["text"], item["reference"]) == by_id[item["id"]]
        assert item["second text"] == "a second text"


@pytest.mark.slow
def test_regression_report_equals_scipy(task_run):
    folder = task_run("regression")
    references = [float(row["label"]) for row in rows_of(folder.parent / "values-dev.csv")]
    guess = [row["value"] for row in predictions(folder)]
    found = results(read(folder))
    assert found["dev (40)", "Pearson correlation"] == f"{stats.pearsonr(references, guess)[0]:.4g}"
    assert (
        found["dev (40)", "Spearman correlation"] == f"{stats.spearmanr(references, guess)[0]:.4g}"
    )
    far = max(abs(a - b) for a, b in zip(references, guess, strict=True))
    items = read(folder).items["Analysis of dev", "Worst errors"]
    assert float(items[0]["distance"]) == pytest.approx(far, rel=1e-3)


def test_token_classification_report_equals_seqeval(task_run):
    entity_f1 = pytest.importorskip("seqeval.metrics").f1_score
    folder = task_run("token_classification")
    blocks = (folder.parent / "dev.conll").read_text().strip().split("\n\n")
    tags = [[line.split()[-1] for line in block.split("\n")] for block in blocks]
    # An I- that continues no entity begins one, which the reader writes as B-.
    references = [
        ["B" + tag[1:] if tag[0] == "I" and before[1:] != tag[1:] else tag for before, tag in pairs]
        for pairs in ([*zip(["O", *sentence], sentence, strict=False)] for sentence in tags)
    ]
    guess = [row["tags"] for row in predictions(folder)]
    report = read(folder)
    assert float(results(report)["dev (40)", "F1"]) == pytest.approx(
        entity_f1(references, guess), rel=1e-3
    )
    (table,) = report.tables["Analysis of dev", "Entity errors by type"]
    assert table[0][0] == "type" and [row[0] for row in table[1:]] == ["LOC", "PER"]
    for row in table[1:]:
        begun = sum(tag == f"B-{row[0]}" for sentence in references for tag in sentence)
        assert sum(map(int, row[1:5])) == begun


def test_question_answering_report_counts_exact_matches(task_run):
    folder = task_run("question_answering")
    content = json.loads((folder.parent / "dev.json").read_text())
    asked = [qa for p in content["data"][0]["paragraphs"] for qa in p["qas"]]
    right = [
        bare(predicted["answer"])
        in [bare(answer["text"]) for answer in qa["answers"] or [{"text": ""}]]
        for qa, predicted in zip(asked, predictions(folder), strict=True)
    ]
    report = read(folder)
    assert float(results(report)["dev (36)", "exact match"]) == pytest.approx(
        100 * np.mean(right), rel=1e-3
    )
    (table,) = report.tables["Analysis of dev", "By question word (0 to 100)"]
    words = [qa["question"].split()[0].lower() for qa in asked]
    assert {row[0]: int(row[1]) for row in table[1:]} == {w: words.count(w) for w in words}


@pytest.mark.slow
def test_multiple_choice_report_has_the_accuracy(task_run):
    folder = task_run("multiple_choice")
    rows = rows_of(folder.parent / "swag-dev.csv")
    right = [
        int(row["label"]) == predicted["choice"]
        for row, predicted in zip(rows, predictions(folder), strict=True)
    ]
    assert results(read(folder))["dev (30)", "accuracy"] == percent(float(np.mean(right)))


def test_report_can_be_rewritten_from_the_saved_files(task_run, tmp_path):
    shared = task_run("classification")  # other processes read it
    folder = tmp_path / shared.name
    shutil.copytree(shared, folder)
    before = (folder / "report.html").read_text().replace(str(shared), str(folder))
    (folder / "report.html").unlink()
    assert write_report(folder).read_text() == before


def test_many_classes_are_shown_as_most_common_confusions():
    labels = [f"class {n}" for n in range(MAX_CLASSES + 1)]
    confusions = [[0, 0, 90], [1, 2, 3], [5, 4, 70], [20, 0, 12]]
    found = {
        "examples": 175,
        "metrics_with_intervals": [],
        "confusion_matrix": confusions,
        "top_errors": [],
    }
    analysis = {
        "task": "many",
        "kind": "classification",
        "labels": labels,
        "examples": {"dev": 175},
        "notes": ["2 rows <mended>"],
        "step": 3,
        "splits": {"dev": found},
    }
    report = Report(report_sections(analysis))
    (table,) = report.tables["Analysis of dev", "Confusion matrix"]
    assert table[1:] == [
        ["class 5", "class 4", "70"],
        ["class 20", "class 0", "12"],
        ["class 1", "class 2", "3"],
    ]
    assert "None: every prediction is correct." in report.text
    assert "2 rows <mended>" in report.text
    assert ticks(0, 1)[0] == 0


@pytest.fixture(scope="module")
def tab():
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium here; BERT_JAX_BROWSER may name one")
    with browse(program) as page:
        yield page


@each_kind
def test_browser_shows_the_page_offline(task_run, kind, tab):
    file = task_run(kind) / "report.html"
    for width in (400, 1100):
        tab.messages.clear()
        tab.open(file, width)
        assert tab.requests == [file.resolve().as_uri()]
        assert not tab.messages
        assert tab.value("document.documentElement.scrollWidth") <= width
        shown = tab.value(
            "Array.from(document.querySelectorAll('h2, h3')).filter(e => e.checkVisibility()"
            " && e.offsetWidth > 0).map(e => e.textContent)"
        )
        assert {"Curves", "Results", "Analysis of dev", *SECTIONS[kind]} <= set(shown)
        assert tab.value("document.scripts.length + document.images.length") == 0
        # No card is wider than the window, and every chart has a size.
        assert tab.value(
            "Array.from(document.querySelectorAll('.card, svg')).every(e => {"
            " const r = e.getBoundingClientRect();"
            " return r.left >= 0 && r.right <= innerWidth && r.height > 10 })"
        )
