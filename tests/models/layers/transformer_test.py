"""Covers bert_jax/models/layers/transformer.py: what not all families can do is refused.

The forward pass is compared with Hugging Face's for each family, in tests/parity/.
"""

import jax.numpy as jnp
import pytest
from flax import nnx

from bert_jax.errors import ConfigError
from bert_jax.models.families import FAMILIES
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.stack import TokenSelection
from tests.helpers.families import FAMILIES as TESTED


@pytest.mark.parametrize("name", TESTED)
def test_arguments_that_a_family_cannot_read_are_refused(name):
    config = TESTED[name].small
    encoder = FAMILIES[type(config)].encoder(config, ComputeConfig(), nnx.Rngs(0))
    ids = jnp.ones((1, 4), jnp.int32)
    selection = TokenSelection(jnp.array([[0, 2]]), first_layer=1)
    if not config.drops_tokens:
        with pytest.raises(ConfigError, match="`selection` is given, but"):
            encoder(ids, selection=selection)
    if not encoder.has_global_tokens:
        with pytest.raises(ConfigError, match="`global_attention_mask` is given, but"):
            encoder(ids, global_attention_mask=ids)
