"""Covers bert_jax/models/esm/: published sizes, token dropout, what no training changes."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.layers.config import NoPositions
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.train.optimizer import decay_mask
from tests.helpers.quick_init import quick_init

MODEL = EsmConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    positions=NoPositions(max_position_embeddings=64),
)


@pytest.mark.parametrize(
    ("size", "encoder", "masked_lm"),
    [  # the counts of Hugging Face's classes, and K / 2 angles, which are buffers there
        ("8m", 7_409_089, 7_512_482),
        pytest.param("35m", 33_269_533, 33_501_406, marks=pytest.mark.slow),
        pytest.param("650m", 649_401_013, 651_043_286, marks=pytest.mark.slow),
    ],
)
def test_parameter_counts(size, encoder, masked_lm):
    def count(*heads: str) -> int:
        abstract = build_network(EsmConfig.from_size(size), heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    assert (count(), count("masked_lm")) == (encoder, masked_lm)


def test_published_values():
    assert EsmConfig.from_size("8m") == EsmConfig()
    config = EsmConfig.from_size("15b")
    assert (config.num_hidden_layers, config.hidden_size, config.head_width) == (48, 5120, 128)
    assert config.max_length == 1026


def test_a_text_without_masks_is_scaled_as_one_with_those_of_pretraining():
    network = build_network(MODEL)
    model: Any = network.merge(quick_init(network.abstract()))
    ids = jnp.arange(50)[None] % 28 + 4
    masked = ids.at[0, :6].set(32)  # 12 %
    plain, dropped = (
        model.encoder(each, output_hidden_states=True).hidden_states[0] for each in (ids, masked)
    )
    table = model.encoder.token_embeddings()
    np.testing.assert_allclose(plain, 0.88 * table[ids], rtol=1e-6)
    np.testing.assert_allclose(dropped[0, 6:], table[ids][0, 6:], rtol=1e-6)
    assert not np.any(dropped[0, :6])


def test_angles_and_the_contact_head_are_not_trained_and_do_not_decay():
    network = build_network(dataclasses.replace(MODEL, num_hidden_layers=1))
    params = quick_init(network.abstract())

    def loss(params):
        return jnp.sum(network.merge(params).encoder(jnp.arange(8)[None]).last_hidden_state ** 3)

    gradients = paths.flatten(jax.jit(jax.grad(loss))(params))
    untrained = {path for path, leaf in gradients.items() if not np.any(leaf)}
    names = ("contact_bias", "contact_kernel", "inverse_frequencies")
    # A bias of all keys changes no softmax.
    assert {path for path in untrained if "key/bias" not in path} == {
        f"encoder/untrained/{name}" for name in names
    }
    decays = paths.flatten(decay_mask(params))
    assert not any(decays[f"encoder/untrained/{name}"] for name in names)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 18}, "heads of an odd width"),
        ({"rope_theta": 0.0}, "model.rope_theta"),
        ({"mask_token_id": 33}, "model.mask_token_id 33 is not an id below"),
        ({"hidden_act": "silu"}, "model.hidden_act is 'silu'; ESM-2 has only 'gelu'"),
    ],
)
def test_values_that_cannot_be_used_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(MODEL, **changes)
