"""Covers bert_jax/parallel/sharding.py: gathered parameters and communication dtype."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    CommunicationDtype,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.train.step import TrainSetup

PHASE = Phase(steps=10, seq_length=128, batch_size=128, max_predictions_per_seq=20)


def small(layout: Parallelism, dtype: str, communication_dtype: CommunicationDtype) -> Experiment:
    # One layer compiles faster.
    model = dataclasses.replace(BertConfig.from_size("tiny", vocab_size=1024), num_hidden_layers=1)
    return Experiment(
        name="test",
        objective=Pretraining(model=model, mask_token_id=4, compute=ComputeConfig(dtype=dtype)),  # type: ignore[arg-type]
        data=PretrainingData(corpus="not there"),
        train=TrainConfig(phases=(PHASE,), schedule=WarmupLinear(warmup_steps=1)),
        mesh=make_mesh_config(layout, communication_dtype),
    )


def temporary_bytes(layout: Parallelism) -> int:
    """Returns the temporary bytes of a step of a small BERT on 8 devices, by XLA's analysis."""
    experiment = small(layout, "float32", "float32")
    grid = sharding.make_mesh(experiment.mesh)
    with jax.set_mesh(grid):
        setup = TrainSetup.from_experiment(experiment, grid)
        lowered = setup.lower_step(PHASE, setup.objective.batch_fields(), PHASE.sizes)
        analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_each_device_has_activations_of_its_part_of_the_batch():
    """If XLA gathered the batch as it gathers parameters, a device would need far more memory."""
    assert temporary_bytes("fsdp") < 1.4 * temporary_bytes("dp")


@functools.cache
def gradients(
    layout: Parallelism, communication_dtype: CommunicationDtype
) -> dict[str, np.ndarray]:
    """Returns all gradients on 8 devices, computed in bfloat16 with dropout."""
    experiment = small(layout, "bfloat16", communication_dtype)
    grid = sharding.make_mesh(experiment.mesh)
    objective = make_objective(experiment.objective)
    params = objective.init(jax.random.key(0))
    shardings = sharding.parameter_shardings(params, grid)
    abstract = sharding.with_shardings(params, shardings)
    gather = sharding.gather_params(abstract, communication_dtype)
    batch = pretraining_batch(
        batch_size=32, seq_length=64, max_predictions_per_seq=10, vocab_size=1024
    )
    fields = {name: batch[name] for name in objective.batch_fields()}

    def loss(params, batch):
        loss_denominators = objective.loss_denominators(batch)
        key = jax.random.key(1)
        return objective.compute_loss(gather(params), batch, loss_denominators, key).loss

    with jax.set_mesh(grid):
        found = jax.jit(jax.grad(loss), out_shardings=shardings)(
            jax.device_put(params, shardings),
            sharding.put_batch(fields, sharding.batch_sharding(grid)),
        )
    return paths.flatten(jax.device_get(found))


@pytest.mark.parametrize(
    "layout", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("dp", "fsdp")), "fsdp_tp"]
)
def test_bfloat16_communication_rounds_only_gradients_of_matrices(layout):
    exact, rounded = gradients("dp", "float32"), gradients(layout, "bfloat16")
    distance = {
        path: np.linalg.norm(rounded[path] - leaf) / np.linalg.norm(leaf)
        for path, leaf in exact.items()
        if not path.endswith("key/bias")  # the scores do not depend on it
    }
    # Tables are rounded too, so the forward pass differs by some 2^-9, and gradients by more.
    assert max(distance.values()) < 0.02, max(distance, key=lambda path: distance[path])
    for path, leaf in rounded.items():
        assert leaf.dtype == jnp.float32, path
        as_bfloat16 = leaf.astype(jnp.bfloat16).astype(np.float32)
        large = leaf.ndim > 1 and path.startswith(("encoder/", "masked_lm/"))
        assert np.array_equal(leaf, as_bfloat16) == large, path


def test_bfloat16_communication_needs_bfloat16_compute():
    with pytest.raises(
        ConfigError, match=r"mesh.communication_dtype is bfloat16, but objective.compute.dtype"
    ):
        small("dp", "float32", "bfloat16")
