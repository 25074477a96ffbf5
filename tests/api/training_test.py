"""Covers bert_jax/api: training from Python on tables in memory."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax.api.tables import split_tables, table_file
from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.apps.testing.models import small_model
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.pretrained.load import LoadedModel
from bert_jax.runs.run_folder import read_config

ROWS = [{"text": "a net", "label": "work"}, {"text": "the sea", "label": "rest"}] * 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    export(small_model(folder / "vocabulary"), folder / "model")
    return folder


@pytest.fixture(scope="module")
def tuned(folder) -> Any:
    return bert_jax.finetune(
        folder / "model",
        train=ROWS,
        dev=ROWS[:6],
        text="text",
        label="label",
        run=folder / "run",
        epochs=5,
        batch_size=8,
        learning_rate=2e-2,
        max_length=12,
    )


def test_fine_tuned_model_predicts_evaluates_and_exports(tuned, folder, tmp_path):
    assert tuned.complete and tuned.report.is_file() and tuned.metrics["dev"]["accuracy"] == 1
    assert repr(tuned).startswith(f"<FineTunedModel {folder / 'run'} accuracy=1")
    one = tuned.predict("a net")
    assert one["label"] == "work" and tuned.predict([ROWS[0]["text"]])[0]["label"] == "work"
    assert tuned.evaluate(ROWS[:6])["accuracy"] == 1
    wrong = [{**row, "label": "rest"} for row in ROWS[:6]]
    assert tuned.evaluate(wrong)["accuracy"] == 0.5
    exported = tuned.export(tmp_path / "exported")
    again = bert_jax.Predictor(bert_jax.load_model(exported))("a net")
    assert again["probabilities"] == pytest.approx(one["probabilities"], abs=1e-5)


def test_same_call_returns_the_finished_run_and_other_data_is_refused(tuned, folder):
    settings = {"text": "text", "label": "label", "run": folder / "run", "epochs": 5}
    settings |= {"batch_size": 8, "learning_rate": 2e-2, "max_length": 12}
    again = bert_jax.finetune(folder / "model", train=ROWS, dev=ROWS[:6], **settings)
    assert again.complete and again.metrics == tuned.metrics
    with pytest.raises(UserError, match=r"data\.task\.train"):
        bert_jax.finetune(folder / "model", train=ROWS[:-2], dev=ROWS[:6], **settings)


def test_overwriting_keeps_tables_and_checks_first(folder, tmp_path):
    settings = {"text": "text", "label": "label", "run": tmp_path / "run", "epochs": 1}
    settings |= {"batch_size": 8, "max_length": 12}
    first = bert_jax.finetune(folder / "model", train=ROWS, dev=ROWS[:6], **settings)
    with pytest.raises(UserError, match=r"contamination-items\.parquet: no such file"):
        bert_jax.finetune(
            folder / "model", train=ROWS, contamination=folder, overwrite=True, **settings
        )
    assert first.report.is_file()
    rows = [*ROWS[2:], {"text": "a man", "label": "rest"}]
    second = bert_jax.finetune(
        folder / "model", train=rows, dev=rows[-6:], overwrite=True, **settings
    )
    assert second.complete and len([*(tmp_path / "run" / "data").iterdir()]) == 4


def test_several_labels_are_evaluated_as_they_were_trained(folder):
    rows = [{"text": "a net", "tags": "work;sea"}, {"text": "the man", "tags": ""}] * 8
    rows += [{"text": "sea", "tags": "sea"}] * 4
    tuned = bert_jax.finetune(
        folder / "model",
        train=rows,
        dev=rows,
        text="text",
        label="tags",
        kind="multi-label",
        label_separator=";",
        run=folder / "several",
        epochs=6,
        batch_size=8,
        learning_rate=2e-2,
        max_length=12,
    )
    assert tuned.evaluate(rows) == pytest.approx(tuned.metrics["dev"], abs=1e-5)
    assert tuned.metrics["dev"]["f1_micro"] > 0.9
    assert set(tuned.predict("a net")["probabilities"]) == {"sea", "work"}


def test_unknown_setting_is_named(folder):
    with pytest.raises(
        ConfigError, match="no setting 'learning_rat'; did you mean 'learning_rate'"
    ):
        bert_jax.finetune(folder / "model", train=ROWS, text="text", label="label", learning_rat=1)


def test_pretrain_takes_an_experiment_or_a_recipe(tmp_path):
    tiny_corpus = prepare_corpus(tmp_path / "corpus")
    experiment = tiny_experiment(
        "tiny", str(tiny_corpus), two_length_phases(4), num_hidden_layers=1
    )
    trained = bert_jax.pretrain(experiment, run=tmp_path / "run")
    assert trained.complete and isinstance(trained.model, LoadedModel)
    assert trained.model.config == experiment.objective.model
    again = bert_jax.pretrain(
        dataclasses.replace(experiment, seed=1), run=tmp_path / "run", overwrite=True
    )
    assert again.complete and read_config(tmp_path / "run")["seed"] == 1
    with pytest.raises(ConfigError, match="an Experiment is complete"):
        bert_jax.pretrain(experiment, run=tmp_path / "run", steps=3)
    recipe = Path(__file__).parents[1] / "helpers" / "tiny_recipe.py"
    short = bert_jax.pretrain(recipe, run=tmp_path / "short", corpus=tiny_corpus, steps=4)
    # A text stays a text, although it is also a number.
    with pytest.raises(UserError, match="12"):
        bert_jax.pretrain(recipe, run=tmp_path / "number", corpus="12", steps=4)
    assert short.complete and repr(short) == f"<TrainedModel {tmp_path / 'short'}>"


def test_embeddings_are_trained_from_a_model_in_memory(tuned):
    words = ["sea", "net", "man", "old", "sings", "mends", "by", "and"]
    pairs = [{"a": f"the {word}", "b": f"a {word}"} for word in words]
    trained = bert_jax.train_embeddings(tuned, train=pairs, texts=("a", "b"), batch_size=8)
    assert trained.embed("the sea").shape == (16,)
    assert trained.embed(["the sea", "a net"]).shape == (2, 16)


def _tables() -> list[Any]:
    found: list[Any] = [ROWS]
    pandas = pytest.importorskip("pandas")
    found.append(pandas.DataFrame(ROWS))
    found.append(pytest.importorskip("polars").DataFrame(ROWS))
    found.append(pytest.importorskip("pyarrow").Table.from_pylist(ROWS))
    found.append(pytest.importorskip("datasets").Dataset.from_list(ROWS))
    return found


def test_each_kind_of_table_gives_the_same_file(tmp_path):
    files = {table_file(table, tmp_path, "train") for table in _tables()}
    (file,) = files
    assert [json.loads(line) for line in Path(file).read_text().splitlines()] == ROWS


def test_class_ids_of_datasets_become_names_and_splits_are_found(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = {"text": ["a net", "the sea"], "label": [1, 0]}
    split = datasets.Dataset.from_dict(rows, features=features)
    splits = datasets.DatasetDict(train=split, validation=split)
    found = split_tables({"train": splits, "dev": None, "test": None})
    assert sorted(found) == ["dev", "train"]
    lines = Path(table_file(found["dev"], tmp_path, "dev")).read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["yes", "no"]
    several = {"labels": datasets.List(features["label"])}
    table = datasets.Dataset.from_dict({"labels": [[1, 0], []]}, datasets.Features(several))
    lines = Path(table_file(table, tmp_path, "lists")).read_text().splitlines()
    assert [json.loads(line)["labels"] for line in lines] == [["yes", "no"], []]
    with pytest.raises(UserError, match="train has the splits test; expected one called train"):
        split_tables({"train": datasets.DatasetDict(test=split)})


def test_values_of_numpy_are_written_as_numbers_and_missing_ones_as_null(tmp_path):
    row = {"text": "a", "score": np.float32(0.5), "n": np.int64(3), "tags": np.array(["x"])}
    file = table_file([{**row, "missing": float("nan")}], tmp_path, "train")
    assert json.loads(Path(file).read_text()) == {
        "text": "a", "score": 0.5, "n": 3, "tags": ["x"], "missing": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (5, "train is a int; expected a path, a list of dicts, or a table"),
        ([], "train has no rows"),
        (["a text"], "train, row 1 is a str; expected a path, a list of dicts"),
        ([{"text": object()}], "train, row 1: Object of type object is not JSON"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, table, message):
    with pytest.raises(UserError, match=message):
        table_file(table, tmp_path, "train")
