"""One update: accumulate -> update -> apply. There are no features in here, and there will be none.

A new objective is a new program, a new regulariser an optax transform, a new behaviour a hook.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.objectives.base import Batch, LossOutput, Objective

State = dict[str, Any]
"""{"step": int32 scalar, updates done; "params"; "opt_state"}"""
Metrics = dict[str, jax.Array]


def init_state(
    objective: Objective, optimizer: optax.GradientTransformation, key: jax.Array
) -> State:
    """The state before the first update. Pure: trace it for shapes, or jit it with shardings."""
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
    """The pure function (state, batch) -> (state, metrics); metrics are float32 scalars.

    `schedule` is the learning rate that `optimizer` applies, here only to be reported.

    `accumulate` parts the batch into that many microbatches; each row weighs the same as it would
    in one pass, because losses are divided by the normalisers of the whole batch.
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
            name: mean.total / mean.weight  # of nothing: not a number, null in the logs
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

    # Microbatch i takes rows i, i + parts, ...: each device cuts up its own rows, none are moved.
    microbatches = {
        name: jnp.swapaxes(values.reshape(-1, num_microbatches, *values.shape[1:]), 0, 1)
        for name, values in batch.items()
    }
    inputs = (microbatches, jax.random.split(key, num_microbatches))
    grad_shapes = jax.eval_shape(grad_fn, params, *jax.tree.map(lambda x: x[0], inputs))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), grad_shapes)
    return jax.lax.scan(add, zeros, inputs)[0]
