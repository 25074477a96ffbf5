"""Runs the objective of every pretraining recipe: on meshes, and resumed from a checkpoint.

Covers configs/pretrain/ and bert_jax/objectives/ with small networks on a generated corpus.
"""

import functools
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config.train import Parallelism, make_mesh_config
from bert_jax.parallel import sharding
from bert_jax.runs.attempt_log import read_attempts
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.runs.checkpoints.step_folder import by_path
from bert_jax.train.step import State, TrainSetup
from bert_jax.train.workloads import make_workload
from tests.helpers.pretraining_recipes import RECIPES, prepare_recipes, small_experiment
from tests.helpers.processes import drive
from tests.helpers.same_parameters import assert_same_parameters

STEPS, SAVED_STEP = 4, 2
FAST = ("electra", "distilbert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return prepare_recipes(tmp_path_factory.mktemp("recipes"))


class Trainer:
    """Trains a recipe in this process: compiles its step once for a mesh, and runs updates."""

    def __init__(self, name: str, folder: Path, preset: Parallelism, num_devices: int):
        self.experiment = small_experiment(name, folder, steps=STEPS)
        mesh_config = make_mesh_config(preset)
        self.mesh = sharding.make_mesh(mesh_config, jax.devices()[:num_devices])
        self.setup = TrainSetup.from_experiment(self.experiment, self.mesh)
        self.source = make_workload(self.experiment)
        (phase,) = self.experiment.train.phases
        fields = self.source.batch_fields(self.setup.objective)
        with jax.set_mesh(self.mesh):
            self.step = self.setup.compile_step(phase, fields, self.source.shapes(0))

    def initial_state(self) -> State:
        """Returns random parameters, which need no compilation; optimizer states begin at 0."""
        rng = np.random.default_rng(0)

        def initial(path: str, leaf: Any) -> np.ndarray:
            if not path.startswith("params/"):
                return np.zeros(leaf.shape, leaf.dtype)
            return rng.normal(float(path.endswith("scale")), 0.05, leaf.shape).astype(np.float32)

        abstract = self.setup.abstract
        leaves = [initial(path, leaf) for path, leaf in by_path(abstract).items()]
        shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        return jax.device_put(jax.tree.unflatten(jax.tree.structure(abstract), leaves), shardings)

    def run(self, state: State, position: int, count: int) -> tuple[State, int, list[float]]:
        """Runs updates on the batches from a position; returns state, next position and losses."""
        losses = []
        with self.source.loader(0, position) as loader:
            for _, batch in zip(range(count), loader, strict=False):
                placed = sharding.put_batch(
                    {name: batch[name] for name in self.source.batch_fields(self.setup.objective)},
                    sharding.batch_sharding(self.mesh),
                )
                state, metrics = self.step(state, placed)
                losses.append(float(metrics["loss"]))
                position = loader.position
        return state, position, losses


@functools.cache
def on_one_device(name: str, folder: Path) -> Trainer:
    return Trainer(name, folder, "dp", 1)


@functools.cache
def trained_on_one_device(name: str, folder: Path) -> tuple[dict[str, np.ndarray], list[float]]:
    """Returns the state after all updates by path, and the losses."""
    trainer = on_one_device(name, folder)
    state, _, losses = trainer.run(trainer.initial_state(), 0, STEPS)
    return by_path(jax.device_get(state)), losses


# The fast tests have a generator and a teacher.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in RECIPES],
)
def test_run_continued_from_a_checkpoint_is_bit_identical(name, folder, tmp_path):
    expected, expected_losses = trained_on_one_device(name, folder)
    trainer = on_one_device(name, folder)
    with Checkpointer(tmp_path / "checkpoints") as checkpointer:
        state, position, losses = trainer.run(trainer.initial_state(), 0, SAVED_STEP)
        checkpointer.save(SAVED_STEP, state, {"position": position})
        restored, info, step = checkpointer.restore(trainer.setup.abstract)
    assert step == SAVED_STEP
    found, _, later_losses = trainer.run(restored, info["position"], STEPS - SAVED_STEP)
    assert losses + later_losses == expected_losses
    assert len(set(expected_losses)) == STEPS and np.isfinite(expected_losses).all()
    found = by_path(jax.device_get(found))
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


# The fast test has a decoder; train/step_test.py trains BERT on the same mesh.
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param(name, preset, marks=[] if is_fast else [pytest.mark.slow])
        for name in RECIPES
        for preset in ("fsdp_tp", "dp", "fsdp", "tp")
        for is_fast in [preset == "fsdp_tp" and name == "t5"]
    ],
)
def test_eight_devices_equal_one(name, preset, folder):
    expected, expected_losses = trained_on_one_device(name, folder)
    trainer = Trainer(name, folder, preset, 8)
    state, _, losses = trainer.run(trainer.initial_state(), 0, STEPS)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for path, leaf in by_path(jax.device_get({"params": state["params"]})).items():
        # Adam divides by the gradient's size, so rounding errors are as large as the rate.
        np.testing.assert_allclose(leaf, expected[path], atol=1e-5, err_msg=path)
    if trainer.experiment.objective.teacher is not None:
        moments = by_path({"opt_state": trainer.setup.abstract["opt_state"]})
        assert moments and not [path for path in moments if "/teacher/" in path]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_run_that_was_killed_is_bit_identical(name, folder, tmp_path):
    drive(folder, tmp_path / "straight", "--recipe", name, "--steps", "4", expect=0)
    # When the checkpoint of step 4 is being written, that of step 2 is complete.
    flags = ("--recipe", name, "--steps", "4", "--kill-in-save", "4")
    drive(folder, tmp_path / "killed", *flags, expect=-signal.SIGKILL)
    drive(folder, tmp_path / "killed", "--recipe", name, "--steps", "4", expect=0)
    assert_same_parameters(tmp_path / "straight", tmp_path / "killed", 4)
    assert [each.start_step for each in read_attempts(tmp_path / "killed")] == [0, 2]
