"""The train step on a mesh: its state in the abstract, the fields it reads, its one compilation."""

from collections.abc import Callable

import jax
import optax

from bert_jax import batch as contract
from bert_jax.data.config import Packed
from bert_jax.data.loader import PretrainLoader
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.parallel import sharding
from bert_jax.programs.program import Program
from bert_jax.train.config import Phase
from bert_jax.train.loop import CompiledStep
from bert_jax.train.schedule import learning_rate
from bert_jax.train.step import State, make_train_step


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


def batch_fields(program: Program, loader: PretrainLoader) -> tuple[str, ...]:
    """The fields that the program needs, with those of packing where examples are packed.

    Raises:
      ConfigError: `data` does not make a field that an objective needs.
    """
    needed, made = program.fields(), loader.maker.fields()
    for name in needed:
        if name not in made:
            raise ConfigError(
                f"the program needs the field {name!r}, which data.examples "
                f"{type(loader.maker.config.examples).__name__} does not make"
            )
    packed = isinstance(loader.maker.config.examples, Packed)
    return needed + (contract.PACKED_FIELDS if packed else ())


def compile_step(
    experiment: Experiment,
    phase: Phase,
    program: Program,
    optimizer: optax.GradientTransformation,
    fields: tuple[str, ...],
    abstract: State,
    mesh: jax.sharding.Mesh,
) -> CompiledStep:
    """Compiles a phase's step, once, for exactly its shapes; any other batch is an error."""
    sizes = {"B": phase.batch_size, "L": phase.length, "P": phase.max_predictions}
    where = sharding.batch_sharding(mesh)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
        for name, (shape, dtype) in contract.spec(fields, sizes).items()
    }
    step = make_train_step(
        program,
        optimizer,
        learning_rate(experiment.train.schedule, experiment.train.steps),
        seed=experiment.seed,
        accumulate=phase.accumulate,
    )
    # Output shardings are pinned to the input's: otherwise the second call would compile again.
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, sharding.replicated(mesh)))
    return jitted.lower(abstract, batch).compile()
