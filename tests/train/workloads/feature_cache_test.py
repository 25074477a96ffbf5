"""Compares cached encoder features with an encoder in every step; tests stale caches."""

import csv
import dataclasses
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.models import random_parameters
from bert_jax.batch import ENCODER_FIELDS, FIELDS
from bert_jax.config.config_lib import override, to_json
from bert_jax.config.data import FineTuningData, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Columns
from bert_jax.config.objectives import FineTuning
from bert_jax.config.tuning import FROZEN_ENCODER, TuningConfig
from bert_jax.data.finetuning.features import Features
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.model import run_forward
from bert_jax.objectives.fine_tuning import CachedFeaturesObjective, FineTuningObjective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.flops import step_flops
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from bert_jax.train.workloads import make_workload
from bert_jax.train.workloads.feature_cache import ENCODER_FEATURES, FeatureExtractor
from tests.helpers.one_device import one_device_mesh

EACH_STEP = dataclasses.replace(FROZEN_ENCODER, features="computed")
# Adam enlarges rounding errors to a whole update where a gradient is zero, as for some biases.
CHANGES = (
    "objective.model.hidden_dropout_prob=0.0",
    "objective.model.attention_probs_dropout_prob=0.0",
    "train.optimizer.epsilon=1e-3",
    "data.bucket_lengths=[24]",
)


def tuned(experiment: Experiment, tuning: TuningConfig = FROZEN_ENCODER) -> Experiment:
    """Returns the experiment without dropout in the encoder; the head keeps its dropout."""
    experiment = override(experiment, CHANGES)
    train = dataclasses.replace(experiment.train, tuning=tuning)
    return dataclasses.replace(experiment, train=train)


class Opened:
    """Holds what `run` creates before its first step, on one device, with random parameters."""

    def __init__(self, experiment: Experiment, seed: int = 0):
        assert isinstance(experiment.data, FineTuningData)
        assert isinstance(experiment.objective, FineTuning)
        self.experiment = experiment
        self.mesh = sharding.make_mesh(experiment.mesh, jax.devices()[:1])
        self.source = make_workload(experiment)
        self.config = experiment.objective
        cached = experiment.train.tuning.features == "cached"
        objective_class = CachedFeaturesObjective if cached else FineTuningObjective
        self.program = objective_class(experiment.objective)
        flat = random_parameters(self.config.model, head=self.config.head, seed=seed)
        self.params = jax.device_put(paths.unflatten(flat), sharding.replicated(self.mesh))

    def batches(self, folder: Path, count: int = 3) -> list[dict[str, np.ndarray]]:
        """Returns the first batches, with the features cached in `folder`."""
        folder.mkdir(exist_ok=True)
        self.source.on_train_start(self.program, self.params, self.mesh, folder)
        with self.source.loader(0, 0) as loader:
            return list(itertools.islice(loader, count))

    def train(self, folder: Path, steps: int) -> tuple[dict[str, np.ndarray], list, dict]:
        """Returns parameters and losses after `steps` updates, and the metrics on dev."""
        batches, fields = self.batches(folder, steps), self.source.batch_fields(self.program)
        setup = TrainSetup.from_experiment(self.experiment, self.mesh)
        phase, batch_sharding = self.experiment.train.phases[0], sharding.batch_sharding(self.mesh)
        step = setup.compile_step(phase, fields, self.source.shapes(0))
        params = jax.tree.map(jnp.copy, self.params)  # a step donates its state
        state = {"step": jnp.int32(0), "params": params, "opt_state": setup.optimizer.init(params)}
        state = jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, setup.abstract))
        losses = []
        for batch in batches:
            placed = sharding.put_batch({name: batch[name] for name in fields}, batch_sharding)
            state, metrics = step(state, placed)
            losses.append(float(metrics["loss"]))
        evaluate = self.source.evaluator(self.program, 0, self.mesh)
        assert evaluate is not None
        return paths.flatten(jax.device_get(state["params"])), losses, evaluate(state["params"])


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        pytest.param("token_classification", marks=pytest.mark.slow),
        pytest.param("question_answering", marks=pytest.mark.slow),
        pytest.param("multiple_choice", marks=pytest.mark.slow),
    ],
)
def test_cached_features_give_the_same_training(kind, task_experiment, tmp_path):
    steps = 12
    once = Opened(tuned(task_experiment(kind)))
    start = paths.flatten(once.params)
    found, losses, metrics = once.train(tmp_path, steps)
    each = Opened(tuned(task_experiment(kind), EACH_STEP))
    expected, expected_losses, expected_metrics = each.train(tmp_path, steps)
    for path, leaf in expected.items():
        if path.startswith("encoder/"):
            assert np.array_equal(found[path], start[path]), path
        else:
            np.testing.assert_allclose(found[path], leaf, atol=1e-6, err_msg=path)
            if path.endswith("kernel"):
                assert np.abs(leaf - start[path]).max() > 1e-3, path  # the parameters have changed
    np.testing.assert_allclose(losses, expected_losses, atol=1e-5)
    assert metrics == pytest.approx(expected_metrics, abs=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("classification", marks=pytest.mark.slow),  # choices are pooled alike
        "token_classification",
        "multiple_choice",
    ],
)
def test_cached_features_equal_the_encoder(kind, task_experiment, tmp_path):
    opened = Opened(tuned(task_experiment(kind)))
    field = opened.program.spec.features_field
    batches = opened.batches(tmp_path / "run")
    assert field in opened.source.batch_fields(opened.program)
    for batch in batches:
        inputs = [batch[name] for name in opened.program.spec.input_fields]
        inputs = [array.reshape(-1, array.shape[-1]) for array in inputs]
        fields: dict[str, np.ndarray] = dict(zip(ENCODER_FIELDS, inputs, strict=True))
        hidden = run_forward(opened.params, opened.config.model, fields)["hidden_states"][-1]
        states = batch[field]
        assert states.dtype == np.float32 and states.ndim == len(FIELDS[field].dims)
        if kind == "token_classification":
            real = fields["attention_mask"] * batch["example_weights"][:, None] > 0
            assert np.abs(states[~real]).max(initial=0) == 0
        else:
            hidden, states = hidden[:, 0], states.reshape(-1, states.shape[-1])
            real = np.repeat(batch["example_weights"] > 0, len(states) // len(batch[field]))
        np.testing.assert_allclose(states[real], hidden[real], atol=1e-5)


@pytest.fixture(scope="module")
def cached(task_experiment, tmp_path_factory) -> tuple[Path, list[np.ndarray]]:
    """Returns a folder with cached features of a classifier, and those of its first batches."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    return folder, first_states(tuned(task_experiment("classification")), folder)


def first_states(experiment: Experiment, folder: Path, seed: int = 0) -> list[np.ndarray]:
    return [batch["cls_encoder_features"] for batch in Opened(experiment, seed).batches(folder)]


def test_features_are_computed_once_and_then_read(cached, task_experiment, capsys):
    folder, expected = cached
    found = first_states(tuned(task_experiment("classification")), folder)
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "accident", ["other parameters", "other rows", "a flipped byte", "cut", "killed"]
)
def test_invalid_cached_features_are_computed_again(
    accident, cached, task_experiment, tmp_path, caplog, capsys
):
    experiment, folder, seed = tuned(task_experiment("classification")), tmp_path / "run", 0
    shutil.copytree(cached[0], folder)
    states = folder / ENCODER_FEATURES
    file = states / "train-40.npy"
    match accident:
        case "other parameters":
            seed = 1
        case "other rows":  # the same number, with the same lengths
            experiment = with_other_rows(experiment, tmp_path)
        case "a flipped byte":
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
        case "cut":
            file.write_bytes(file.read_bytes()[:-4])
        case "killed":  # while the features were being written
            states.rename(states.with_name("encoder_states.tmp"))
    capsys.readouterr()
    with caplog.at_level(logging.INFO):
        found = first_states(experiment, folder, seed)
    assert "caching encoder features of 240 sequences: 0.0 MB" in caplog.text
    assert "encoder 100%" in capsys.readouterr().err
    expected = cached[1]
    if accident.startswith("other"):
        expected = first_states(experiment, tmp_path / "clean", seed)
        assert not np.array_equal(found, cached[1])
    np.testing.assert_array_equal(found, expected)
    assert [entry.name for entry in folder.iterdir()] == [ENCODER_FEATURES]


def with_other_rows(experiment: Experiment, folder: Path) -> Experiment:
    assert isinstance(experiment.data, FineTuningData) and isinstance(experiment.data.task, Columns)
    task, file = experiment.data.task, folder / "train.csv"
    assert task.train
    file.write_text(Path(task.train).read_text().replace("old", "man"))
    task = dataclasses.replace(task, train=str(file))
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, task=task))


def test_fingerprint_covers_exactly_what_features_depend_on(task_experiment):
    opened = Opened(tuned(task_experiment("token_classification")))

    def fingerprint(params=opened.params, program=opened.program, **fields: Any) -> str:
        row = {
            "input_ids": [np.array([2, 7, 3], np.int32)],
            "token_type_ids": [np.zeros(3, np.int32)],
            "example_index": np.arange(1),
        }
        sizes = {"bucket_lengths": (16, 40), "batch_size": 8, "pad_id": 0}
        encoder = FeatureExtractor(program, params, opened.mesh, **sizes)
        return encoder.fingerprint({fields.pop("name", "train-40"): Features(**{**row, **fields})})

    def changed(path: str, value: float) -> dict[str, Any]:
        flat = paths.flatten(opened.params)
        return paths.unflatten({**flat, path: flat[path].at[0].set(value)})

    bias, head = "encoder/layers/0/attention/query/bias", "classifier/bias"
    half = override(opened.config, ["compute.dtype=bfloat16"])
    different = [
        fingerprint(),
        fingerprint(changed(bias, 1e-7)),
        fingerprint(program=CachedFeaturesObjective(half)),
        fingerprint(name="train-16"),
        fingerprint(input_ids=[np.array([2, 8, 3], np.int32)]),
        fingerprint(token_type_ids=[np.array([0, 1, 1], np.int32)]),
    ]
    assert len(set(different)) == len(different)
    assert fingerprint(changed(bias, -0.0)) == fingerprint(changed(bias, 0.0))
    assert fingerprint(changed(head, 5.0)) == fingerprint()


@pytest.fixture(scope="module")
def finished(task_experiment, tmp_path_factory) -> Path:
    """Returns a finished run of a classifier."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with one_device_mesh():
        assert run(tuned(task_experiment("classification")), folder) == 0
    return folder


def parameters(folder: Path) -> dict[str, np.ndarray]:
    return paths.flatten(restore_params(folder / "checkpoints")[0])


def losses(folder: Path) -> list[float]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [row["loss"] for row in rows if row["split"] == "train"]


def test_exported_model_has_the_predictions_of_the_run(finished, tmp_path):
    export(load_encoder(finished), tmp_path / "exported")
    lines = (finished / "predictions/test.jsonl").read_text().splitlines()
    expected = [json.loads(line)["probabilities"] for line in lines]
    config = json.loads((finished / "config.json").read_text())["config"]
    with open(config["data"]["task"]["test"], newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for model in (finished, tmp_path / "exported"):
        found = Predictor(load_encoder(model))([(row["text"], row["pair"]) for row in rows])
        for one, other in zip(found, expected, strict=True):
            assert one["probabilities"] == pytest.approx(other, abs=1e-5)


KILLED_AT_17 = """
import json, os, signal, sys
from pathlib import Path
from bert_jax.config.config_lib import from_json
from bert_jax.config.experiment import Experiment
from bert_jax.runs import hooks
from bert_jax.train.run import run

call = hooks.call_hooks

def accident(watching, event):
    call(watching, event)
    if event.step == 17:
        os.kill(os.getpid(), signal.SIGKILL)

hooks.call_hooks = accident
run(from_json(Experiment, json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_killed_run_resumes_bit_identical(task_experiment, finished, tmp_path):
    experiment = tuned(task_experiment("classification"))
    file, folder = tmp_path / "experiment.json", tmp_path / "run"
    file.write_text(json.dumps(to_json(experiment)))
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_17, file, folder],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    states = folder / ENCODER_FEATURES / "train-40.npy"
    written = states.stat().st_mtime_ns
    assert len(losses(folder)) == 17
    assert run(experiment, folder) == 0
    assert states.stat().st_mtime_ns == written
    assert losses(folder) == losses(finished)
    expected = parameters(finished)
    for path, leaf in parameters(folder).items():
        assert np.array_equal(leaf, expected[path]), path


@pytest.mark.usefixtures("one_device")
def test_finished_run_without_cache_computes_features_again(finished, task_experiment, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / ENCODER_FEATURES)
    before = (folder / "predictions/test.jsonl").read_bytes()
    assert run(tuned(task_experiment("classification")), folder) == 0
    assert (folder / ENCODER_FEATURES / "train-40.npy").exists()
    assert (folder / "predictions/test.jsonl").read_bytes() == before


class Disk(NamedTuple):
    total: int
    used: int
    free: int


def test_full_disk_is_detected_before_computing(task_experiment, tmp_path, monkeypatch):
    opened = Opened(tuned(task_experiment("token_classification")))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10, 9, 1000))
    with pytest.raises(
        UserError, match=r"has 0\.0 MB free, but the .* features need 0\.\d MB; choose"
    ):
        opened.batches(tmp_path / "run")
    assert not (tmp_path / "run" / ENCODER_FEATURES).exists()


def test_features_need_a_single_labeled_task(task_experiment):
    experiment = tuned(task_experiment("classification"))
    prepared = dataclasses.replace(experiment, data=PretrainingData(corpus="nowhere"))
    with pytest.raises(ConfigError, match="one labeled task, but data is Pretrain"):
        make_workload(prepared)


def test_cached_encoder_has_no_flops(task_experiment):
    experiment = task_experiment("classification")
    sizes = experiment.objective, experiment.train.phases[0]
    assert step_flops(*sizes, tuning=FROZEN_ENCODER) == 0 < step_flops(*sizes)


def test_pooling_after_a_trained_layer_is_refused(task_experiment):
    experiment = tuned(task_experiment("classification"))
    model = EuroBertConfig(num_hidden_layers=1)
    late = dataclasses.replace(
        experiment, objective=dataclasses.replace(experiment.objective, model=model)
    )
    with pytest.raises(ConfigError, match="classifier_pooling is 'late', which pools after"):
        make_workload(late)
    mean = '"mean"'
    changed = override(late, [f"objective.model.classifier_pooling={mean}"])
    make_workload(changed)
