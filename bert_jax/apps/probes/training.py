"""Trains many probes at once: for each layer, seed and labeling, in one compiled program.

A probe is a linear classifier, or one with a hidden layer. It reads one layer, or a scalar mix
(Peters et al. 2018): gamma * sum_k softmax(a)_k h_k over the layers that its mask allows, such as 0
to l in Tenney et al. 2019.

Shapes: K layers, M masks, S seeds, T labelings, N examples, F features, C classes.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.apps.probes.early_stopping import train_with_early_stopping
from bert_jax.errors import UserError, check_range

Params = dict[str, Any]
PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""The fractions of the training examples at which an online code is continued (Voita and Titov
2020)."""

# Adam moves each parameter at about one speed. At that of a kernel's, the weights of a mix would
# still be nearly equal when the probe has converged.
_MIX_SCALE = 10.0


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Configures how probes are trained; when they stop is described in `StoppingConfig`."""

    hidden_size: int = 0  # 0: linear
    learning_rate: float = 1e-3
    batch_size: int = 128
    max_epochs: int = 20
    patience: int = 3
    min_updates_per_epoch: int = 20  # for few examples

    def __post_init__(self) -> None:
        check_range("hidden_size", self.hidden_size, at_least=0)
        check_range("learning_rate", self.learning_rate, above=0)
        for name in ("batch_size", "max_epochs", "patience", "min_updates_per_epoch"):
            check_range(name, getattr(self, name), at_least=1)


class Examples(NamedTuple):
    """Holds features float32 [K, N, F] and class ids int32 [T, N]; -1 is a label that train lacks.

    Probes of one program share the features, and each of the T labelings has its own probes: the
    labels of the task, and random ones of a control task.
    """

    features: jax.Array
    labels: jax.Array


class Evaluation(NamedTuple):
    """Holds -log2 P(label), float32 [S, M, T, N], and the predicted classes, int32 [S, M, T, N]."""

    bits: np.ndarray
    predictions: np.ndarray


def standardize(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Gives each feature of each layer mean 0 and variance 1 on train: [K, N, F] arrays.

    Without it, the learning rate would suit some layers better than others.

    Raises:
      UserError: a value is NaN or infinite.
    """
    for values in (train, *others):
        for layer, each in enumerate(values):
            if not np.isfinite(each).all():
                raise UserError(
                    f"the features of layer {layer} contain NaN or infinite values, which no probe "
                    "can be trained on; check the parameters of the model"
                )
    mean = train.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
    deviation = train.std(1, keepdims=True)
    scale = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 1).astype(np.float32)
    return [(values - mean) * scale for values in (train, *others)]


def train_probes(
    train: Examples,
    dev: Examples,
    masks: np.ndarray | None,
    seeds: Sequence[int],
    num_classes: int,
    config: ProbeConfig,
    *,
    num_examples: int | None = None,
) -> Params:
    """Trains S x M x T probes, and returns their parameters with these leading axes.

    Args:
      masks: bool [M, K], the layers that a probe mixes; None for one probe of each layer.
      seeds: S numbers that decide initial values and batches. Batches are sampled with replacement.
      num_examples: how many training examples are used, from the first on; None for all. Another
        number needs no other program.

    Raises:
      UserError: there are fewer examples than classes.
    """
    size = train.labels.shape[1]
    if size < num_classes:
        raise UserError(
            f"{size} training examples are fewer than the {num_classes} classes; expected more "
            "sentences"
        )
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    used = jnp.int32(size if num_examples is None else num_examples)
    return _train(train, dev, masks, keys, used, num_classes, config)


def evaluate_probes(params: Params, masks: np.ndarray | None, examples: Examples) -> Evaluation:
    """Computes the code length of each label, and the predicted class."""
    nats, predictions = _evaluate(params, masks, examples)
    bits = np.asarray(nats, np.float32) / np.float32(np.log(2))
    return Evaluation(bits, np.asarray(predictions))


def online_code_length(
    train: Examples,
    dev: Examples,
    masks: np.ndarray | None,
    seeds: Sequence[int],
    num_classes: int,
    config: ProbeConfig,
) -> np.ndarray:
    """Computes the minimum description length of the labels, bits [S, M, T].

    The first 0.1 % of the labels have a uniform code. Each further block of `PORTIONS` is coded by
    the probe that was trained on the examples before it (Voita and Titov 2020).
    """
    ends = block_ends(train.labels.shape[1])
    num_probes = len(train.features) if masks is None else len(masks)
    shape = (len(seeds), num_probes, len(train.labels))
    total = np.full(shape, ends[0] * np.log2(num_classes))
    for end, next_end in itertools.pairwise(ends):
        params = train_probes(train, dev, masks, seeds, num_classes, config, num_examples=end)
        bits = evaluate_probes(params, masks, train).bits
        total += bits[..., end:next_end].sum(-1, dtype=np.float64)
    return total


def block_ends(num_examples: int) -> list[int]:
    """Returns the ends of the blocks of an online code, without repetitions for few examples."""
    return sorted({max(1, round(portion * num_examples)) for portion in PORTIONS})


def mix_weights(params: Params, masks: np.ndarray) -> np.ndarray:
    """Returns the weights of the layers in each probe's mix, float32 [S, M, T, K]."""
    return np.asarray(_weights(params["mix"], jnp.asarray(masks)[:, None]))


def _weights(mix: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(mask, _MIX_SCALE * mix, -jnp.inf))


def _init(
    key: jax.Array, num_layers: int, num_features: int, num_classes: int, hidden: int
) -> Params:
    sizes = [num_features, *([hidden] if hidden else []), num_classes]
    params: Params = {"mix": jnp.zeros(num_layers), "gamma": jnp.ones(())}
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        kernel = jax.random.normal(jax.random.fold_in(key, index), (fan_in, fan_out))
        # Zeros in the last layer: with fewer examples than features, random values would stay in
        # the directions that no example has, and be noise in the predictions on test.
        scale = np.float32(fan_in**-0.5 if index < len(sizes) - 2 else 0)
        params[str(index)] = {"kernel": kernel * scale, "bias": jnp.zeros(fan_out)}
    return params


def _logits(params: Params, mask: jax.Array | None, features: jax.Array) -> jax.Array:
    """Returns the logits of one probe, float32 [B, C].

    Args:
      features: [K, B, F], or [B, F] of a single layer if `mask` is None.
    """
    hidden = features
    if mask is not None:
        weights = params["gamma"] * _weights(params["mix"], mask)
        hidden = jnp.einsum("k,kbf->bf", weights, features)
    if "1" in params:
        hidden = jax.nn.relu(hidden @ params["0"]["kernel"] + params["0"]["bias"])
    last = params["1" if "1" in params else "0"]
    return hidden @ last["kernel"] + last["bias"]


def _for_all_probes(function: Any, masks: jax.Array | None, seed_axis: int | None) -> Any:
    """Maps `function(params, mask, features, labels)` over [S, M, T] probes.

    Args:
      masks: bool [M, K], or None for one probe of each layer, which costs less than a mix.
      seed_axis: the axis of the seeds in features and labels; None if all seeds have the same.
    """
    labelings = jax.vmap(function, (0, None, None, 0))
    of_masks = jax.vmap(labelings, (0, None, 0, None) if masks is None else (0, 0, None, None))
    return jax.vmap(of_masks, (0, None, seed_axis, seed_axis))


def _nats(params: Params, mask: jax.Array | None, features: jax.Array, labels: jax.Array):
    """Returns -log P(label), 0 for a label of -1, and the predicted class, of one probe."""
    logits = _logits(params, mask, features)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    return jnp.where(labels >= 0, losses, 0), jnp.argmax(logits, -1).astype(jnp.int32)


@jax.jit
def _evaluate(
    params: Params, masks: jax.Array | None, examples: Examples
) -> tuple[jax.Array, jax.Array]:
    size, chunk = examples.labels.shape[1], 256
    # All examples at once would need the mix of each probe and example in memory.
    starts = jnp.arange(0, size, chunk)

    def one_chunk(start: jax.Array) -> Any:
        indices = jnp.minimum(start + jnp.arange(chunk), size - 1)
        return _for_all_probes(_nats, masks, None)(
            params, masks, examples.features[:, indices], examples.labels[:, indices]
        )

    nats, predictions = jax.lax.map(one_chunk, starts)

    def join(values: jax.Array) -> jax.Array:
        return jnp.moveaxis(values, 0, -2).reshape((*values.shape[1:-1], -1))[..., :size]

    return join(nats), join(predictions)


@functools.partial(jax.jit, static_argnames=("num_classes", "config"))
def _train(
    train: Examples,
    dev: Examples,
    masks: jax.Array | None,
    keys: jax.Array,
    num_examples: jax.Array,
    num_classes: int,
    config: ProbeConfig,
) -> Params:
    num_layers, _, num_features = train.features.shape
    axes = (len(keys), num_layers if masks is None else len(masks), len(train.labels))
    init_keys, batch_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    initial = jax.vmap(
        lambda key: _init(key, num_layers, num_features, num_classes, config.hidden_size)
    )(init_keys)
    # The probes of a seed begin equally, whatever their masks and labels.
    initial = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[:, None, None], (*axes, *leaf.shape[1:])), initial
    )
    batches_per_epoch = -(-num_examples // config.batch_size)
    updates = jnp.maximum(batches_per_epoch, config.min_updates_per_epoch)

    def loss(params: Params, batch_key: jax.Array) -> jax.Array:
        def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            indices = jax.random.randint(key, (config.batch_size,), 0, num_examples)
            return train.features[:, indices], train.labels[:, indices]

        features, labels = jax.vmap(sample)(batch_key)
        losses, _ = _for_all_probes(_nats, masks, 0)(params, masks, features, labels)
        return losses.mean(-1).sum()

    def dev_losses(params: Params) -> jax.Array:
        return _evaluate(params, masks, dev)[0].mean(-1)

    return train_with_early_stopping(initial, loss, dev_losses, batch_keys, updates, config)
