"""Tests that files of the last version before the renames still load (bert_jax/legacy_names.py).

The files are in tests/fixtures; tests/fixtures/README.md says how they were made.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from bert_jax import legacy_names
from bert_jax.config.config_lib import from_json, override, to_json
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns
from bert_jax.config.train import CheckpointConfig
from bert_jax.data.corpus.manifest import read_manifest
from bert_jax.errors import ConfigError
from bert_jax.params import paths
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_model
from bert_jax.report.run_report import write_report
from bert_jax.runs import run_folder
from bert_jax.runs.metrics import EVALUATION, read_metrics
from bert_jax.train.run import run

SAVED = Path(__file__).parent / "fixtures" / "saved_by_c60d2da.tar.gz"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(SAVED) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_old_corpus_loads(saved):
    manifest = read_manifest(saved / "prepared")
    assert manifest.counts.documents == 12
    assert manifest.vocab_size == 78
    assert manifest.shards[0].records_file.endswith(".arrayrecord")


@pytest.mark.usefixtures("one_device")
def test_old_pretraining_run_resumes(saved, monkeypatch):
    monkeypatch.chdir(saved)  # the run's config has a relative path of the corpus
    experiment = from_json(Experiment, run_folder.read_config(Path("pretraining")))
    assert run(experiment, Path("pretraining")) == 0
    resumed = load_model("pretraining").params
    with np.load("pretraining_final.npz") as final:
        assert set(final.files) == set(paths.flatten(resumed))
        for path, leaf in paths.flatten(resumed).items():
            np.testing.assert_allclose(leaf, final[path], atol=1e-6, err_msg=path)


def test_old_export_equals_old_run(saved):
    exported = paths.flatten(load_model(saved / "exported").params)
    with np.load(saved / "pretraining_final.npz") as final:
        for path in final.files:
            np.testing.assert_array_equal(exported[path], final[path], err_msg=path)


def test_old_fine_tuning_run_predicts_and_reports(saved):
    predictor = Predictor(load_model(saved / "fine_tuning"))
    (prediction,) = predictor(["baba bece bace"])
    assert prediction["label"] in ("yes", "no")
    rows = read_metrics(saved / "fine_tuning" / "metrics.jsonl")
    assert any(row["split"] == EVALUATION for row in rows)
    assert any("padding_fraction" in row for row in rows)
    write_report(saved / "fine_tuning")
    assert "Confusion" in (saved / "fine_tuning" / "report.html").read_text(encoding="utf-8")


def test_every_old_field_and_class_is_translated(saved):
    """Tests that the old run's config, translated and written again, has the old values."""
    old = json.loads((saved / "fine_tuning" / "config.json").read_text())["config"]
    new = to_json(from_json(Experiment, legacy_names.upgrade_config(old)))
    assert (
        new["objective"]["model"]["hidden_dropout_prob"]
        == old["program"]["model"]["hidden_dropout"]
    )
    assert new["data"]["type"] == "FineTuningData"
    assert new["train"]["phases"][0]["seq_length"] == old["train"]["phases"][0]["length"]


def test_old_command_line_names_are_errors_with_the_new_names(saved):
    experiment = from_json(Experiment, run_folder.read_config(saved / "fine_tuning"))
    with pytest.raises(ConfigError, match="'clip_norm' is called 'max_grad_norm' now"):
        override(experiment, ["train.clip_norm=1.0"])
    with pytest.raises(ConfigError, match="it is called 'FullRemat' now"):
        override(experiment, ['objective.compute.remat={"type": "RematLayer"}'])
    assert isinstance(experiment.data.task, Columns)  # type: ignore[union-attr]


def test_best_mode_of_old_configs_follows_the_metric_name():
    for metric, mode in (("mlm_loss", "min"), ("f1", "max"), (None, None)):
        old = {"type": "Checkpoints", "every": 5, "keep_best": metric}
        assert from_json(CheckpointConfig, legacy_names.upgrade_config(old)).best_mode == mode
