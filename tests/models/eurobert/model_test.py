"""Covers bert_jax/models/eurobert/: published sizes, grouped-query attention, its kernels."""

import math

import pytest

from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.model import build_network
from bert_jax.params import paths


@pytest.mark.parametrize(
    ("size", "encoder", "masked_lm"),
    [  # the counts of the published folders have the table of the masked-LM head
        ("210m", 211_766_016, 310_266_624),
        pytest.param("610m", 607_874_688, 755_625_600, marks=pytest.mark.slow),
        pytest.param("2.1b", 2_107_590_912, 2_403_092_736, marks=pytest.mark.slow),
    ],
)
def test_parameter_counts(size, encoder, masked_lm):
    def count(*heads: str) -> int:
        abstract = build_network(EuroBertConfig.from_size(size), heads).abstract()
        return sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values())

    assert count() == encoder
    assert count("masked_lm") == masked_lm


def test_published_values():
    assert EuroBertConfig.from_size("210m") == EuroBertConfig()
    config = EuroBertConfig.from_size("610m")
    assert (config.head_width, config.key_value_width, config.max_length) == (64, 384, 8192)
    # Keys and values have a third of the kernels of queries and outputs.
    attention = 2 * 1152 * (1152 + 384)
    assert config.kernel_params_per_layer == attention + 3 * 1152 * 4096
