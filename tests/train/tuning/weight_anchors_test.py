"""Tests weight anchors: the gradients of the penalties, and the stored values."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config.tuning import EWC, L2SP
from bert_jax.errors import ConfigError
from bert_jax.params import paths
from bert_jax.train.tuning.weight_anchors import l2_to_init, set_fisher

PATHS = ("encoder/embeddings/norm/scale", "encoder/layers/0/query/kernel", "classifier/kernel")


def draw(seed):
    rng = np.random.default_rng(seed)
    return paths.unflatten(
        {path: jnp.asarray(rng.normal(size=(4, 4)), "float32") for path in PATHS}
    )


START, NOW, GRADIENTS = draw(0), draw(1), draw(2)
FISHER = {path: np.abs(leaf) for path, leaf in paths.flatten(jax.device_get(draw(3))).items()}


def squares(path):
    return (paths.flatten(NOW)[path] - paths.flatten(START)[path]) ** 2


def check(transform, state, penalty):
    pulled, _ = transform.update(GRADIENTS, state, NOW)
    expected = jax.tree.map(jnp.add, GRADIENTS, jax.grad(penalty)(NOW))
    for path, leaf in paths.flatten(pulled).items():
        np.testing.assert_allclose(leaf, paths.flatten(expected)[path], rtol=1e-5, atol=1e-6)


def test_l2sp_pulls_the_encoder_to_its_start_and_the_head_to_zero():
    def penalty(params):
        flat, start = paths.flatten(params), paths.flatten(START)
        return sum(
            0.15 * jnp.sum((leaf - start[path]) ** 2)
            if path.startswith("encoder/")
            else 0.1 * jnp.sum(leaf**2)
            for path, leaf in flat.items()
        )

    transform = l2_to_init(L2SP(encoder_strength=0.3, head_strength=0.2))
    check(transform, transform.init(START), penalty)


def test_ewc_pulls_each_weight_by_its_importance():
    def penalty(params):
        flat, start = paths.flatten(params), paths.flatten(START)
        return sum(
            5.0 * jnp.sum(FISHER[path] * (leaf - start[path]) ** 2)
            for path, leaf in flat.items()
            if path.startswith("encoder/")
        )

    anchor = EWC(fisher="file", strength=10.0)
    chain = optax.chain(l2_to_init(anchor), optax.identity())
    state = set_fisher(chain.init(START), anchor, FISHER)
    check(chain, state, penalty)


def test_importance_of_another_model_is_rejected():
    anchor = EWC(fisher="other.safetensors")
    state = l2_to_init(anchor).init(START)
    with pytest.raises(ConfigError, match=r"other\.safetensors does not fit the model at encoder/"):
        set_fisher(state, anchor, {})
