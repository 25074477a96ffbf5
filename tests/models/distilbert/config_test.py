"""Covers bert_jax/models/distilbert/: parameter counts, published values, refusals, FLOPs."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.models import random_parameters
from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import build_network
from bert_jax.params import paths


def test_parameter_counts():
    def count(*heads: str) -> int:
        abstract = build_network(DistilBertConfig(), heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    # The counts of Hugging Face's classes for the published model ("66M").
    assert count() == 66_362_880
    assert count("masked_lm") == 66_985_530


def test_token_types_are_ignored():
    config = DistilBertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, positions=LearnedPositions(max_position_embeddings=10),
    )  # fmt: skip
    params = paths.unflatten(random_parameters(config))
    encoder = build_network(config).merge({"encoder": params["encoder"]}).encoder
    ids = jnp.arange(6)[None] + 5
    with_types = encoder(ids, jnp.array([[0, 0, 0, 1, 1, 1]])).last_hidden_state
    np.testing.assert_array_equal(with_types, encoder(ids).last_hidden_state)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"type_vocab_size": 2},
            "model.type_vocab_size is 2, expected 0, which is fixed in Distil",
        ),
        ({"layer_norm_eps": 1e-5}, "model.layer_norm_eps is 1e-05, expected 1e-12, which is fixed"),
        ({"hidden_size": 770}, "hidden_size 770 is not a multiple of model.num_attention_heads 12"),
    ],
)
def test_values_that_its_files_cannot_hold_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        DistilBertConfig(**fields)


def test_next_sentence_prediction_is_refused():
    with pytest.raises(ConfigError, match="DistilBERT is pretrained without next-sentence"):
        Pretraining(model=DistilBertConfig(), mask_token_id=103)


def test_flops_are_those_of_six_bert_layers():
    expected = 6 * (8 * 768**2 + 4 * 768 * 3072 + 4 * 512 * 768)
    assert DistilBertConfig().encoder_flops(512) == expected
