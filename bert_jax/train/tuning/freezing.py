"""Selects the parameters that are trained, and computes how deep in the network a parameter is.

No gradient is computed for frozen parameters. The backward pass ends at the lowest depth that has a
trainable parameter.
"""

import re
from collections.abc import Iterable

import optax

from bert_jax.config.tuning import (
    BitFit,
    FullTuning,
    LayerNormTuning,
    TuningConfig,
    TuningMethod,
)
from bert_jax.errors import ConfigError
from bert_jax.models.adapters.config import HoulsbyAdapter
from bert_jax.models.config import TransformerConfig
from bert_jax.params import paths
from bert_jax.params.functional import Params
from bert_jax.params.paths import ADAPTER

_ENCODER_PREFIX = re.compile(rf"(?:{ADAPTER}/)?encoder/")
# A group of ALBERT is the set of all layers that share the same parameters.
_LAYER = re.compile(rf"(?:{ADAPTER}/)?encoder/(?:layers|groups)/(\d+)/")
_BIASES = ("encoder/**/bias",)
_SUBSET = ("encoder/**/attention/query/bias", "encoder/**/feed_forward/intermediate/bias")
_NORMS = tuple(f"encoder/**/{norm}/*" for norm in ("norm", "*_norm"))


def is_frozen(tuning: TuningConfig, path: str) -> bool:
    """Returns whether a parameter keeps its value: by `tuning.frozen` or by the method."""
    if paths.matches_any(tuning.frozen, path):
        return True
    if isinstance(tuning.method, FullTuning) or not path.startswith("encoder/"):
        return False
    return not paths.matches_any(trained_encoder_patterns(tuning.method), path)


def trained_encoder_patterns(method: TuningMethod) -> tuple[str, ...]:
    """Returns the path patterns of the parameters of the base's encoder that a method trains."""
    match method:
        case FullTuning():
            return ("encoder/**",)
        case BitFit(biases="all"):
            return _BIASES
        case BitFit(biases="query_and_intermediate"):
            return _SUBSET
        case LayerNormTuning() | HoulsbyAdapter():
            return _NORMS
        case _:
            return ()


def check_trains_encoder(tuning: TuningConfig, params: Params) -> None:
    """Raises a ConfigError if a method that trains a part of the encoder finds none to train."""
    patterns = trained_encoder_patterns(tuning.method)
    if not patterns or tuning.adapter is not None or isinstance(tuning.method, FullTuning):
        return
    trained = [path for path in paths.flatten(params) if paths.matches_any(patterns, path)]
    if not trained:
        raise ConfigError(
            f"train.tuning.method is {tuning.method}, but this encoder has none of the "
            f"parameters that the method trains ({' or '.join(patterns)}); choose another method, "
            "such as LoRA"
        )
    if all(is_frozen(tuning, path) for path in trained):
        raise ConfigError(
            f"train.tuning.method is {tuning.method}, but train.tuning.frozen "
            f"({', '.join(tuning.frozen)}) freezes every encoder parameter that this method trains "
            f"({' or '.join(patterns)}); remove patterns from train.tuning.frozen, or choose "
            "another method, such as LoRA"
        )


def mask_frozen(tuning: TuningConfig, params: Params) -> Params:
    """Returns parameters in which `optax.MaskedNode()` replaces those that are frozen.

    A masked node has no array, so gradients, moments and updates of the result have none either.
    """
    return paths.map_with_path(
        lambda path, leaf: optax.MaskedNode() if is_frozen(tuning, path) else leaf, params
    )


def unmask_frozen(trained: Params, params: Params) -> Params:
    """Returns `params` with the values of `trained`, the result of `mask_frozen`, inserted."""
    values = paths.flatten(trained)
    return paths.map_with_path(
        lambda path, leaf: leaf if isinstance(values[path], optax.MaskedNode) else values[path],
        params,
    )


def without_frozen(tuning: TuningConfig, params: Params) -> Params:
    """Returns only the parameters that are trained, as a smaller nested dict."""
    flat = paths.flatten(params)
    return paths.unflatten({path: v for path, v in flat.items() if not is_frozen(tuning, path)})


def count_layers(params: Iterable[str]) -> int:
    """Returns the number of encoder layers among these parameter paths.

    Layers that share their parameters count as one, because one learning rate applies to all.
    """
    matches = (_LAYER.match(path) for path in params)
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def param_depth(path: str, num_layers: int) -> int:
    """Returns 0 for embeddings, k + 1 for layer k (from 0), num_layers + 1 for pooler and heads."""
    if match := _LAYER.match(path):
        return int(match[1]) + 1
    return 0 if _ENCODER_PREFIX.match(path) else num_layers + 1


def lowest_trainable_depth(params: Iterable[str], tuning: TuningConfig) -> int:
    """Returns the smallest depth of the parameters that are trained."""
    params = list(params)
    num_layers = count_layers(params)
    trainable_paths = (path for path in params if not is_frozen(tuning, path))
    return min((param_depth(path, num_layers) for path in trainable_paths), default=num_layers + 1)


def num_layers_with_gradients(model: TransformerConfig, lowest_trainable: int) -> int:
    """Returns how many layers the backward pass goes through if it ends at `lowest_trainable`."""
    return sum(model.layers_at_depth[max(0, lowest_trainable - 1) :])
