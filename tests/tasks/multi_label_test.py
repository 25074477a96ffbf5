"""Covers several labels of a text: loss, thresholds in a run, and the ways that they travel."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from bert_jax.__main__ import main
from bert_jax.config.config_lib import override
from bert_jax.config.labeled_data import Windows
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.adapter import export_adapter
from bert_jax.export.export import export
from bert_jax.models.heads.config import MultiLabelHead, label_thresholds
from bert_jax.objectives.distillation import task_soft_target_loss
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.checks import check_fits_model
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder
from bert_jax.tasks.metrics.multi_label import best_thresholds
from bert_jax.tasks.multi_label import MultiLabel, multi_label_loss
from bert_jax.train.run import run

HEAD = MultiLabelHead(labels=("x", "y", "z"), thresholds=(0.5, 0.2, 0.9))
TEXTS = ["the old man", "a net by the sea", "sings"]


@pytest.mark.parametrize("weights", [(), (2.0, 0.5, 7.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradient_equal_pytorch(weights, smoothing):
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    logits = (20 * draw.normal(size=(4, 3))).astype(np.float32)
    indicators = draw.integers(0, 2, (4, 3), np.int32)
    batch = {
        "label_indicators": indicators,
        "example_weights": np.array([1, 1, 1, 0], np.float32),  # the last row is padding
    }

    def mean_loss(logits):
        loss, metrics = multi_label_loss({"binary_logits": logits}, batch, weights, smoothing)
        return loss.total / loss.weight, metrics

    (loss, metrics), gradient = jax.value_and_grad(mean_loss, has_aux=True)(logits)
    tensor = torch.tensor(logits, requires_grad=True)
    targets = torch.tensor(indicators[:3] * (1 - smoothing) + smoothing / 2, dtype=torch.float32)
    pos_weight = torch.tensor(weights) if weights else None
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=pos_weight)(tensor[:3], targets)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-6)
    subset = metrics["subset_accuracy"]
    num_right = ((logits > 0) == (indicators > 0)).all(axis=1)[:3].sum()
    assert (float(subset.total), float(subset.weight)) == (num_right, 3)


@pytest.mark.parametrize("weights", [(), (2.0, 0.5, 1.0, 3.0)])
def test_bias_starts_where_its_gradient_is_zero(task_experiment, weights):
    config = dataclasses.replace(task_experiment("multi-label").objective, class_weights=weights)
    bias = FineTuningObjective(config).init(jax.random.key(0))["classifier"]["bias"]
    examples: Any = load_task(task_experiment("multi-label").data.task).splits["train"]
    kind, labels = MultiLabel(), config.head.labels
    indicators = kind.get_references(examples, labels).astype(np.int32)
    # Half an example more of both kinds, by which no frequency is 0 or 1.
    batch: Any = {
        "label_indicators": np.concatenate([indicators, np.ones((1, 4)), np.zeros((1, 4))]),
        "example_weights": np.array([1.0] * len(examples) + [0.5, 0.5], np.float32),
    }

    def loss(bias):
        logits = jnp.broadcast_to(bias, batch["label_indicators"].shape)
        return multi_label_loss({"binary_logits": logits}, batch, weights, 0.0)[0].total

    np.testing.assert_allclose(jax.grad(loss)(bias), np.zeros(4), atol=1e-4)
    assert np.unique(bias).size == 4 and (bias < 0).any()
    with pytest.raises(ConfigError, match=r"label_frequencies is \(0.5,\); expected a number"):
        dataclasses.replace(config, label_frequencies=(0.5,))


def test_soft_targets_of_a_label_are_those_of_two_classes():
    draw = np.random.default_rng(0)
    student, teacher = draw.normal(size=(2, 4, 3)).astype(np.float32)
    found = task_soft_target_loss({"binary_logits": student}, {"binary_logits": teacher}, 2.0)
    p, q = expit(teacher / 2), expit(student / 2)
    divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(found, 4 * divergence.mean(axis=1), rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_windows_pool_the_probability_of_each_label(pooling):
    logits = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    features = Features(
        example_index=np.array([0, 1, 1]), window_pooling=Windows(pooling=pooling).pooling
    )
    found = MultiLabel().pool_outputs(features, {"binary_logits": list(logits)})
    windows = expit(logits[1:].astype(np.float64))
    pooled = {"mean": windows.mean(0), "max": windows.max(0), "first": windows[0]}[pooling]
    np.testing.assert_allclose(expit(found[1]), pooled, rtol=1e-6)
    np.testing.assert_allclose(found[0], logits[0])


def test_config_json_has_thresholds_that_are_read_back(tmp_path):
    kind = MultiLabel()
    written = json.loads(json.dumps(kind.head_to_hugging_face(HEAD)))
    read = kind.head_from_hugging_face(written, "config.json")
    assert isinstance(read, MultiLabelHead)
    assert (read, read.thresholds) == (HEAD, HEAD.thresholds)
    assert kind.head_from_hugging_face({**written, "problem_type": None}, "config.json") is None
    del written["label_thresholds"]
    plain = kind.head_from_hugging_face(written, "config.json")
    assert plain is not None and label_thresholds(plain) == (0.5, 0.5, 0.5)
    for found, message in (
        ({"x": 0.5}, r"label_thresholds is .* expected a threshold for each of the labels x, y, z"),
        ({"x": 0.5, "y": "0.5", "z": 1}, "label_thresholds has '0.5' for the label 'y'"),
    ):
        with pytest.raises(UserError, match=message):
            kind.head_from_hugging_face({**written, "label_thresholds": found}, "config.json")
    with pytest.raises(ConfigError, match=r"has 1\.5 for the label 'y'"):
        dataclasses.replace(HEAD, thresholds=(0.5, 1.5, 0.5))
    with pytest.raises(ConfigError, match="has 1 numbers; expected one for each of the 3 labels"):
        dataclasses.replace(HEAD, thresholds=(0.5,))


def test_examples_are_counted_and_shown_by_label():
    both, none, unlabeled = (
        TextExample(id="0", text="t", label=label) for label in (("x", "z"), (), None)
    )
    kind = MultiLabel()
    shown = [(kind.count_keys(each), kind.format_label(each)) for each in (both, none, unlabeled)]
    assert shown == [
        (["x", "z"], "x, z"),
        (["(none of the labels)"], "(none of the labels)"),
        (["(no label)"], "(no label)"),
    ]
    assert kind.get_references([both, none], HEAD.labels).tolist() == [
        [True, False, True],
        [False] * 3,
    ]


def test_labels_that_were_read_as_classes_are_refused_with_the_flag():
    task = Task(
        name="columns",
        kind="classification",
        labels=("x", "x,y"),
        metrics=(),
        splits={"dev": (TextExample(id="0", text="t", label="x,y"),)},
    )
    with pytest.raises(ConfigError, match="meant for multi-label, pass --kind multi-label;"):
        check_fits_model(task, "dev", MultiLabel(), HEAD.labels, "run")


def multi_label_head(folder: Path) -> MultiLabelHead:
    head = load_encoder(folder).head
    assert isinstance(head, MultiLabelHead)
    return head


def records(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def chosen(row: dict, thresholds: dict[str, float]) -> list[str]:
    return [label for label, p in row["probabilities"].items() if p > thresholds[label]]


def test_run_chooses_thresholds_on_dev_and_predicts_with_them(task_run, capsys):
    folder = task_run("multi-label")
    head = multi_label_head(folder)
    assert head.labels[-1] == "ship"
    thresholds = dict(zip(head.labels, head.thresholds, strict=True))
    assert thresholds["ship"] == 0.5 and len({*thresholds.values()}) > 2
    dev = records(folder / "predictions/dev.jsonl")
    rows = records(folder.parent / "labels-dev.jsonl")
    references = np.array([[name in row["labels"] for name in head.labels] for row in rows])
    logits = np.array([[*row["probabilities"].values()] for row in dev])
    logits = np.log(logits) - np.log1p(-logits)
    assert head.thresholds == pytest.approx(best_thresholds(references, logits), abs=1e-6)
    for split in ("dev", "test"):
        for row in records(folder / f"predictions/{split}.jsonl"):
            assert row["labels"] == chosen(row, thresholds)
    analysis = json.loads((folder / "analysis.json").read_text())["splits"]["test"]
    assert [row["threshold"] for row in analysis["classes"]] == [*head.thresholds]
    metrics = json.loads((folder / "evaluation.json").read_text())["test"]
    gains = [(row["metric"], row["gain"]) for row in analysis["thresholds"]]
    assert gains == [(n, metrics[n] - metrics[f"{n}_at_0.5"]) for n in ("f1_micro", "f1_macro")]
    file = str(folder.parent / "labels-test.jsonl")
    flags = ["--test", file, "--text", "text", "--label", "labels", "--kind", "multi-label"]
    assert main(["evaluate", str(folder), "columns", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)["test"]
    assert printed.pop("examples") == 40 and printed == pytest.approx(metrics, abs=1e-5)
    (row,) = Predictor(load_encoder(folder))([TEXTS[0]])
    assert row["labels"] == chosen(row, thresholds)
    assert Predictor(load_encoder(folder))([" "]) == [
        {"text": " ", "labels": None, "probabilities": None}
    ]


def test_thresholds_belong_to_one_checkpoint(task_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(task_run("multi-label"), folder)
    saved = json.loads((folder / "fitted_heads.json").read_text())
    (folder / "fitted_heads.json").write_text(json.dumps({**saved, "step": saved["step"] + 1}))
    assert multi_label_head(folder).thresholds == ()


def test_export_keeps_thresholds_and_probabilities_in_transformers(task_run, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, head = load_encoder(task_run("multi-label")), multi_label_head(task_run("multi-label"))
    export(model, tmp_path / "exported")
    reloaded = load_encoder(tmp_path / "exported")
    assert reloaded.head == head
    assert multi_label_head(tmp_path / "exported").thresholds == head.thresholds
    threshold = f"| `{head.labels[0]}` | {head.thresholds[0]:.4g} |"
    assert threshold in (tmp_path / "exported/README.md").read_text()
    found = Predictor(reloaded)(TEXTS)
    assert found == [
        {**row, "probabilities": pytest.approx(row["probabilities"], abs=1e-6)}
        for row in Predictor(model)(TEXTS)
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    network = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported")
    assert network.config.problem_type == "multi_label_classification"
    pipeline = transformers.pipeline(
        "text-classification", model=network.eval(), tokenizer=tokenizer, top_k=None
    )
    with torch.no_grad():
        for row, scores in zip(found, pipeline(TEXTS), strict=True):
            by_label = {score["label"]: score["score"] for score in scores}
            assert row["probabilities"] == pytest.approx(by_label, abs=1e-5)
    network.save_pretrained(tmp_path / "saved")  # transformers keeps the key
    tokenizer.save_pretrained(tmp_path / "saved")
    assert multi_label_head(tmp_path / "saved").thresholds == head.thresholds


def test_lora_keeps_thresholds_in_run_export_and_adapter(task_experiment, tmp_path, one_device):
    changes = [
        "train.phases.0.steps=6",
        "train.evaluation.eval_every=6",
        'train.tuning.method={"type": "LoRA"}',
    ]
    folder = tmp_path / "run"
    assert run(override(task_experiment("multi-label"), changes), folder) == 0
    model, thresholds = load_encoder(folder), multi_label_head(folder).thresholds
    assert len({*thresholds}) > 2
    export(model, tmp_path / "merged")
    export_adapter(folder, tmp_path / "adapter")
    expected = Predictor(model)(TEXTS)
    for path in (tmp_path / "merged", tmp_path / "adapter"):
        assert multi_label_head(path).thresholds == thresholds
        for row, other in zip(Predictor(load_encoder(path))(TEXTS), expected, strict=True):
            assert row["labels"] == other["labels"]
            assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
