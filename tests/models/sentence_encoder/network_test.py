"""Covers bert_jax/models/sentence_encoder/network.py and config.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.apps.testing.models import small_config
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.errors import ConfigError
from bert_jax.models.sentence_encoder.config import (
    POOLING_MODES,
    Dense,
    Normalize,
    Prompt,
    SentenceEncoderConfig,
)
from bert_jax.models.sentence_encoder.network import (
    SentenceHead,
    build_sentence_encoder,
    normalize,
    pool,
)
from bert_jax.params import paths
from bert_jax.params.functional import split

CONFIG = SentenceEncoderConfig(
    pooling=("mean", "cls"),
    modules=(Dense(in_features=32, out_features=6), Normalize()),
    prompts=(Prompt(name="query", text="query: "),),
    default_prompt_name="query",
    truncate_dim=4,
)


def slow_pool(states_LD: np.ndarray, mode: str, start: int) -> np.ndarray:
    """Pools the states of one text without padding, from the token `start`."""
    pooled = states_LD[start:]
    positions = np.arange(start + 1, len(states_LD) + 1)[:, None]
    return {
        "cls": pooled[0],
        "max": pooled.max(0),
        "mean": pooled.mean(0),
        "mean_sqrt_len_tokens": pooled.sum(0) / np.sqrt(len(pooled)),
        "weightedmean": (pooled * positions).sum(0) / positions.sum(),
        "lasttoken": pooled[-1],
    }[mode]


@pytest.mark.parametrize("prompt_length", [None, 2])
def test_pooling_reads_real_tokens_after_the_prompt(prompt_length):
    states = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    prompts = None if prompt_length is None else jnp.full(2, prompt_length)
    pool_all = jax.jit(lambda *args: [pool(args[0], args[1], m, args[2]) for m in POOLING_MODES])
    for mode, actual in zip(POOLING_MODES, pool_all(states, mask, prompts), strict=True):
        for row, length in enumerate((3, 5)):
            expected = slow_pool(states[row, :length], mode, prompt_length or 0)
            np.testing.assert_allclose(actual[row], expected, atol=1e-6, err_msg=mode)


def test_normalize_has_finite_gradient_at_zero():
    gradient = jax.grad(lambda vector: normalize(vector).sum())(jnp.zeros(4))
    assert np.isfinite(gradient).all()


def test_head_pools_transforms_and_normalizes():
    shapes = paths.flatten(build_sentence_encoder(small_config(), CONFIG).abstract())
    assert shapes["sentence_head/dense/0/kernel"].shape == (32, 6)
    assert shapes["sentence_head/dense/0/bias"].shape == (6,)
    head = SentenceHead(CONFIG, 16, nnx.Rngs(0))
    states = np.random.default_rng(0).normal(size=(2, 4, 16)).astype(np.float32)
    mask = jnp.ones((2, 4), jnp.int32)
    pooled = np.concatenate([states.mean(1), states[:, 0]], -1)
    params, _ = split(head)
    layer = params["dense"]["0"]
    dense = np.tanh(pooled @ layer["kernel"] + layer["bias"])
    expected = dense / np.linalg.norm(dense, axis=-1, keepdims=True)
    np.testing.assert_allclose(head(jnp.asarray(states), mask), expected, atol=1e-6)


def test_config_is_the_same_after_a_round_trip_through_json():
    assert from_json(SentenceEncoderConfig, to_json(CONFIG)) == CONFIG


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": ("first",)}, "'first', expected one of cls, max"),
        ({"default_prompt_name": "passage"}, "is 'passage', expected one of 'query'"),
        ({"pooling": ("mean",)}, "in_features 32, but its input has 16"),
        ({"truncate_dim": 7}, "is 7, but vectors have 6"),
    ],
)
def test_impossible_configs_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **changes).embedding_size(16)
