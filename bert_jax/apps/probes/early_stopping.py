"""Trains an array of independent probes with Adam, each until its loss on dev stops falling."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax


class StoppingConfig(Protocol):
    """Says how fast probes are trained, and when they stop.

    After each epoch the loss on dev is computed; a probe keeps its best parameters, and stops when
    there were no better ones for `patience` epochs.
    """

    @property
    def learning_rate(self) -> float:
        """Returns the learning rate of Adam."""
        ...

    @property
    def max_epochs(self) -> int:
        """Returns the maximum number of epochs."""
        ...

    @property
    def patience(self) -> int:
        """Returns after how many epochs without improvement a probe stops."""
        ...


def train_with_early_stopping(
    initial: Any,
    batch_loss: Callable[[Any, jax.Array], jax.Array],
    dev_losses: Callable[[Any], jax.Array],
    batch_keys: jax.Array,
    updates_per_epoch: jax.Array | int,
    config: StoppingConfig,
) -> Any:
    """Returns the best parameters of each probe; to be called under `jax.jit`.

    Args:
      initial: parameters with the axes of the array of probes in front.
      batch_loss: from parameters and one key for each seed, the sum of the losses of all probes; as
        they are independent, each probe receives the gradient of its own.
      dev_losses: from parameters, the loss of each probe.
      batch_keys: a key for each seed.
    """
    axes = jax.eval_shape(dev_losses, initial).shape
    optimizer = optax.adam(config.learning_rate)

    def update(index: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, state = carry
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(batch_keys, index)
        grads = jax.grad(batch_loss)(params, step_keys)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
            changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    def epoch(carry: dict[str, Any]) -> dict[str, Any]:
        start = carry["epoch"] * updates_per_epoch
        params, state = jax.lax.fori_loop(
            start, start + updates_per_epoch, update, (carry["params"], carry["state"])
        )
        losses, waited = dev_losses(params), carry["waited"]
        # A probe that has stopped is trained on with the others, but its best one stays.
        is_better = (losses < carry["best_losses"]) & (waited < config.patience)

        def select(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(is_better.reshape(axes + (1,) * (new.ndim - len(axes))), new, old)

        return {
            "epoch": carry["epoch"] + 1,
            "params": params,
            "state": state,
            "best": jax.tree.map(select, params, carry["best"]),
            "best_losses": select(losses, carry["best_losses"]),
            "waited": jnp.where(is_better, 0, jnp.minimum(waited + 1, config.patience)),
        }

    def continues(carry: dict[str, Any]) -> jax.Array:
        return (carry["epoch"] < config.max_epochs) & (carry["waited"] < config.patience).any()

    start = {
        "epoch": jnp.int32(0),
        "params": initial,
        "state": optimizer.init(initial),
        "best": initial,
        "best_losses": jnp.full(axes, jnp.inf),
        "waited": jnp.zeros(axes, jnp.int32),
    }
    return jax.lax.while_loop(continues, epoch, start)["best"]
