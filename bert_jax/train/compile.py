"""Compiles the train step for a mesh, once for each batch shape."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax

from bert_jax import batch as contract
from bert_jax.experiment import Experiment
from bert_jax.objectives.base import Batch, Objective
from bert_jax.parallel import sharding
from bert_jax.parallel.communication import GatheredParams
from bert_jax.train.config import Phase
from bert_jax.train.loop import CompiledStep
from bert_jax.train.optimizer import learning_rate_schedule
from bert_jax.train.step import Metrics, State, make_train_step
from bert_jax.tuning.freezing import FrozenParams


def abstract_state(
    init_fn: Callable[[jax.Array], State],
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> State:
    """Returns the train state as shapes, dtypes and shardings, without allocating memory."""
    shapes = jax.eval_shape(init_fn, jax.random.key(0))
    shardings = {
        "step": sharding.replicated(mesh),
        "params": sharding.parameter_shardings(shapes["params"], mesh),
        "opt_state": sharding.optimizer_shardings(optimizer, shapes["params"], mesh),
    }
    return jax.tree.map(
        lambda leaf, leaf_sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf_sharding
        ),
        shapes,
        shardings,
    )


def jitted_step(
    experiment: Experiment,
    phase: Phase,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: State,
    mesh: jax.sharding.Mesh,
) -> Any:
    """Returns the train step of a phase under `jax.jit`, with a donated state.

    Lower it inside `jax.set_mesh(mesh)`.
    """
    frozen = experiment.train.tuning.frozen
    if mesh.shape["fsdp"] > 1 or experiment.mesh.communication_dtype != "float32":
        objective = GatheredParams(
            objective, abstract["params"], experiment.mesh.communication_dtype
        )
    step = make_train_step(
        FrozenParams(objective, frozen) if frozen else objective,
        optimizer,
        learning_rate_schedule(experiment.train.schedule, experiment.train.steps),
        seed=experiment.seed,
        gradient_accumulation_steps=phase.gradient_accumulation_steps,
    )
    # Without these output shardings the new state could be sharded differently from the old one,
    # and the second call would compile again.
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, sharding.replicated(mesh)))


def compile_step(
    experiment: Experiment,
    phase: Phase,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    fields: tuple[str, ...],
    shapes: Sequence[Mapping[str, int]],
    abstract: State,
    mesh: jax.sharding.Mesh,
) -> CompiledStep:
    """Compiles the train step of a phase ahead of time, once for each batch shape.

    Args:
      fields: names of the batch fields.
      shapes: sizes of the shape letters of `bert_jax.batch`, one dict per shape; they differ in L.

    Returns:
      A function that selects the program by the sequence length of the batch. It raises ValueError
      for a length that is not in `shapes`.
    """
    batch_sharding = sharding.batch_sharding(mesh)
    jitted = jitted_step(experiment, phase, objective, optimizer, abstract, mesh)
    compiled_by_length = {}
    for sizes in shapes:
        batch = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding)
            for name, (shape, dtype) in contract.batch_spec(fields, sizes).items()
        }
        compiled_by_length[sizes["L"]] = jitted.lower(abstract, batch).compile()

    def compiled_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        seq_length = contract.sequence_length(batch)
        if seq_length not in compiled_by_length:
            raise ValueError(
                f"the batch has sequence length {seq_length}; the train step was compiled for "
                f"{sorted(compiled_by_length)}"
            )
        return compiled_by_length[seq_length](state, batch)

    return compiled_step
