"""Covers calibration: the temperature, the thresholds of two classes, and the ways they travel."""

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics as sklearn_metrics
from sklearn.linear_model import LogisticRegression

from bert_jax.__main__ import main
from bert_jax.apps.serve.task_services import label_scores
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.config.config_lib import override
from bert_jax.config.labeled_data import Columns
from bert_jax.config.objectives import FineTuning
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.export.adapter import export_adapter
from bert_jax.export.export import export
from bert_jax.models.adapters.config import LoRA
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.heads.config import SequenceClassificationHead, label_thresholds
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder
from bert_jax.tasks.calibration import divide_last_layer, fit_temperature
from bert_jax.tasks.classification import SequenceClassification
from bert_jax.tasks.metrics.classification import best_thresholds_of_two, mean_loss
from bert_jax.train.presets import fine_tuning_experiment, multi_task_experiment
from bert_jax.train.run import run
from tests.helpers.report_markup import Report
from tests.helpers.task_runs import TASKS, sentence, write_csv

CALIBRATE = "train.evaluation.calibrate=true"


def overconfident(classes: int, seed: int = 0, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels, and logits that are three times as large as they should be."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(rows, classes))
    labels = np.array([draw.choice(classes, p=row) for row in softmax(logits, axis=1)])
    return labels, 3 * logits


def temperature_of(labels: np.ndarray, logits: np.ndarray) -> float:
    return fit_temperature(lambda temperature: mean_loss(labels, logits / temperature))


def test_temperature_of_two_classes_is_that_of_a_logistic_regression():
    labels, logits = overconfident(2)
    gaps = logits[:, 1:] - logits[:, :1]
    model = LogisticRegression(C=1e12, fit_intercept=False, tol=1e-12, max_iter=1000)
    slope = float(model.fit(gaps, labels).coef_[0, 0])
    found = temperature_of(labels, logits)
    assert found == pytest.approx(1 / slope, rel=1e-4) and 2 < found < 4


def test_temperature_of_many_classes_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    labels, logits = overconfident(5, seed=1)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale], max_iter=200, tolerance_grad=1e-12)

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(
            torch.tensor(logits) * scale, torch.tensor(labels)
        )
        value.backward()
        return value

    optimizer.step(loss)
    assert temperature_of(labels, logits) == pytest.approx(1 / scale.item(), rel=1e-4)


def test_no_temperature_without_a_lowest_loss():
    logits = np.random.default_rng(0).normal(size=(50, 3)) * 9
    right = logits.argmax(axis=1)
    assert temperature_of(right, logits) == 1  # no finite temperature is small enough
    assert temperature_of(logits.argmin(axis=1), logits) == 1  # none is large enough
    one_class = np.zeros(50, int)
    assert 1 < temperature_of(one_class, logits + np.array([6.0, 0, 0])) < 100
    assert temperature_of(one_class, np.tile([5.0, 0, 0], (50, 1))) == 1


@pytest.mark.parametrize("metric", ["f1", "f1_macro", "matthews"])
def test_thresholds_of_two_classes_equal_a_search(metric):
    labels, logits = overconfident(2, rows=90)
    labels[:60] = 0
    score = {
        "f1": sklearn_metrics.f1_score,
        "f1_macro": lambda *pair: sklearn_metrics.f1_score(*pair, average="macro"),
        "matthews": sklearn_metrics.matthews_corrcoef,
    }[metric]
    low, high = best_thresholds_of_two(metric, labels, logits)
    shares = softmax(logits, axis=1)[:, 1]
    found = score(labels, (shares > high).astype(int))
    values = [score(labels, (shares > each).astype(int)) for each in [*shares - 1e-9, 0.5]]
    assert low + high == pytest.approx(1) and found == pytest.approx(max(values))
    assert found > score(labels, (shares > 0.5).astype(int))


SIZES: Any = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.mark.parametrize(
    "model",
    [
        BertConfig(**SIZES),
        RobertaConfig(**SIZES),
        ModernBertConfig(**SIZES),
        EuroBertConfig(**SIZES, num_key_value_heads=2, classifier_pooling="late"),
    ],
)
def test_divided_last_layer_divides_logits_of_every_kind_of_head(model):
    head = SequenceClassificationHead(labels=("a", "b", "c"))
    objective = FineTuningObjective(FineTuning(model=model, head=head))
    params = objective.init(jax.random.key(0))
    params["classifier"] = jax.tree.map(lambda leaf: leaf + 0.5, params["classifier"])
    batch: Any = fine_tuning_batch(head, batch_size=2, seq_length=8, vocab_size=60)
    before, after = (
        objective.predict(each, batch)["logits"] for each in (params, divide_last_layer(params, 3))
    )
    assert before.std() > 1e-3
    np.testing.assert_allclose(after, before / 3, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def calibrated(task_run, task_experiment, tmp_path_factory) -> Path:
    """Calibrates a finished run by running it again with the flag: nothing is trained."""
    folder = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(task_run("classification"), folder)
    assert run(override(task_experiment("classification"), [CALIBRATE]), folder) == 0
    return folder


def read(file: Path) -> dict:
    return json.loads(file.read_text())


def rows(folder: Path, split: str) -> list[dict]:
    lines = (folder / f"predictions/{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def texts(folder: Path, split: str) -> list[tuple[str, str]]:
    with (folder / f"{split}.csv").open(newline="", encoding="utf-8") as stream:
        return [(row["text"], row["pair"]) for row in csv.DictReader(stream)]


def test_calibration_changes_probabilities_and_no_decision(calibrated, task_run):
    plain = task_run("classification")
    temperature = read(calibrated / "fitted_heads.json")["heads"][""]["temperature"]
    assert read(calibrated / "analysis.json")["temperature"] == temperature != 1
    for split in ("dev", "test"):
        before, after = (read(each / "evaluation.json")[split] for each in (plain, calibrated))
        for name in ("loss", "brier_score", "calibration_error"):
            assert after[f"{name}_uncalibrated"] == pytest.approx(before[name], abs=1e-5)
        for name in ("accuracy", "f1_macro", "matthews"):
            assert after[name] == before[name]
        for row, other in zip(rows(calibrated, split), rows(plain, split), strict=True):
            assert row["label"] == other["label"]
            logits = np.log([*other["probabilities"].values()]) / temperature
            assert [*row["probabilities"].values()] == pytest.approx(softmax(logits), abs=1e-5)
    dev = read(calibrated / "evaluation.json")["dev"]
    assert dev["loss"] < dev["loss_uncalibrated"]
    page = (calibrated / "report.html").read_text("utf-8")
    assert "Without the temperature, the error is" in Report(page).text
    assert page.count("Reliability diagram without the temperature") == 2  # dev and test


def test_loaded_and_exported_models_have_the_calibrated_probabilities(
    calibrated, task_run, tmp_path, capsys
):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    data = task_run("classification").parent
    pairs, saved = texts(data, "test"), rows(calibrated, "test")
    model = load_encoder(calibrated)
    expected = [pytest.approx(row["probabilities"], abs=1e-5) for row in saved]
    assert [row["probabilities"] for row in Predictor(model)(pairs)] == expected
    export(model, tmp_path / "exported")
    assert "divided by the temperature" in (tmp_path / "exported/README.md").read_text()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    network = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported")
    batch = tokenizer(
        [first for first, _ in pairs],
        [second for _, second in pairs],
        truncation=True,
        padding=True,
        max_length=40,
        return_tensors="pt",
    )
    with torch.no_grad():
        found = torch.softmax(network.eval()(**batch).logits, dim=-1).numpy()
    for row, label_row in zip(found, saved, strict=True):
        names = [network.config.id2label[index] for index in range(3)]
        assert dict(zip(names, row.tolist(), strict=True)) == pytest.approx(
            label_row["probabilities"], abs=1e-5
        )
    flags = ["--test", str(data / "test.csv"), "--text", "text", "--text-pair", "pair"]
    assert main(["evaluate", str(calibrated), "columns", *flags, "--label", "label"]) == 0
    evaluated = json.loads(capsys.readouterr().out)["test"]
    metrics = read(calibrated / "evaluation.json")["test"]
    assert evaluated["loss"] == pytest.approx(metrics["loss"], abs=1e-5)


def test_run_without_calibration_forgets_the_temperature(calibrated, task_experiment, tmp_path):
    shutil.copytree(calibrated, tmp_path / "run")
    assert run(task_experiment("classification"), tmp_path / "run") == 0
    assert not (tmp_path / "run/fitted_heads.json").exists()
    dev = read(calibrated / "evaluation.json")["dev"]["loss_uncalibrated"]
    assert read(tmp_path / "run/evaluation.json")["dev"]["loss"] == pytest.approx(dev)


@pytest.fixture(scope="module")
def rare(task_experiment, tmp_path_factory) -> Path:
    """Trains LoRA on two classes of which one is rare, with thresholds for F1."""
    folder = tmp_path_factory.mktemp("rare")
    files = {}
    for seed, (split, count) in enumerate({"train": 160, "dev": 60, "test": 60}.items()):
        draw = random.Random(seed)
        made = [sentence(draw) for _ in range(count)]
        # The word and some noise, so that the classes cannot be separated.
        made = [(text, "yes" if "sea" in text and draw.random() < 0.6 else "no") for text in made]
        files[split] = write_csv(folder / f"{split}.csv", ("text", "label"), made)
    experiment = fine_tuning_experiment(
        Columns(**files, text="text", label="label"),
        task_experiment("classification").init_from,
        epochs=3,
        batch_size=16,
        learning_rate=1e-2,
        metric="f1",
        calibrate=True,
        tuning=TuningConfig(method=LoRA()),
    )
    assert run(override(experiment, ["data.bucket_lengths=[]"]), folder / "run") == 0
    return folder / "run"


def test_thresholds_of_two_classes_decide_everywhere(rare, tmp_path):
    model = load_encoder(rare)
    head = model.head
    assert isinstance(head, SequenceClassificationHead) and head.thresholds
    low, high = head.thresholds
    assert head.labels == ("no", "yes") and low + high == pytest.approx(1) and high != 0.5
    for split in ("dev", "test"):
        with (rare.parent / f"{split}.csv").open(newline="", encoding="utf-8") as stream:
            lines = list(csv.DictReader(stream))
        saved, metrics = rows(rare, split), read(rare / "evaluation.json")[split]
        labels = [row["label"] == "yes" for row in lines]
        predicted = [row["probabilities"]["yes"] > high for row in saved]
        assert [row["label"] == "yes" for row in saved] == predicted
        at_half = [row["probabilities"]["yes"] > 0.5 for row in saved]
        assert metrics["f1"] == pytest.approx(sklearn_metrics.f1_score(labels, predicted))
        assert metrics["f1_at_0.5"] == pytest.approx(sklearn_metrics.f1_score(labels, at_half))
        assert metrics["accuracy"] == pytest.approx(np.mean(np.equal(labels, predicted)))
    inputs = [row["text"] for row in lines]
    export(model, tmp_path / "merged")
    export_adapter(rare, tmp_path / "adapter")
    for path in (rare, tmp_path / "merged", tmp_path / "adapter"):
        loaded = load_encoder(path)
        assert loaded.head is not None and label_thresholds(loaded.head) == head.thresholds
        for row, expected in zip(Predictor(loaded)(inputs), saved, strict=True):
            assert row["label"] == expected["label"]
            assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert f"| `yes` | {high:.4g} |" in (tmp_path / "merged/README.md").read_text()


def test_server_shows_decisions_of_two_classes():
    class Service:
        labels, is_number, kind = ("no", "yes"), False, SequenceClassification()
        head = SequenceClassificationHead(labels=labels, thresholds=(0.8, 0.2))

    found = label_scores(Service(), np.log([0.7, 0.3]), raw=False)  # pyright: ignore
    assert [(row["label"], row["predicted"]) for row in found] == [("no", False), ("yes", True)]
    assert [row["score"] for row in found] == pytest.approx([0.7, 0.3])


def test_each_classifier_of_several_tasks_has_its_temperature(task_experiment, tmp_path):
    model = str(task_experiment("classification").init_from)
    kinds = {"topics": "classification", "posts": "multi-label", "scores": "regression"}
    tasks = {name: TASKS[kind](tmp_path) for name, kind in kinds.items()}
    settings = {"epochs": 1, "batch_size": 32, "learning_rate": 1e-2}
    experiment = multi_task_experiment(tasks, model, **settings)
    changes = [CALIBRATE, "data.bucket_lengths=[]"]
    assert run(override(experiment, changes), tmp_path / "run") == 0
    heads = read(tmp_path / "run/fitted_heads.json")["heads"]
    assert heads.keys() == {"topics", "posts"}
    for name, kind in (("topics", "label"), ("posts", "labels")):
        assert heads[name]["temperature"] != 1
        lines = (tmp_path / f"run/predictions/{name}/dev.jsonl").read_text().splitlines()
        saved = [json.loads(line) for line in lines]
        predict = Predictor(load_encoder(tmp_path / "run", name))
        file = tmp_path / ("dev.csv" if name == "topics" else "labels-dev.jsonl")
        inputs = (
            texts(tmp_path, "dev")
            if name == "topics"
            else [json.loads(line)["text"] for line in file.read_text().splitlines()]
        )
        for row, expected in zip(predict(inputs), saved, strict=True):
            assert row[kind] == expected[kind]
            assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_calibration_of_other_heads_is_refused(task_experiment, tmp_path):
    with pytest.raises(ConfigError, match=r"calibrate .* is true for RegressionHead; expected"):
        override(task_experiment("regression"), [CALIBRATE])
    with pytest.raises(ConfigError, match=r"expected\s+two classes, or \(\)"):
        SequenceClassificationHead(labels=("a", "b", "c"), thresholds=(0.2, 0.3, 0.5))
    task = TASKS["classification"](tmp_path)
    assert isinstance(task, Columns)
    files = {"train": task.train, "text": "text", "label": "label"}
    model = task_experiment("classification").init_from
    with pytest.raises(ConfigError, match="calibrate is True, but there is no labeled dev split"):
        fine_tuning_experiment(Columns(**files), model, calibrate=True)
