"""Tests fine-tuning runs in this process: learning, checkpoints, outputs, errors."""

import csv
import dataclasses
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import WORDS, small_model
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns, Conll
from bert_jax.config.objectives import FineTuning
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.adapters.config import LoRA
from bert_jax.models.heads.config import RegressionHead, TokenClassificationHead
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from tests.helpers.contamination import write_item_rows
from tests.helpers.one_device import one_device_mesh

pytest.importorskip("pyarrow")

PLAIN = [word for word in WORDS if not word.startswith("##")]


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns texts of six words; the label is "yes" if they contain "sea"."""
    draw = random.Random(seed)
    made = [" ".join(draw.choices(PLAIN, k=6)) for _ in range(count)]
    return [(text, "yes" if "sea" in text.split() else "no") for text in made]


def write_csv(file: Path, rows: list[tuple[str, str]]) -> str:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    return str(file)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """Writes a small random model with its vocabulary as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("model")
    made = small_model(
        folder / "vocabulary", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    export(made, folder / "exported")
    return str(folder / "exported")


@pytest.fixture(scope="module")
def columns(tmp_path_factory) -> Columns:
    folder = tmp_path_factory.mktemp("columns")
    return Columns(
        train=write_csv(folder / "train.csv", texts(300, 0)),
        dev=write_csv(folder / "dev.csv", texts(100, 1)),
        test=write_csv(folder / "test.csv", texts(60, 2)),
        text="text",
        label="label",
    )


def experiment(task, model: str, **changes) -> Experiment:
    settings = {"epochs": 6, "batch_size": 16, "learning_rate": 1e-2, **changes}
    return fine_tuning_experiment(task, model, **settings)


@pytest.fixture(scope="module")
def finished(columns, model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    # As `bert-jax finetune --contamination` does: 30 examples are in the pretraining corpus.
    task = load_task(columns)
    write_item_rows(folder, task, "dev", {each.id for each in task.splits["dev"][:30]})
    with one_device_mesh():
        assert run(experiment(columns, model), folder) == 0
    return folder


def initial_params(config: Experiment) -> dict[str, np.ndarray]:
    """Returns the parameters that a run starts with."""
    setup = TrainSetup.from_experiment(config, sharding.make_mesh(config.mesh))
    return paths.flatten(jax.device_get(initialize_or_load(setup)["params"]))


def evaluations(folder: Path) -> list[dict]:
    return [row for row in read_metrics(folder / "metrics.jsonl") if row["split"] == "evaluation"]


def test_run_learns_and_keeps_the_best_checkpoint(finished):
    results = json.loads((finished / "evaluation.json").read_text())
    assert results["dev"]["accuracy"] > 0.9 and set(results) == {"dev", "test"}
    seen = evaluations(finished)
    assert len(seen) == 6
    assert results["dev"]["accuracy"] == max(row["accuracy"] for row in seen)
    assert len(list((finished / "checkpoints").glob("[0-9]*"))) <= 2


def test_predictions_are_saved_for_all_splits_but_train(finished):
    assert {file.name for file in (finished / "predictions").iterdir()} == {
        "dev.jsonl",
        "test.jsonl",
    }
    lines = (finished / "predictions/test.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    labels = [label for _, label in texts(60, 2)]
    accuracy = np.mean([row["label"] == label for row, label in zip(rows, labels, strict=True)])
    results = json.loads((finished / "evaluation.json").read_text())
    assert accuracy == pytest.approx(results["test"]["accuracy"])
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)


def test_results_are_separate_for_examples_of_the_pretraining_corpus(finished):
    results = json.loads((finished / "evaluation.json").read_text())["dev"]
    splits = json.loads((finished / "analysis.json").read_text())["splits"]
    groups = splits["dev"]["by_contamination"]
    assert {name: group["examples"] for name, group in groups.items()} == {"clean": 70, "found": 30}
    accuracy = 0.7 * groups["clean"]["accuracy"] + 0.3 * groups["found"]["accuracy"]
    assert accuracy == pytest.approx(results["accuracy"], abs=1e-5)
    assert splits["test"]["by_contamination"].keys() == {"not_searched"}


@pytest.mark.usefixtures("one_device")
def test_restarting_a_finished_run_changes_nothing(finished, columns, model):
    def contents() -> dict[Path, bytes]:
        # Every start of a process is recorded in attempts.jsonl.
        files = set(finished.glob("*.json*")) - {finished / "attempts.jsonl"}
        return {file: file.read_bytes() for file in files}

    before = contents()
    assert run(experiment(columns, model), finished) == 0
    assert contents() == before


@pytest.mark.usefixtures("one_device")
def test_early_stopping_ends_the_run_permanently(columns, model, tmp_path):
    config = experiment(columns, model, epochs=20, learning_rate=1e-9)
    config = override(config, ["train.checkpoints.early_stopping_patience=2"])
    for _ in range(2):
        assert run(config, tmp_path / "run") == 0
        assert len(evaluations(tmp_path / "run")) == 3


@pytest.mark.usefixtures("one_device")
def test_frozen_parameters_do_not_change(columns, model, tmp_path):
    config = override(experiment(columns, model, epochs=1), ['train.tuning.frozen=["encoder/**"]'])
    assert run(config, tmp_path / "run") == 0
    start = paths.flatten(load_encoder(model).params)
    after = paths.flatten(restore_params(tmp_path / "run" / "checkpoints")[0])
    for path, leaf in after.items():
        same = path in start and np.array_equal(leaf, start[path])
        assert same == path.startswith("encoder/"), path


@pytest.mark.usefixtures("one_device")
def test_reinit_layers_are_initialized_again(columns, model):
    config = override(experiment(columns, model), ["train.tuning.reinit_layers=1"])
    start = paths.flatten(load_encoder(model).params)
    after = initial_params(config)
    kernel = "encoder/layers/{}/attention/query/kernel"
    np.testing.assert_array_equal(after[kernel.format(0)], start[kernel.format(0)])
    assert np.abs(after[kernel.format(1)] - start[kernel.format(1)]).max() > 1e-3


@pytest.mark.usefixtures("one_device")
def test_fine_tuned_model_keeps_its_head_or_gets_one_for_another_task(
    finished, columns, model, tmp_path
):
    learned = paths.flatten(load_encoder(str(finished)).params)["classifier/kernel"]
    same = initial_params(experiment(columns, str(finished)))
    np.testing.assert_array_equal(same["classifier/kernel"], learned)

    rows = [(text, str(number % 3)) for number, (text, _) in enumerate(texts(60, 9))]
    other = dataclasses.replace(
        columns, train=write_csv(tmp_path / "three.csv", rows), dev=None, test=None
    )
    fresh = initial_params(experiment(other, str(finished), epochs=1))
    assert fresh["classifier/kernel"].shape == (16, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_regression_run_learns(model, tmp_path):
    rows = [(text, str(float(text.split().count("old")))) for text, _ in texts(200, 5)]
    task = Columns(
        train=write_csv(tmp_path / "train.csv", rows),
        dev=write_csv(tmp_path / "dev.csv", rows[:60]),
        text="text",
        label="label",
        kind="regression",
    )
    config = experiment(task, model, epochs=8)
    assert isinstance(config.objective, FineTuning) and config.objective.head == RegressionHead()
    assert run(config, tmp_path / "regression") == 0
    results = json.loads((tmp_path / "regression/evaluation.json").read_text())
    assert results["dev"]["pearson"] > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_token_classification_run_learns(model, tmp_path):
    for split, seed in (("train", 6), ("dev", 7)):
        sentences = [text.split() for text, _ in texts(200, seed)]
        lines = [
            "\n".join(f"{w} {'B-X' if w in ('man', 'net') else 'O'}" for w in s) for s in sentences
        ]
        (tmp_path / f"{split}.conll").write_text("\n\n".join(lines) + "\n")
    task = Conll(train=str(tmp_path / "train.conll"), dev=str(tmp_path / "dev.conll"))
    config = experiment(task, model, epochs=4)
    assert isinstance(config.objective, FineTuning) and isinstance(
        config.objective.head, TokenClassificationHead
    )
    assert run(config, tmp_path / "tagging") == 0
    assert json.loads((tmp_path / "tagging/evaluation.json").read_text())["dev"]["f1"] > 0.9


@pytest.mark.usefixtures("one_device")
def test_incompatible_settings_are_rejected(columns, model, tmp_path):
    config = experiment(columns, model)
    other = dataclasses.replace(
        config, objective=dataclasses.replace(config.objective, head=RegressionHead())
    )
    with pytest.raises(ConfigError, match="needs SequenceClassificationHead"):
        run(other, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"'validation', but .* has the splits train, dev, test"):
        run(override(config, ["train.evaluation.split=validation"]), tmp_path / "run2")
    with pytest.raises(ConfigError, match="best_metric is 'f2', which is not a metric"):
        run(override(config, ["train.checkpoints.best_metric=f2"]), tmp_path / "run3")
    with pytest.raises(UserError, match="has no train split"):
        experiment(dataclasses.replace(columns, train=None), model)
    with pytest.raises(ConfigError, match="epochs is 0"):
        experiment(columns, model, epochs=0)


def test_few_examples_get_enough_updates_unless_epochs_are_set(columns, model, caplog):
    """300 examples in batches of 16 are 19 updates in an epoch."""
    caplog.set_level("INFO", "bert_jax.train.presets")
    train = fine_tuning_experiment(columns, model, batch_size=16).train
    assert train.steps == 11 * 19 and train.checkpoints.save_every == 2 * 19
    assert train.evaluation is not None and train.evaluation.eval_every == 2 * 19
    length, message = caplog.messages
    assert length.startswith("maximum length: ")
    assert message.startswith("300 training sequences give only 19 updates in an epoch, and ")
    assert "needs at least 200: training for" in message
    assert "11 epochs (209 updates) instead of 3 epochs; set --epochs" in message
    caplog.clear()
    lora = TuningConfig(method=LoRA())
    assert fine_tuning_experiment(columns, model, batch_size=16, tuning=lora).train.steps == 33 * 19
    assert "33 epochs (627 updates) instead of 9 epochs; set --epochs" in caplog.messages[1]
    caplog.clear()
    assert fine_tuning_experiment(columns, model, batch_size=16, epochs=3).train.steps == 57
    assert fine_tuning_experiment(columns, model, batch_size=4).train.steps == 225
    assert not any("epochs" in each for each in caplog.messages)
