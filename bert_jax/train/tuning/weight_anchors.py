"""Penalizes the distance from the initial weights (L2-SP, EWC) by adding to the gradients."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.config.tuning import EWC, L2SP
from bert_jax.errors import ConfigError
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER


class AnchorState(NamedTuple):
    """Holds the anchor of each parameter; both fields are pytrees shaped like the parameters.

    Attributes:
      start: the weights that the parameters are pulled towards.
      strength: factor of the penalty's gradient for each weight.
    """

    start: Any
    strength: Any


def l2_to_init(weight_anchor: L2SP | EWC) -> optax.GradientTransformation:
    """Returns an optax transform that adds the penalty's gradient, strength x (w - start).

    L2-SP pulls the encoder towards its initial weights and the head towards zero. EWC pulls only
    the encoder; its strengths are zero until `set_fisher` inserts the measured ones.
    """

    def starting_point(path: str, leaf: Any) -> Any:
        if isinstance(leaf, optax.MaskedNode):  # frozen: it has no gradient
            return leaf
        return jnp.array(leaf) if path.startswith("encoder/") else jnp.zeros_like(leaf)

    def initial_strength(path: str, leaf: Any) -> Any:
        if isinstance(leaf, optax.MaskedNode):
            return leaf
        if path.startswith(f"{ADAPTER}/"):  # its zero change of the encoder is not at zero weights
            return jnp.zeros_like(leaf)
        match weight_anchor:
            case L2SP():
                part_strength = (
                    weight_anchor.encoder_strength
                    if path.startswith("encoder/")
                    else weight_anchor.head_strength
                )
                return jnp.full_like(leaf, part_strength)
            case EWC():
                return jnp.zeros_like(leaf)

    def init(params: Any) -> AnchorState:
        return AnchorState(
            paths.map_with_path(starting_point, params),
            paths.map_with_path(initial_strength, params),
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AnchorState]:
        penalty_grads = jax.tree.map(
            lambda strength, weight, start: strength * (weight - start),
            state.strength,
            params,
            state.start,
        )
        return jax.tree.map(jnp.add, updates, penalty_grads), state

    return optax.GradientTransformation(init, update)


def set_fisher(opt_state: Any, weight_anchor: EWC, fisher: Mapping[str, np.ndarray]) -> Any:
    """Returns the optimizer state with EWC strengths, `weight_anchor.strength` x Fisher values.

    Raises:
      ConfigError: an encoder parameter is missing in `fisher` or has another shape there.
    """

    def fisher_strength(path: str, leaf: Any) -> Any:
        if isinstance(leaf, optax.MaskedNode) or not path.startswith("encoder/"):
            return leaf
        if path not in fisher or fisher[path].shape != leaf.shape:
            raise ConfigError(
                f"train.tuning.weight_anchor.fisher: {weight_anchor.fisher} does not fit the model "
                f"at {path}; run `bert-jax fisher` on the model that training starts from"
            )
        return jax.device_put(np.float32(weight_anchor.strength) * fisher[path], leaf.sharding)

    def set_strength(node: Any) -> Any:
        if not isinstance(node, AnchorState):
            return node
        return node._replace(strength=paths.map_with_path(fisher_strength, node.strength))

    return jax.tree.map(set_strength, opt_state, is_leaf=lambda node: isinstance(node, AnchorState))
