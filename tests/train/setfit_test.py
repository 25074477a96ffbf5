"""Covers bert_jax/train/setfit.py and bert_jax/predict/setfit.py."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.linear_model import LogisticRegression

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.config.labeled_data import Columns
from bert_jax.config.sentence_embeddings import ContrastivePairs
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.setfit import SetFitClassifier
from bert_jax.pretrained.load import LoadedSetFit, load_encoder, load_model
from bert_jax.pretrained.setfit import HEAD_WEIGHTS, SetFitHead, load_head
from bert_jax.tasks.metrics.text_baselines import fit_logistic_regression
from bert_jax.train.setfit import SetFitConfig, train_setfit
from tests.helpers.one_device import one_device_mesh

TEXTS = {"yes": ("the man sings", "a man sings"), "no": ("the old sea", "a old sea")}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> SetFitConfig:
    folder = tmp_path_factory.mktemp("setfit")
    lines = [f"{text},{label}" for label, texts in TEXTS.items() for text in texts]
    (folder / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    export(small_model(folder / "vocabulary", num_hidden_layers=1), folder / "model")
    train = str(folder / "train.csv")
    task = Columns(train=train, dev=train, text="text", label="label")
    return SetFitConfig(
        pairs=ContrastivePairs(task=task),
        model=str(folder / "model"),
        epochs=20,
        learning_rate=1e-2,
        max_length=8,
    )


@pytest.fixture(scope="module")
def folder(config: SetFitConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "setfit"
    with one_device_mesh():
        assert train_setfit(config, folder) == 0
    return folder


def loaded(folder: Path, head: SetFitHead) -> LoadedSetFit:
    """Returns the encoder of a run with another head."""
    return LoadedSetFit(encoder=load_encoder(folder), head=head)


def test_setfit_trains_encoder_and_head(config: SetFitConfig, folder: Path):
    assert json.loads((folder / "evaluation.json").read_text())["dev"]["accuracy"] == 1
    classifier = SetFitClassifier(load_model(folder))
    yes, no = classifier(["a man sings", "the old sea"])
    assert (yes["label"], no["label"]) == ("yes", "no")
    # Logistic regression with the usual regularization is less sure of four examples than 0.9.
    assert yes["probabilities"]["yes"] > 0.8
    assert sum(no["probabilities"].values()) == pytest.approx(1)
    assert classifier("a man sings")["probabilities"] == pytest.approx(
        yes["probabilities"], abs=1e-5
    )
    # Tuning has brought texts of a class together and the classes apart.
    task = load_task(config.pairs.task)
    assert classifier.evaluate(task, "dev")["accuracy"] == 1
    vectors = classifier._embedder([text for texts in TEXTS.values() for text in texts])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    assert min(cosines[0, 1], cosines[2, 3]) > 0.9 and cosines[:2, 2:].max() < 0.5


def test_commands_train_predict_evaluate_and_export(
    config: SetFitConfig, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The run is complete, so the first command only fits the head again."""
    train = str(Path(config.model).parent / "train.csv")
    data = ["columns", "--train", train, "--dev", train, "--text", "text", "--label", "label"]
    flags = ["--epochs", "20", "--learning-rate", "1e-2", "--max-length", "8"]
    command = ["setfit", *data, "--model", config.model, *flags, "--run", str(folder)]
    with one_device_mesh():
        assert main(command) == 0
    assert "final evaluation, dev: accuracy 1.0000" in capsys.readouterr().err

    assert main(["predict", str(folder), "a man sings", "the old sea", " "]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in rows] == ["yes", "no", None]
    assert rows[0]["text"] == "a man sings"
    found = SetFitClassifier(load_model(folder))("a man sings")["probabilities"]
    assert found == pytest.approx(rows[0]["probabilities"], abs=1e-5)
    assert main(["predict", str(folder), "--pairs", "a man", "sings"]) == 1
    assert "was trained on single texts, but the input 'a man' is" in capsys.readouterr().err
    assert main(["evaluate", str(folder), *data]) == 0
    assert json.loads(capsys.readouterr().out)["dev"]["accuracy"] == 1

    exported = tmp_path / "exported"
    assert main(["export", str(folder), "--output", str(exported)]) == 0
    assert "bert-jax predict exported" in (exported / "README.md").read_text()
    found = SetFitClassifier(load_model(exported))("a man sings")["probabilities"]
    assert found == pytest.approx(rows[0]["probabilities"], abs=1e-5)


def test_relabeled_training_data_do_not_resume_a_run(config: SetFitConfig, folder: Path):
    """Exchanged labels give the same number of pairs, so that only the fingerprint differs."""
    train = Path(config.model).parent / "train.csv"
    before, original = (folder / HEAD_WEIGHTS).read_bytes(), train.read_text()
    rows = original.replace("sings,yes", "sings,x", 1).replace("sea,no", "sea,yes", 1)
    try:
        train.write_text(rows.replace("sings,x", "sings,no"))
        with one_device_mesh(), pytest.raises(UserError, match="data has changed since the run"):
            train_setfit(config, folder)
    finally:
        train.write_text(original)
    assert (folder / HEAD_WEIGHTS).read_bytes() == before


def test_head_of_pairs_joins_them_and_refuses_single_texts(folder: Path):
    head = dataclasses.replace(load_head(folder), reads_pairs=True)
    classifier = SetFitClassifier(loaded(folder, head))
    pair, joined = (
        classifier(("a man", "sings")),
        SetFitClassifier(load_model(folder))("a man sings"),
    )
    assert pair["text_pair"] == "sings"
    assert pair["probabilities"] == pytest.approx(joined["probabilities"], abs=1e-5)
    with pytest.raises(UserError, match="was trained on pairs of texts"):
        classifier("a man sings")


def test_prediction_before_the_head_is_fitted_says_how_to_complete_the_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(folder, tmp_path / "stopped")
    for file in (tmp_path / "stopped").glob("setfit_head.*"):
        file.unlink()
    assert main(["predict", str(tmp_path / "stopped"), "a man sings"]) == 1
    assert "run the same command again to complete it" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"whose head is a logistic regression; use SetFitClassif"):
        Predictor(load_encoder(folder))


def test_whether_a_head_reads_pairs_is_saved(folder: Path, tmp_path: Path):
    assert load_head(folder).reads_pairs is False
    dataclasses.replace(load_head(folder), reads_pairs=True).save(tmp_path)
    assert load_head(tmp_path).reads_pairs is True
    config = tmp_path / "setfit_head.json"
    config.write_text(config.read_text().replace("true", "1"))
    with pytest.raises(UserError, match="reads_pairs is 1; expected true, false or null"):
        load_head(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("setfit", "conll", "--train", "t", "--model", "m", "--run", "r"),
            "expected glue/NAME, snli or columns",
        ),
        (("predict", "RUN", "--max-length", "8", "a"), "--max-length is not for "),
        (("predict", "RUN", "--batch-size", "8", "a"), "--batch-size is not for "),
        (
            ("evaluate", "RUN", "columns", "--text", "a", "--dev", "d", "--base", "m"),
            "is not an adapter folder, so it has no base",
        ),
        (
            ("export", "RUN", "--sentence-transformers", "--pooling", "cls", "--output", "new"),
            "was fitted to the vectors as they are; remove --pooling",
        ),
    ],
)
def test_flags_that_setfit_does_not_have_are_refused(folder, arguments, message, capsys):
    assert main([str(folder) if each == "RUN" else each for each in arguments]) == 2
    assert message in capsys.readouterr().err


def test_tasks_without_classes_or_training_examples_are_refused(config, tmp_path, capsys):
    scores = tmp_path / "scores.csv"
    scores.write_text("text,label\na,0.5\nb,1.5\n")
    command = ["setfit", "columns", "--text", "text", "--label", "label", "--model", config.model]
    command += ["--run", str(tmp_path / "run")]
    assert main([*command, "--dev", str(scores).replace("scores", "missing")]) == 1
    assert main([*command, "--dev", config.pairs.task.train]) == 1
    assert "has no train split; give a file" in capsys.readouterr().err
    assert main([*command, "--train", str(scores)]) == 1
    assert "is regression; expected a classification" in capsys.readouterr().err


def test_truncated_texts_are_counted(folder: Path):
    classifier = SetFitClassifier(load_model(folder))
    finished: list[int] = []
    rows = classifier(["the man sings " * 4, "", "the sea"], on_progress=finished.append)
    assert [row["label"] is None for row in rows] == [False, True, False]
    assert classifier.num_truncated == 1 and sum(finished) == 3
    assert classifier.max_length == 8


def test_damaged_heads_are_refused(folder: Path, tmp_path: Path):
    head = load_head(folder)
    head.save(tmp_path)
    assert load_head(tmp_path).labels == ("no", "yes")
    save_file({"weight": head.weight[:1], "bias": head.bias[:1]}, tmp_path / HEAD_WEIGHTS)
    with pytest.raises(UserError, match=r"has a weight of shape \[1, 16\]"):
        load_head(tmp_path)
    save_file({"weight": head.weight, "bias": head.bias * np.nan}, tmp_path / HEAD_WEIGHTS)
    with pytest.raises(UserError, match="not finite"):
        load_head(tmp_path)
    save_file({"weight": head.weight}, tmp_path / HEAD_WEIGHTS)
    with pytest.raises(UserError, match=r"has no tensor 'bias'; expected 'weight' and 'bias'"):
        load_head(tmp_path)
    (tmp_path / HEAD_WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        load_head(tmp_path)
    with pytest.raises(UserError, match=r"has no setfit_head.json; .* use bert_jax.Predictor"):
        SetFitClassifier(load_encoder(folder))
    narrow = dataclasses.replace(head, weight=head.weight[:, :3])
    with pytest.raises(UserError, match=r"expects embeddings of size 3, but those .* have size 16"):
        SetFitClassifier(loaded(folder, narrow))


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_head_has_the_probabilities_of_scikit_learn(names: tuple[str, ...]):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 4)).astype(np.float32)
    labels = [names[i % len(names)] for i in range(12)]
    weight, bias = fit_logistic_regression(vectors, labels, names)
    logits = SetFitHead(labels=names, weight=weight, bias=bias).logits(vectors).astype(np.float64)
    found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = LogisticRegression().fit(vectors, labels).predict_proba(vectors)
    np.testing.assert_allclose(found, expected, atol=1e-5)
