"""Covers bert_jax/runs/checkpoints/ outside the run folder: read, resumed, mirrored, rejected."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.errors import UserError
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints import step_folder
from bert_jax.runs.run_folder import checkpoint_dir
from tests.helpers.one_device import one_device_mesh

pytestmark = pytest.mark.usefixtures("one_device")

RECIPE = """
from bert_jax.config.experiment import Experiment
from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.config.train import Phase


def get_config(*, corpus: str) -> Experiment:
    phase = Phase(steps=4, seq_length=32, batch_size=8, max_predictions_per_seq=5)
    return tiny_experiment("elsewhere", corpus, (phase,), save_every=2)
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "recipe.py").write_text(RECIPE)
    prepared = prepare_corpus(folder / "train")
    return ["pretrain", str(folder / "recipe.py"), "--arg", f"corpus={prepared}"]


@pytest.fixture(scope="module")
def run(command, tmp_path_factory) -> tuple[Path, Path]:
    """Returns the folder of a finished run, and its checkpoint folder."""
    folder = tmp_path_factory.mktemp("runs")
    run, place = folder / "run", folder / "bucket" / "checkpoints"
    with one_device_mesh():
        assert main([*command, "--run", str(run), "--checkpoints", str(place)]) == 0
    return run, place


def test_external_checkpoints_are_found_from_the_run_folder(run):
    folder, place = run
    assert not (folder / "checkpoints").exists()
    assert step_folder.list_steps(step_folder.absolute_path(place)) == [2, 4]
    assert checkpoint_dir(folder) == str(place)
    assert load_encoder(folder).params.keys() >= {"encoder", "masked_lm"}


def test_resuming_does_not_need_the_checkpoints_flag(run, command, capfd):
    folder, place = run
    for flags in (["--checkpoints", str(place)], []):
        assert main([*command, "--run", str(folder), *flags]) == 0
        assert "begins after step 4 of 4" in capfd.readouterr().err
    assert not (folder / "checkpoints").exists()


def test_mirrored_folder_with_checkpoints_is_a_complete_run(run, tmp_path, command):
    folder, place = run
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.copytree(place, copy / "checkpoints")
    moved = place.rename(place.with_name("away"))
    try:
        here, there = load_encoder(copy).params, load_encoder(copy / "checkpoints" / "4").params
        for path, value in paths.flatten(here).items():
            np.testing.assert_array_equal(value, paths.flatten(there)[path])
        assert main([*command, "--run", str(copy)]) == 0
    finally:
        moved.rename(place)


def test_different_checkpoint_folder_is_rejected(run, command, tmp_path, capsys):
    folder, place = run
    other = ["--checkpoints", str(tmp_path / "other")]
    assert main([*command, "--run", str(folder), *other]) == 1
    error = capsys.readouterr().err
    assert str(place) in error and "leave out --checkpoints" in error
    assert not (tmp_path / "other").exists()


def test_missing_folder_of_a_run_that_has_begun_is_refused(run, command, capsys):
    folder, place = run
    config = (folder / "config.json").read_text()
    moved = place.rename(place.with_name("away"))
    try:
        for change in ([], ["--set", "seed=3"]):
            assert main([*command, "--run", str(folder), *change]) == 1
            message = f"the checkpoints of {folder} are in {place}, which does not exist; mount it"
            assert message in capsys.readouterr().err
        assert (folder / "config.json").read_text() == config and not place.exists()
    finally:
        moved.rename(place)


def test_bucket_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setattr(step_folder, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"gcsfs.*pip install 'bert_jax\[tpu\]'"):
        step_folder.absolute_path("gs://bucket/run/checkpoints")
