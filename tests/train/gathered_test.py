"""Sharded parameters are gathered where they are used, and each device computes its own rows."""

import functools

import jax

from bert_jax.batch import spec
from bert_jax.data.config import LoaderConfig
from bert_jax.experiment import Experiment
from bert_jax.models.config import bert
from bert_jax.parallel import sharding
from bert_jax.parallel.config import Preset, mesh
from bert_jax.programs.config import Pretraining
from bert_jax.programs.make import make_program
from bert_jax.train.compiled import abstract_state, jitted_step
from bert_jax.train.config import Phase, Train, WarmupLinear
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.step import init_state


def temporary_bytes(layout: Preset) -> int:
    """What XLA's analysis says a step of BERT-tiny needs beside its state, on 8 devices."""
    phase = Phase(steps=10, length=128, batch_size=128, max_predictions=20)
    experiment = Experiment(
        name="test",
        program=Pretraining(model=bert("tiny", vocab_size=1024), mask_token_id=4),
        data=LoaderConfig(prepared="not there"),
        train=Train(phases=(phase,), schedule=WarmupLinear(warmup_steps=1)),
        mesh=mesh(layout),
    )
    grid = sharding.make_mesh(experiment.mesh)
    program, optimizer = make_program(experiment.program), make_optimizer(experiment.train)
    initialise = functools.partial(init_state, program, optimizer)
    abstract = abstract_state(initialise, optimizer, grid)
    where = sharding.batch_sharding(grid)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
        for name, (shape, dtype) in spec(program.fields(), phase.sizes).items()
    }
    with jax.set_mesh(grid):
        step = jitted_step(experiment, phase, program, optimizer, abstract, grid)
        analysis = step.lower(abstract, batch).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def test_activations_are_those_of_a_devices_own_rows():
    """Left to itself XLA computed all rows on every device: more than twice the memory here."""
    assert temporary_bytes("fsdp") < 1.4 * temporary_bytes("dp")
