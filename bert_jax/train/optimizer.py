"""Builds the optimizer and the learning-rate schedule from the training config.

Fine-tuning adds frozen parameters, layer-wise learning rates and gradual unfreezing.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.train import (
    Adafactor,
    AdamW,
    ConstantRate,
    InverseSquareRoot,
    Lamb,
    Muon,
    Schedule,
    StableAdamW,
    TrainConfig,
    WarmupLinear,
    WarmupStableDecay,
)
from bert_jax.config.tuning import FullTuning, TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.params import paths
from bert_jax.params.paths import PathTable, matches
from bert_jax.train.tuning.freezing import count_layers, is_frozen, param_depth
from bert_jax.train.tuning.weight_anchors import l2_to_init

WEIGHT_DECAY: PathTable[bool] = PathTable(
    "weight decay",
    [
        ("**/kernel", True),
        ("**/embedding", True),
        # The difference of DeBERTa-v3's disentangled embeddings is a table, like "embedding".
        ("**/difference", True),
        ("**/decoder", True),
        ("adapter/**/lora_*", True),
        *((f"adapter/**/{name}", True) for name in ("magnitude", "ia3", "prompt", "prefix_*")),
        ("**/bias", False),
        ("**/scale", False),
        ("heads/*/log_variance", False),
        # They have no gradient, so they would only decay.
        ("**/untrained/*", False),
        (f"{paths.STATISTICS}/*", False),
        # The weights of static queries would decay to 0, which no query without its token corrects.
        ("sentence_head/query_weights", False),
    ],
)
"""Selects the parameters with weight decay: all but biases and LayerNorm (`optimization.py`)."""


def decay_mask(params: Any) -> Any:
    """Returns a pytree with True for each parameter that weight decay applies to."""
    return paths.map_with_path(lambda path, _: WEIGHT_DECAY[path], params)


class UncorrectedAdamState(NamedTuple):
    """Holds the first and second moments, shaped like the parameters."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Scales gradients by Adam without bias correction.

    This is BERT's own optimizer (`AdamWeightDecayOptimizer`); optax only has the corrected one.
    """

    def init(params: Any) -> UncorrectedAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return UncorrectedAdamState(zeros, zeros)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        # Like BERT's, it needs no count of steps: without correction, the first updates are
        # larger than in Adam.
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, updates)
        scaled = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return scaled, UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_stable_adamw(config: StableAdamW) -> optax.GradientTransformation:
    """Scales gradients by Adam, adds weight decay, and divides updates that are too large.

    The divisor of a parameter's update is max(1, RMS(g / max(sqrt(v), epsilon))) for the gradient g
    and the bias-corrected second moment v, which include the gradient of this step. Weight decay is
    divided, too, as in the implementation that ModernBERT was trained with. The state is Adam's.
    """
    adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
    decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        new_state: Any
        scaled, new_state = adam.update(updates, state, params)
        decayed, _ = decay.update(scaled, decay.init(params), params)
        nu_correction = 1.0 - jnp.float32(config.b2) ** new_state.count.astype(jnp.float32)

        def clip(scaled_update: jax.Array, grad: jax.Array, nu: jax.Array) -> jax.Array:
            variance = jnp.maximum(nu / nu_correction, config.epsilon**2)
            rms = jnp.sqrt(jnp.mean(jnp.square(grad) / variance))
            return scaled_update / jnp.maximum(1.0, rms)

        return jax.tree.map(clip, decayed, updates, new_state.nu), new_state

    return optax.GradientTransformation(adam.init, update)


MUON, ADAM = "muon", "adam"  # these names are part of saved optimizer states
MUON_PATTERNS = tuple(
    f"{network}{stack}"
    for network in ("", f"{paths.GENERATOR}/")
    for stack in ("encoder/**/layers/*/**/kernel", "decoder/layers/*/**/kernel")
)
"""The matrices that Muon trains: the kernels of all layers, [inputs, outputs].

Those of attention have the outputs of all heads as one dimension, [D, H * K], as in Jordan's code.
Embeddings, the projection of factorized ones, heads and adapters are left to AdamW.
"""


def scale_by_muon(config: Muon) -> optax.GradientTransformation:
    """Scales the gradients of the layers' matrices by Muon and all others by Adam; adds decay.

    As in optax, the momentum is corrected for its start at 0, which Jordan's code does not do.

    Raises:
      ConfigError: at init, if no trained parameter is a matrix of a layer.
    """

    def param_labels(params: Any) -> Any:
        flat = paths.flatten(params)
        # Frozen parameters are `optax.MaskedNode` and have no dimensions.
        trained = {path: leaf.ndim for path, leaf in flat.items() if hasattr(leaf, "ndim")}
        matrices = {p for p, n in trained.items() if n == 2 and paths.matches_any(MUON_PATTERNS, p)}
        if not matrices:
            raise ConfigError(
                "train.optimizer is Muon, which trains the matrices of the layers "
                f"({', '.join(MUON_PATTERNS[:2])}), but this run trains none of them, only "
                f"{', '.join(list(trained)[:3])}, ...; expected another optimizer, such as AdamW"
            )
        return paths.unflatten({path: MUON if path in matrices else ADAM for path in flat})

    def dimensions(updates: Any) -> Any:
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), updates)

    def scale_by_shape(updates: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda leaf: _update_scale(config, *leaf.shape) * leaf, updates)

    orthogonalize = optax.contrib.scale_by_muon(
        beta=config.momentum, weight_dimension_numbers=dimensions
    )
    adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
    decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
    # Not `optax.contrib.muon`, whose Adam has Nesterov momentum.
    return optax.partition(
        {
            MUON: optax.chain(orthogonalize, optax.stateless(scale_by_shape), decay),
            ADAM: optax.chain(adam, decay, optax.scale(config.adamw_rate_factor)),
        },
        param_labels,
    )


def _update_scale(config: Muon, rows: int, columns: int) -> float:
    if config.update_scale == "adamw_rms":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, columns / rows))


def learning_rate_schedule(schedule: Schedule, total_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of updates done.

    With `WarmupLinear` and `WarmupStableDecay`, the first update uses peak / warmup_steps, update
    number warmup_steps uses the peak. If the rate decays, it reaches 0 right after the last update.
    """
    if isinstance(schedule, ConstantRate):
        return optax.constant_schedule(schedule.learning_rate)
    if isinstance(schedule, InverseSquareRoot):
        return _inverse_square_root(schedule)
    peak, warmup_steps = schedule.peak_learning_rate, schedule.warmup_steps
    warmup_schedule = optax.linear_schedule(
        peak / max(warmup_steps, 1), peak, max(warmup_steps - 1, 1)
    )
    match schedule:
        case WarmupLinear():
            decay_schedule = optax.linear_schedule(peak, 0.0, total_steps - warmup_steps)
        case WarmupStableDecay():
            decay_schedule = _constant_then_sqrt_decay(
                peak, total_steps - warmup_steps, schedule.decay_steps
            )
    return (
        optax.join_schedules([warmup_schedule, decay_schedule], [warmup_steps])
        if warmup_steps
        else decay_schedule
    )


def _inverse_square_root(config: InverseSquareRoot) -> optax.Schedule:
    def schedule(count: Any) -> jax.Array:
        step = jnp.maximum(jnp.asarray(count, jnp.float32), float(config.warmup_steps))
        return config.scale * jax.lax.rsqrt(step)

    return schedule


# Put together from optax's parts without its learning rate, so that schedule, frozen parameters and
# reports work as for every optimizer. Factored moments have other shapes than their parameters and
# are replicated over the mesh.
def scale_by_adafactor(config: Adafactor) -> optax.GradientTransformation:
    """Scales gradients by Adafactor: by the learning rate 1, and without momentum."""
    return optax.chain(
        optax.scale_by_factored_rms(
            decay_rate=config.decay_rate, min_dim_size_to_factor=config.min_dim_size_to_factor
        ),
        # The order is Adafactor's (Shazeer and Stern 2018, algorithm 4): the scaled update is
        # clipped, then multiplied by the scale of the parameter.
        optax.clip_by_block_rms(config.clipping_threshold),
        optax.scale_by_param_block_rms(),
    )


def _constant_then_sqrt_decay(peak: float, total_steps: int, decay_steps: int) -> optax.Schedule:
    def schedule(count: Any) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) - (total_steps - decay_steps)
        fraction = jnp.clip(step / max(decay_steps, 1), 0.0, 1.0)
        return peak * (1.0 - jnp.sqrt(fraction)) if decay_steps else peak * jnp.ones_like(fraction)

    return schedule


def make_optimizer(train: TrainConfig) -> optax.GradientTransformation:
    """Returns the optax transform of a training config.

    Order of the chain: weight anchor (L2-SP or EWC), gradient clipping, Adam, Adafactor or Muon,
    weight decay, trust ratio (LAMB), layer-wise learning rates, learning-rate schedule.
    """
    config = train.optimizer
    match config:
        case AdamW() | Lamb():
            weight_decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
            moments = config.b1, config.b2, config.epsilon
            corrected = not isinstance(config, AdamW) or config.bias_correction
            scale = optax.scale_by_adam if corrected else scale_by_uncorrected_adam
            adam = [scale(*moments), weight_decay]
        case Adafactor():
            adam = [scale_by_adafactor(config)]
        case StableAdamW():
            adam = [scale_by_stable_adamw(config)]
        case Muon():
            adam = [scale_by_muon(config)]
    tuning, weight_anchor = train.tuning, train.tuning.weight_anchor
    transforms = [
        *([l2_to_init(weight_anchor)] if weight_anchor else []),
        # Both have the same empty state, so that a checkpoint fits either choice.
        optax.identity()
        if train.max_grad_norm is None
        else optax.clip_by_global_norm(train.max_grad_norm),
        *adam,
    ]
    if isinstance(config, Lamb):  # no trust ratio for biases and LayerNorm, as in the reference
        transforms.append(optax.masked(optax.scale_by_trust_ratio(), decay_mask))
    if (tuning.layerwise_lr_decay, tuning.head_lr_multiplier, tuning.unfreeze_every) != (
        1.0,
        1.0,
        0,
    ):
        transforms.append(scale_by_depth(tuning))
    schedule = learning_rate_schedule(train.schedule, train.steps)
    chain = optax.chain(*transforms, optax.scale_by_learning_rate(schedule))
    return _allow_promotion(freeze(tuning, chain))


def _allow_promotion(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    # optax computes float ** int, which `jax_numpy_dtype_promotion="strict"` does not allow.
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, update)


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

    # No state for frozen parameters: `partition` keeps moments only for the trained ones.
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
