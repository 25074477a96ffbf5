"""Adds frozen parameters, layer-wise learning rates and gradual unfreezing to the optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.tuning import FullTuning, TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.params import paths
from bert_jax.params.paths import matches
from bert_jax.train.tuning.freezing import count_layers, is_frozen, param_depth

TRAINABLE, FROZEN = "moved", "frozen"  # these names are part of saved optimizer states


def freeze(
    tuning: TuningConfig, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Restricts `optimizer` to the parameters that are not frozen; frozen ones have no moments.

    Raises:
      ConfigError: at init, if a pattern of `tuning.frozen` matches no parameter, or all parameters
        are frozen.
    """
    if not tuning.frozen and isinstance(tuning.method, FullTuning):
        return optimizer

    def param_labels(params: Any) -> Any:
        flat_params = paths.flatten(params)
        for pattern in tuning.frozen:
            if not any(matches(pattern, path) for path in flat_params):
                raise ConfigError(
                    f"train.tuning.frozen contains {pattern!r}, which matches no parameter; "
                    f"expected patterns of parameter paths such as "
                    f"{', '.join(list(flat_params)[:3])}; `bert-jax show-config` lists all of them"
                )
        frozen_by_path = {path: is_frozen(tuning, path) for path in flat_params}
        if all(frozen_by_path.values()):
            raise ConfigError(
                f"train.tuning.frozen is {list(tuning.frozen)}, which freezes all parameters; "
                "remove a pattern, so that at least one parameter is trained"
            )
        return paths.unflatten(
            {path: FROZEN if frozen else TRAINABLE for path, frozen in frozen_by_path.items()}
        )

    return optax.partition({TRAINABLE: optimizer, FROZEN: optax.set_to_zero()}, param_labels)


class UpdateCountState(NamedTuple):
    """Holds the number of updates done."""

    # As in the states of optax, although it hides the method of tuple.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def scale_by_depth(tuning: TuningConfig) -> optax.GradientTransformation:
    """Multiplies updates by a factor for each depth; 0 while that depth is not yet unfrozen.

    Layer-wise decay as in Howard and Ruder 2018 (3.2) and Clark et al. 2020 (ELECTRA, appendix B);
    gradual unfreezing as in Howard and Ruder 2018 (3.3).
    """

    def lr_multipliers(params: Any, count: jax.Array) -> Any:
        num_layers = count_layers(paths.flatten(params))

        def lr_multiplier(path: str, leaf: Any) -> Any:
            if isinstance(leaf, optax.MaskedNode):  # frozen parameters have no update
                return leaf
            distance_from_head = num_layers + 1 - param_depth(path, num_layers)  # 0 for the head
            scale = tuning.layerwise_lr_decay**distance_from_head * (
                tuning.head_lr_multiplier if distance_from_head == 0 else 1.0
            )
            unfrozen = count >= distance_from_head * tuning.unfreeze_every
            return jnp.where(unfrozen, jnp.float32(scale), jnp.float32(0))

        return paths.map_with_path(lr_multiplier, params)

    def init(params: Any) -> UpdateCountState:
        del params
        return UpdateCountState(jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, UpdateCountState]:
        scaled_updates = jax.tree.map(jnp.multiply, updates, lr_multipliers(updates, state.count))
        del params
        return scaled_updates, UpdateCountState(state.count + 1)

    return optax.GradientTransformation(init, update)
