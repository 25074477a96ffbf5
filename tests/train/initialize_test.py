"""Covers bert_jax/train/initialize.py and runs with distillation: start, resume, export, errors."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.models import WORDS, small_model, word_tokenizer
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.initialize import initialize_or_load, load_teacher
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from tests.helpers.one_device import one_device_mesh
from tests.helpers.same_parameters import assert_same_parameters
from tests.helpers.task_runs import HOSTILE_LABEL, classification

LABELS = ("maybe", "no", HOSTILE_LABEL)
SETTINGS = ("train.logging.log_every=1", "train.checkpoints.keep_last=2", "data.bucket_lengths=[]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the data of a task and a teacher of three layers for it."""
    folder = tmp_path_factory.mktemp("distillation")
    head = SequenceClassificationHead(labels=tuple(sorted(LABELS)))
    teacher = small_model(folder / "vocabulary", head=head, num_hidden_layers=3)
    export(teacher, folder / "teacher")
    classification(folder)
    return folder


def experiment(folder: Path, **arguments) -> Experiment:
    arguments = {"teacher": str(folder / "teacher"), "teacher_layers": (0, 2)} | arguments
    config = fine_tuning_experiment(
        classification(folder),
        arguments.pop("model", None),
        epochs=2,
        batch_size=16,
        learning_rate=1e-3,
        max_length=16,
        **arguments,
    )
    return override(config, SETTINGS)


def initial_params(config: Experiment) -> dict[str, np.ndarray]:
    with one_device_mesh():
        setup = TrainSetup.from_experiment(config, sharding.make_mesh(config.mesh))
        return paths.flatten(initialize_or_load(setup)["params"])


def test_layers_that_start_again_have_the_values_of_a_random_start(folder):
    config = experiment(folder, model=str(folder / "teacher"), teacher=None, teacher_layers=())
    config = override(config, ("train.tuning.reinit_layers=1",))
    params = initial_params(config)
    with one_device_mesh():
        setup = TrainSetup.from_experiment(config, sharding.make_mesh(config.mesh))
        random = paths.flatten(jax.jit(setup.objective.init)(jax.random.key(config.seed)))
    pretrained = paths.flatten(load_encoder(folder / "teacher").params)
    assert params.keys() == random.keys()
    for path, value in params.items():
        expected = random if path.startswith("encoder/layers/2/") else pretrained
        np.testing.assert_allclose(value, expected[path], rtol=1e-6, err_msg=path)


def test_nothing_is_initialized_if_the_model_has_all_parameters(folder, monkeypatch):
    config = experiment(folder, model=str(folder / "teacher"), teacher=None, teacher_layers=())
    with one_device_mesh():
        setup = TrainSetup.from_experiment(config, sharding.make_mesh(config.mesh))
        monkeypatch.setattr(type(setup.objective), "init", None)  # calling it is an error
        found = paths.flatten(initialize_or_load(setup)["params"])
    for path, value in paths.flatten(load_encoder(folder / "teacher").params).items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


@pytest.fixture(scope="module")
def finished(folder) -> Path:
    with one_device_mesh():
        assert run(experiment(folder), folder / "run") == 0
    return folder / "run"


def test_student_starts_from_layers_of_the_teacher(folder):
    params = initial_params(experiment(folder, teacher_layers=(2, 0)))
    teacher = paths.flatten(load_encoder(folder / "teacher").params)
    student = {path: value for path, value in params.items() if not path.startswith("teacher/")}
    assert {path.split("/")[2] for path in student if path.startswith("encoder/layers")} == {
        "0",
        "1",
    }
    for path, value in student.items():
        source = path.replace("encoder/layers/0/", "encoder/layers/2/")
        if path.startswith("encoder/layers/1/"):
            source = path.replace("encoder/layers/1/", "encoder/layers/0/")
        np.testing.assert_array_equal(value, teacher[source], err_msg=path)
    for path, value in teacher.items():
        np.testing.assert_array_equal(params[f"teacher/{path}"], value, err_msg=path)


@pytest.mark.slow
def test_student_starts_from_another_model(folder, tmp_path):
    student = small_model(tmp_path / "vocabulary", num_hidden_layers=1, hidden_size=8)
    export(student, tmp_path / "student")
    config = experiment(folder, model=str(tmp_path / "student"), teacher_layers=())
    params = initial_params(config)
    for path, value in paths.flatten(student.params["encoder"], "encoder").items():
        np.testing.assert_array_equal(params[path], value, err_msg=path)


def test_teacher_is_not_trained_and_student_is(folder, finished):
    params = restore_params(finished / "checkpoints")[0]
    teacher = paths.flatten(load_encoder(folder / "teacher").params)
    for path, value in paths.flatten(params["teacher"]).items():
        np.testing.assert_array_equal(value, teacher[path], err_msg=path)
    assert (params["classifier"]["kernel"] != teacher["classifier/kernel"]).any()
    rows = [row for row in read_metrics(finished / "metrics.jsonl") if row["split"] == "train"]
    for row in rows:
        total = 0.5 * row["hard_loss"] + 0.5 * row["soft_loss"]
        assert row["loss"] == pytest.approx(total, rel=1e-4)
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_loaded_and_exported_models_are_the_student_only(finished, tmp_path):
    model = load_encoder(finished)
    assert set(model.params) == {"encoder", "pooler", "classifier"}
    assert model.config.num_hidden_layers == 2
    assert export(model, tmp_path / "exported") < 1e-5
    card = (tmp_path / "exported/README.md").read_text()
    assert "distilled from the teacher `teacher`, with temperature 2 and weight 0.5" in card
    assert "started from its layers 0, 2" in card


@pytest.mark.slow  # pretraining_recipes_test.py restores a student and its teacher bit by bit
def test_resumed_run_is_bit_exact_after_the_teacher_has_changed(folder, finished, tmp_path):
    config, interrupted = experiment(folder), tmp_path / "run"
    shutil.copytree(finished, interrupted)
    shutil.rmtree(interrupted / "checkpoints/20")
    weights = folder / "teacher/model.safetensors"
    saved = weights.read_bytes()
    weights.write_bytes(b"other weights")
    try:
        with one_device_mesh():
            assert run(config, interrupted) == 0
    finally:
        weights.write_bytes(saved)
    assert_same_parameters(finished, interrupted, 20)


def test_another_vocabulary_of_the_same_size_is_rejected(folder, tmp_path):
    other = small_model(tmp_path / "vocabulary", num_hidden_layers=1)
    tokenizer = word_tokenizer(tmp_path / "other", WORDS[::-1])
    export(dataclasses.replace(other, tokenizer=tokenizer), tmp_path / "student")
    config = experiment(folder, model=str(tmp_path / "student"), teacher_layers=())
    with pytest.raises(UserError, match=r"teacher and .*student have different vocabularies"):
        run(config, tmp_path / "run")


def load_teacher_of(config: Experiment) -> LoadedModel:
    teacher = config.objective.teacher
    assert teacher is not None
    return load_teacher(make_objective(config.objective), teacher)


def test_teacher_of_another_task_is_rejected(folder, tmp_path):
    head = SequenceClassificationHead(labels=("a", "b", "c"))
    export(small_model(tmp_path / "v", head=head, num_hidden_layers=3), tmp_path / "teacher")
    config = experiment(folder, teacher=str(tmp_path / "teacher"))
    with pytest.raises(ConfigError, match="expected a teacher that was fine-tuned on the same"):
        load_teacher_of(config)


def test_teacher_that_is_another_model_than_configured_is_rejected(folder):
    config = override(experiment(folder), ["objective.distillation.teacher.model.hidden_size=32"])
    with pytest.raises(ConfigError, match="set it to the config of the teacher"):
        load_teacher_of(config)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"teacher_layers": (0, 3)}, "contains 3, but the teacher .* has 3 layers; expected .* 2"),
        ({"teacher_layers": ()}, "expected a model to start from, or a teacher with the layers"),
        ({"model": "x"}, "expected a model to start from, or a teacher with the layers"),
    ],
)
def test_layers_that_cannot_be_used_are_rejected(folder, arguments, message):
    with pytest.raises(ConfigError, match=message):
        experiment(folder, **arguments)


def test_teacher_must_be_frozen(folder):
    with pytest.raises(ConfigError, match=r"add 'teacher/\*\*' to it"):
        override(experiment(folder), ["train.tuning.frozen=[]"])
