"""Defines the train step: accumulate gradients -> update -> apply; compiles it for a mesh.

New features do not belong here. A new loss is an `Objective`, a new regularizer is an optax
transform, and new behavior of the training loop is a hook.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax import batch as batch_lib
from bert_jax.objectives.base import Batch, LossOutput, Objective
from bert_jax.parallel import sharding
from bert_jax.parallel.communication import GatherParamsObjective
from bert_jax.parallel.config import CommunicationDtype
from bert_jax.train.config import Phase, TrainConfig
from bert_jax.train.optimizer import learning_rate_schedule
from bert_jax.tuning.freezing import FreezeParamsObjective

State = dict[str, Any]
"""{"step": number of updates done (int32 scalar), "params": ..., "opt_state": ...}"""
Metrics = dict[str, jax.Array]
CompiledStep = Callable[[State, Batch], tuple[State, Metrics]]


def init_state(
    objective: Objective, optimizer: optax.GradientTransformation, key: jax.Array
) -> State:
    """Returns the train state before the first update.

    A pure function: call it under `jax.eval_shape` for the shapes alone, or under `jax.jit` with
    `out_shardings` to initialize a sharded state.
    """
    params = objective.init(key)
    return {"step": jnp.int32(0), "params": params, "opt_state": optimizer.init(params)}


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    seed: int,
    gradient_accumulation_steps: int = 1,
) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the pure function (state, batch) -> (state, metrics).

    Args:
      schedule: the learning rate that `optimizer` applies; used only to report it as a metric.
      gradient_accumulation_steps: number of microbatches that the batch is split into. The result
        is the same as with one pass over the whole batch, because the losses are divided by the
        denominators of the whole batch.

    Returns:
      A function whose metrics are float32 scalars.
    """

    def train_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state["step"])
        grads, losses = _accumulate_gradients(
            objective, state["params"], batch, key, gradient_accumulation_steps
        )
        updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        metrics = {
            "loss": losses.loss,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(schedule(state["step"]), jnp.float32),
        }
        metrics |= {
            name: mean.total / mean.weight  # NaN if the weight is 0, which logs show as null
            for name, mean in losses.metrics.items()
        }
        return {"step": state["step"] + 1, "params": params, "opt_state": opt_state}, metrics

    return train_step


def _accumulate_gradients(
    objective: Objective, params: Any, batch: Batch, key: jax.Array, num_microbatches: int
) -> tuple[Any, LossOutput]:
    loss_denominators = objective.loss_denominators(batch)

    def loss_fn(params: Any, microbatch: Batch, key: jax.Array) -> tuple[jax.Array, LossOutput]:
        losses = objective.compute_loss(params, microbatch, loss_denominators, key)
        return losses.loss, losses

    grad_fn = jax.grad(loss_fn, has_aux=True)
    if num_microbatches == 1:
        return grad_fn(params, batch, key)

    def add(total: Any, inputs: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, grad_fn(params, *inputs)), None

    # Microbatch i takes the examples i, i + n, i + 2n, ...: every device then splits the examples
    # that it already holds, and none move between devices.
    microbatches = {
        name: jnp.swapaxes(values.reshape(-1, num_microbatches, *values.shape[1:]), 0, 1)
        for name, values in batch.items()
    }
    inputs = (microbatches, jax.random.split(key, num_microbatches))
    grad_shapes = jax.eval_shape(grad_fn, params, *jax.tree.map(lambda x: x[0], inputs))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), grad_shapes)
    return jax.lax.scan(add, zeros, inputs)[0]


def abstract_state(
    init_fn: Callable[[jax.Array], State],
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> State:
    """Returns the train state as shapes, dtypes and shardings, without allocating memory.

    Args:
      init_fn: returns the initial state for a PRNG key: `init_state` with an objective and an
        optimizer.
    """
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
    objective: Objective,
    optimizer: optax.GradientTransformation,
    train: TrainConfig,
    phase: Phase,
    abstract: State,
    mesh: jax.sharding.Mesh,
    *,
    seed: int,
    communication_dtype: CommunicationDtype,
) -> Any:
    """Returns the train step of a phase under `jax.jit`, with a donated state.

    Lower it inside `jax.set_mesh(mesh)`.
    """
    frozen = train.tuning.frozen
    # Parameters that are split over fsdp are gathered before use. If the communication dtype is not
    # float32, they are also rounded, so that the gradients are summed over devices in that dtype.
    if mesh.shape["fsdp"] > 1 or communication_dtype != "float32":
        objective = GatherParamsObjective(objective, abstract["params"], communication_dtype)
    step = make_train_step(
        FreezeParamsObjective(objective, frozen) if frozen else objective,
        optimizer,
        learning_rate_schedule(train.schedule, train.steps),
        seed=seed,
        gradient_accumulation_steps=phase.gradient_accumulation_steps,
    )
    # Without these output shardings XLA may shard the new state differently from the old one. The
    # compiled program accepts only the shardings it was compiled for: the next step would fail.
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, sharding.replicated(mesh)))


def compile_step(
    jitted: Any,
    fields: tuple[str, ...],
    shapes: Sequence[Mapping[str, int]],
    abstract: State,
    mesh: jax.sharding.Mesh,
) -> CompiledStep:
    """Compiles a train step ahead of time, once for each batch shape.

    Call it inside `jax.set_mesh(mesh)`. The returned function donates the state that it is called
    with: the buffers of that state cannot be used afterwards.

    Args:
      jitted: the result of `jitted_step`.
      fields: names of the batch fields.
      shapes: one {dimension: size} per batch shape, such as {"B": 32, "L": 128}, each with another
        L; sizes are global. `bert_jax.batch` defines the dimensions.
      abstract: the train state as shapes, dtypes and shardings, from `abstract_state`.

    Returns:
      A function (state, batch) -> (state, metrics) that selects the compiled executable by the
      sequence length of the batch. It raises ValueError for a length that is not in `shapes`.
    """
    batch_sharding = sharding.batch_sharding(mesh)
    compiled_by_length = {}
    for sizes in shapes:
        batch = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding)
            for name, (shape, dtype) in batch_lib.batch_spec(fields, sizes).items()
        }
        compiled_by_length[sizes["L"]] = jitted.lower(abstract, batch).compile()

    def compiled_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        seq_length = batch_lib.sequence_length(batch)
        if seq_length not in compiled_by_length:
            raise ValueError(
                f"the batch has sequence length {seq_length}; the train step was compiled for "
                f"{sorted(compiled_by_length)}"
            )
        return compiled_by_length[seq_length](state, batch)

    return compiled_step
