"""The train step on a mesh: its state in the abstract, and a compilation for each batch shape."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax

from bert_jax import batch as contract
from bert_jax.experiment import Experiment
from bert_jax.parallel import sharding
from bert_jax.programs.program import Batch, Program
from bert_jax.train.config import Phase
from bert_jax.train.exchanged import Exchanged
from bert_jax.train.loop import CompiledStep
from bert_jax.train.schedule import learning_rate
from bert_jax.train.step import Metrics, State, make_train_step
from bert_jax.tuning.frozen import Frozen


def abstract_state(
    initialise: Callable[[jax.Array], State],
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> State:
    """The state as shapes, dtypes and shardings: nothing is allocated."""
    shapes = jax.eval_shape(initialise, jax.random.key(0))
    shardings = {
        "step": sharding.replicated(mesh),
        "params": sharding.parameter_shardings(shapes["params"], mesh),
        "opt_state": sharding.optimizer_shardings(optimizer, shapes["params"], mesh),
    }
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        shapes,
        shardings,
    )


def jitted_step(
    experiment: Experiment,
    phase: Phase,
    program: Program,
    optimizer: optax.GradientTransformation,
    abstract: State,
    mesh: jax.sharding.Mesh,
) -> Any:
    """A phase's step under jit, with donated state; lower it where `mesh` is set."""
    frozen = experiment.train.tuning.frozen
    if mesh.shape["fsdp"] > 1 or experiment.mesh.exchange != "float32":
        program = Exchanged(program, abstract["params"], experiment.mesh.exchange)
    step = make_train_step(
        Frozen(program, frozen) if frozen else program,
        optimizer,
        learning_rate(experiment.train.schedule, experiment.train.steps),
        seed=experiment.seed,
        accumulate=phase.accumulate,
    )
    # Output shardings are pinned to the input's: otherwise the second call would compile again.
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, sharding.replicated(mesh)))


def compile_step(
    experiment: Experiment,
    phase: Phase,
    program: Program,
    optimizer: optax.GradientTransformation,
    fields: tuple[str, ...],
    shapes: Sequence[Mapping[str, int]],
    abstract: State,
    mesh: jax.sharding.Mesh,
) -> CompiledStep:
    """Compiles a phase's step, once for each of `shapes`; any other batch is an error.

    Args:
      shapes: sizes of the letters of `bert_jax.batch`; they differ in L.
    """
    where = sharding.batch_sharding(mesh)
    jitted = jitted_step(experiment, phase, program, optimizer, abstract, mesh)
    compiled = {}
    for sizes in shapes:
        batch = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
            for name, (shape, dtype) in contract.spec(fields, sizes).items()
        }
        compiled[sizes["L"]] = jitted.lower(abstract, batch).compile()

    def compiled_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        length = contract.length(batch)
        if length not in compiled:
            raise ValueError(f"a batch of length {length}; compiled are {sorted(compiled)}")
        return compiled[length](state, batch)

    return compiled_step
