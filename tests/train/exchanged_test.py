"""Sharded parameters are gathered where they are used; matrices go over the links as asked."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import paths
from bert_jax.batch import spec
from bert_jax.data.config import LoaderConfig
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.models.config import Compute, bert
from bert_jax.parallel import sharding
from bert_jax.parallel.config import Exchange, Preset, mesh
from bert_jax.programs.config import Pretraining
from bert_jax.programs.make import make_program
from bert_jax.testing.batches import pretraining_batch
from bert_jax.train.compiled import abstract_state, jitted_step
from bert_jax.train.config import Phase, Train, WarmupLinear
from bert_jax.train.exchanged import Exchanged
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.step import init_state

PHASE = Phase(steps=10, length=128, batch_size=128, max_predictions=20)


def small(layout: Preset, dtype: str, exchange: Exchange) -> Experiment:
    model = bert("tiny", vocab_size=1024)
    return Experiment(
        name="test",
        program=Pretraining(model=model, mask_token_id=4, compute=Compute(dtype=dtype)),  # type: ignore[arg-type]
        data=LoaderConfig(prepared="not there"),
        train=Train(phases=(PHASE,), schedule=WarmupLinear(warmup_steps=1)),
        mesh=mesh(layout, exchange),
    )


def temporary_bytes(layout: Preset) -> int:
    """What XLA's analysis says a step of BERT-tiny needs beside its state, on 8 devices."""
    experiment = small(layout, "float32", "float32")
    grid = sharding.make_mesh(experiment.mesh)
    program, optimizer = make_program(experiment.program), make_optimizer(experiment.train)
    initialise = functools.partial(init_state, program, optimizer)
    abstract = abstract_state(initialise, optimizer, grid)
    where = sharding.batch_sharding(grid)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
        for name, (shape, dtype) in spec(program.fields(), PHASE.sizes).items()
    }
    with jax.set_mesh(grid):
        step = jitted_step(experiment, PHASE, program, optimizer, abstract, grid)
        analysis = step.lower(abstract, batch).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def test_activations_are_those_of_a_devices_own_rows():
    """Left to itself XLA computed all rows on every device: more than twice the memory here."""
    assert temporary_bytes("fsdp") < 1.4 * temporary_bytes("dp")


@functools.cache
def gradients(layout: Preset, exchange: Exchange) -> dict[str, np.ndarray]:
    """Of every parameter, on 8 devices, computed in bfloat16 with dropout."""
    experiment = small(layout, "bfloat16", exchange)
    grid = sharding.make_mesh(experiment.mesh)
    program = make_program(experiment.program)
    params = program.init(jax.random.key(0))
    shardings = sharding.parameter_shardings(params, grid)
    abstract = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        params,
        shardings,
    )
    exchanged = Exchanged(program, abstract, exchange)
    batch = pretraining_batch(batch_size=128, length=128, max_predictions=20, vocab_size=1024)
    fields = {name: batch[name] for name in program.fields()}

    def loss(params, batch):
        normalisers = program.normalisers(batch)
        return exchanged.losses(params, batch, normalisers, jax.random.key(1)).loss

    with jax.set_mesh(grid):
        found = jax.jit(jax.grad(loss), out_shardings=shardings)(
            jax.device_put(params, shardings),
            sharding.put_batch(fields, sharding.batch_sharding(grid)),
        )
    return paths.flatten(jax.device_get(found))


@pytest.mark.parametrize("layout", ["dp", "fsdp", "fsdp_tp"])
def test_exchange_in_bfloat16_rounds_the_gradients_of_matrices_and_of_nothing_else(layout):
    exact, rounded = gradients("dp", "float32"), gradients(layout, "bfloat16")
    distance = {
        path: np.linalg.norm(rounded[path] - leaf) / np.linalg.norm(leaf)
        for path, leaf in exact.items()
        if not path.endswith("key/bias")  # of which the scores do not depend
    }
    # Tables are rounded too, so the forward pass differs by some 2^-9, and gradients by more.
    assert max(distance.values()) < 0.02, max(distance, key=lambda path: distance[path])
    for path, leaf in rounded.items():
        assert leaf.dtype == jnp.float32, path
        as_bfloat16 = leaf.astype(jnp.bfloat16).astype(np.float32)
        large = leaf.ndim > 1 and path.startswith(("encoder/", "masked_lm/"))
        assert np.array_equal(leaf, as_bfloat16) == large, path


def test_what_is_computed_in_float32_is_not_exchanged_in_bfloat16():
    with pytest.raises(ConfigError, match=r"mesh.exchange is bfloat16, but program.compute.dtype"):
        small("dp", "float32", "bfloat16")
