"""Tests that the model card of a fine-tuned model agrees with the records of the run."""

import json
import shutil

import pytest
from sklearn import metrics

from bert_jax.export.export import export
from bert_jax.pretrained.load import load_encoder
from tests.report.task_report_test import predictions, rows_of


@pytest.fixture(scope="module")
def exported(task_run, tmp_path_factory):
    """Returns a function from a kind of task to (run folder, model card)."""

    def get(kind):
        folder, output = task_run(kind), tmp_path_factory.mktemp("card") / "exported"
        export(load_encoder(folder), output)
        return folder, (output / "README.md").read_text(encoding="utf-8")

    return get


def test_card_has_data_protocol_results_and_hardware(exported):
    folder, card = exported("classification")
    assert '| 0 | `<i>yes & "no"\'` |' in card
    for line in ("| train | 160 |", "| dev | 50 |", "| test | 30 |"):
        assert line in card
    assert "30 steps (3 epochs), each with 16 sequences of at most 40 tokens" in card
    assert "learning rate: warmup to 0.01 in 3 steps, then decay to 0 at step 30" in card
    assert "- seed 7\n" in card
    labels = [row["label"] for row in rows_of(folder.parent / "dev.csv")]
    guess = [row["label"] for row in predictions(folder)]
    accuracy = f"{100 * metrics.accuracy_score(labels, guess):#.4g}%"
    assert f"| dev | 50 | accuracy | {accuracy} |" in card
    assert f"had the best accuracy ({accuracy})" in card
    found = json.loads((folder / "analysis.json").read_text())
    assert f"step {found['step']} had the best" in card
    low = found["splits"]["test"]["metrics_with_intervals"][0]["low"]
    assert f"| {100 * low:.4g}% to " in card
    assert "| device kind | cpu |" in card and "| host cpus | " in card
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "bert-jax predict exported" in card
    hardware = json.loads((folder / "config.json").read_text())["hardware"]
    assert hardware["devices"] >= 1 and hardware["host_cpus"] >= 1


@pytest.mark.parametrize(
    "kind, words",
    [
        ("token_classification", ["`conll", "| dev | 40 | F1 |"]),
        ("question_answering", ["exact match", "AutoModelForQuestionAnswering"]),
    ],
)
def test_cards_of_all_kinds_of_tasks(exported, kind, words):
    _, card = exported(kind)
    for part in words:
        assert part in card, part


def test_metrics_of_another_step_are_marked(task_run, exported, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(task_run("classification"), folder)
    found = json.loads((folder / "analysis.json").read_text())
    record = load_encoder(folder).run
    assert record is not None
    held = record.step
    (folder / "analysis.json").write_text(json.dumps({**found, "step": held + 1}))
    export(load_encoder(folder), tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert f"measured with the parameters of step {held + 1}; this folder" in card


def test_unfinished_run_has_its_last_evaluation(task_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(task_run("classification"), folder)
    (folder / "analysis.json").unlink()
    export(load_encoder(folder), tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "## Results of the last evaluation during training" in card and "| accuracy |" in card
