"""What tuning adds to the optimizer: frozen parameters, rates by depth, gradual unfreezing."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax import paths
from bert_jax.errors import ConfigError
from bert_jax.paths import matches
from bert_jax.tuning.config import Tuning
from bert_jax.tuning.depth import depth, layers_of

MOVED, FROZEN = "moved", "frozen"


def freeze(tuning: Tuning, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optimizer` for all parameters but the frozen ones, which get no update and no moments.

    Raises:
      ConfigError: at init, a pattern of `tuning.frozen` that matches nothing, or all are frozen.
    """
    if not tuning.frozen:
        return optimizer

    def labels(params: Any) -> Any:
        flat = paths.flatten(params)
        for pattern in tuning.frozen:
            if not any(matches(pattern, path) for path in flat):
                raise ConfigError(
                    f"tuning.frozen has {pattern!r}, which matches no parameter; they are such as "
                    f"{', '.join(list(flat)[:3])} (`bert-jax explain` lists them)"
                )
        still = {path: any(matches(pattern, path) for pattern in tuning.frozen) for path in flat}
        if all(still.values()):
            raise ConfigError(f"tuning.frozen {tuning.frozen} leaves no parameter that moves")
        return paths.unflatten({path: FROZEN if s else MOVED for path, s in still.items()})

    return optax.partition({MOVED: optimizer, FROZEN: optax.set_to_zero()}, labels)


class CountState(NamedTuple):
    """Updates done."""

    count: jax.Array


def scale_by_depth(tuning: Tuning) -> optax.GradientTransformation:
    """Multiplies updates by a rate for each depth, 0 while that depth is still frozen.

    Layer-wise decay as in Howard and Ruder 2018 (3.2) and Clark et al. 2020 (ELECTRA, appendix B);
    gradual unfreezing as in Howard and Ruder 2018 (3.3).
    """

    def rates(params: Any, count: jax.Array) -> Any:
        layers = layers_of(paths.flatten(params))

        def rate(path: str, leaf: Any) -> Any:
            if isinstance(leaf, optax.MaskedNode):  # frozen: it has no update
                return leaf
            below = layers + 1 - depth(path, layers)  # 0 for the head
            scale = tuning.layer_decay**below * (tuning.head_rate if below == 0 else 1.0)
            moving = count >= below * tuning.unfreeze_every
            return jnp.where(moving, jnp.float32(scale), jnp.float32(0))

        return paths.map_with_path(rate, params)

    def init(params: Any) -> CountState:
        del params
        return CountState(jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, CountState]:
        scaled = jax.tree.map(jnp.multiply, updates, rates(updates, state.count))
        del params
        return scaled, CountState(state.count + 1)

    return optax.GradientTransformation(init, update)
