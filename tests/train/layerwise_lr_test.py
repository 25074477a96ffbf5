"""Covers bert_jax/train/optimizer.py: which parameters change, how far and when, by depth."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest

from bert_jax.config.train import MeshConfig, Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import EWC, FROZEN_ENCODER, L2SP, TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.model import build_network
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.train.optimizer import make_optimizer
from bert_jax.train.tuning.freezing import (
    count_layers,
    lowest_trainable_depth,
    num_layers_with_gradients,
    param_depth,
)

LAYERS = 3
PATHS = (
    "encoder/embeddings/word_embeddings/embedding",
    *(f"encoder/layers/{layer}/attention/query/kernel" for layer in range(LAYERS)),
    *(f"encoder/layers/{layer}/attention_norm/scale" for layer in range(LAYERS)),
    "pooler/dense/kernel",
    "classifier/kernel",
)
START = paths.unflatten(
    {path: jnp.full((4,) if path.endswith("scale") else (4, 4), 0.5) for path in PATHS}
)
TRAIN = TrainConfig(
    phases=(Phase(steps=100, seq_length=8, batch_size=8),),
    schedule=WarmupLinear(peak_learning_rate=1e-2, warmup_steps=0),
)


def moved(tuning: TuningConfig, steps: int = 1) -> dict[str, float]:
    """Returns each parameter's distance from its start after `steps` updates with gradient 1."""
    optimizer = make_optimizer(dataclasses.replace(TRAIN, tuning=tuning))
    params, state = START, optimizer.init(START)
    gradients = jax.tree.map(jnp.ones_like, START)
    for _ in range(steps):
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    distances = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), params, START)
    return paths.flatten(distances)


def test_depth_counts_from_the_embeddings_to_the_head():
    assert count_layers(PATHS) == LAYERS
    assert [param_depth(path, LAYERS) for path in PATHS] == [0, 1, 2, 3, 1, 2, 3, 4, 4]


def test_layers_that_share_parameters_have_one_depth():
    config = AlbertConfig(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
    params = list(paths.flatten(build_network(config, ("pooler",)).abstract()))
    assert count_layers(params) == len(config.layers_at_depth) == 2
    depths = {path: param_depth(path, 2) for path in params}
    assert depths["encoder/embedding_projection/kernel"] == 0
    assert depths["encoder/groups/0/layers/1/attention/query/kernel"] == 1
    assert depths["encoder/groups/1/layers/0/attention/query/kernel"] == 2
    assert depths["pooler/dense/kernel"] == 3
    frozen = [(), ("encoder/emb*/**",), ("encoder/emb*/**", "encoder/groups/0/**"), ("encoder/**",)]
    lowest = [lowest_trainable_depth(params, TuningConfig(frozen=each)) for each in frozen]
    assert lowest == [0, 1, 2, 3]
    # The first group is applied three times, the second one twice; both have two layers.
    assert [num_layers_with_gradients(config, depth) for depth in lowest] == [10, 10, 4, 0]


def test_each_layer_has_a_multiple_of_the_rate_of_the_next():
    plain, decayed = (
        moved(TuningConfig()),
        moved(TuningConfig(layerwise_lr_decay=0.5, head_lr_multiplier=3.0)),
    )
    for path in PATHS:
        below = LAYERS + 1 - param_depth(path, LAYERS)
        rate = 0.5**below * (3.0 if below == 0 else 1.0)
        assert decayed[path] == pytest.approx(rate * plain[path], rel=1e-5)


def test_frozen_parameters_stay_bit_identical_and_have_no_moments():
    tuning = TuningConfig(frozen=("encoder/embeddings/**", "encoder/layers/0/**"))
    distances = moved(tuning, steps=5)
    still = {path for path, distance in distances.items() if distance == 0.0}
    assert still == {path for path in PATHS if param_depth(path, LAYERS) < 2}
    optimizer = make_optimizer(dataclasses.replace(TRAIN, tuning=tuning))
    sizes = [leaf.size for leaf in jax.tree.leaves(optimizer.init(START)) if leaf.ndim]
    moving = [leaf.size for path, leaf in paths.flatten(START).items() if path not in still]
    assert sum(sizes) == 2 * sum(moving)


def test_frozen_parameters_have_shardings_without_moments():
    tuning = TuningConfig(frozen=("encoder/**",))
    optimizer = make_optimizer(dataclasses.replace(TRAIN, tuning=tuning))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    shardings = sharding.optimizer_shardings(optimizer, START, mesh)
    state = jax.jit(optimizer.init, out_shardings=shardings)(START)
    assert jax.tree.structure(state) == jax.tree.structure(shardings)


def test_layers_are_unfrozen_one_by_one_from_the_top():
    every = 4
    for steps, lowest in ((1, 4), (every, 4), (every + 1, 3), (2 * every + 1, 2), (20, 0)):
        distances = moved(TuningConfig(unfreeze_every=every), steps)
        awake = {param_depth(path, LAYERS) for path, distance in distances.items() if distance > 0}
        assert awake == set(range(lowest, LAYERS + 2)), steps


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        (
            TuningConfig(frozen=("encoder/layer/**",)),
            "'encoder/layer/\\*\\*', which matches no parameter",
        ),
        (TuningConfig(frozen=("**",)), "which freezes all parameters"),
    ],
)
def test_patterns_without_a_match_are_rejected(tuning, message):
    with pytest.raises(ConfigError, match=message):
        moved(tuning)


@pytest.mark.parametrize(
    "bad",
    [
        {"layerwise_lr_decay": 0.0},
        {"layerwise_lr_decay": 1.5},
        {"head_lr_multiplier": 0.0},
        {"unfreeze_every": -1},
    ],
)
def test_numbers_out_of_range_are_rejected(bad):
    with pytest.raises(ConfigError, match=f"tuning.{next(iter(bad))} is"):
        TuningConfig(**bad)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frozen": ("encoder/layers/**",)}, r"frozen is \['encoder/layers/\*\*'\]; add 'encoder/"),
        ({"frozen": ()}, r"tuning.frozen is \[\]; add 'encoder/\*\*' to it"),
        ({"unfreeze_every": 10}, "tuning.unfreeze_every is 10; expected 0, or set"),
        ({"reinit_layers": 1}, "tuning.reinit_layers is 1; expected 0, or set"),
        (
            {"weight_anchor": L2SP()},
            "tuning.weight_anchor is L2SP.*, or L2SP with encoder_strength 0.0",
        ),
        ({"weight_anchor": EWC(fisher="fisher")}, "tuning.weight_anchor is EWC.*expected null"),
    ],
)
def test_cached_features_need_a_frozen_encoder(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(FROZEN_ENCODER, **fields)
    head_alone = dataclasses.replace(FROZEN_ENCODER, weight_anchor=L2SP(encoder_strength=0.0))
    assert head_alone.features == "cached"
