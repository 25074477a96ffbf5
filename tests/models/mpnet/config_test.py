"""Covers bert_jax/models/mpnet/: published values and parameter counts, refusals."""

import math

import pytest

from bert_jax.config.objectives import Pretraining
from bert_jax.errors import ConfigError
from bert_jax.models.layers.config import PaddingOffsetPositions
from bert_jax.models.model import build_network
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.params import paths
from bert_jax.train.optimizer import WEIGHT_DECAY


def test_parameter_counts_of_the_published_size():
    def count(*heads: str) -> int:
        abstract = build_network(MPNetConfig(), heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    assert count() == 108_895_872
    assert count("pooler") == 109_486_464
    assert MPNetConfig().max_length == 512


def test_other_padding_ids_are_refused():
    with pytest.raises(ConfigError, match=r"pad_token_id is 0, expected 1: .* counts positions"):
        MPNetConfig(positions=PaddingOffsetPositions(pad_token_id=0))


def test_next_sentence_prediction_is_refused():
    with pytest.raises(ConfigError, match="MPNet is pretrained without next-sentence"):
        Pretraining(model=MPNetConfig(), mask_token_id=30526)


def test_relative_bias_has_no_weight_decay():
    assert not WEIGHT_DECAY["encoder/relative_attention_bias/bias"]
