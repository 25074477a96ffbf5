"""Covers bert_jax/models/deberta_v2/: published sizes and parameter counts, buckets, FLOPs."""

import math

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.deberta_v2.model import log_buckets, relative_rows
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.text.compatibility import check_embedding_rows


@pytest.mark.parametrize(
    ("size", "expected"),
    [  # published as 22M, 44M, 86M and 304M, without the word embeddings
        ("xsmall", 70_682_112),
        ("base", 183_831_552),
        pytest.param("small", 141_304_320, marks=pytest.mark.slow),
        pytest.param("large", 434_012_160, marks=pytest.mark.slow),
    ],
)
def test_parameter_counts(size, expected):
    abstract = build_network(DebertaV2Config.from_size(size)).abstract()
    assert sum(math.prod(leaf.shape) for leaf in paths.flatten(abstract).values()) == expected


def test_default_values_are_those_of_base():
    assert DebertaV2Config.from_size("base") == DebertaV2Config()


@pytest.mark.parametrize("buckets, max_position", [(8, 40), (32, 128), (64, 300), (256, 512)])
def test_buckets_are_those_of_hugging_face(buckets, max_position):
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    differences = np.arange(-1000, 1001)
    expected = modeling.make_log_bucket_position(
        torch.from_numpy(differences), buckets, max_position
    )
    found = log_buckets(differences, buckets, max_position)
    np.testing.assert_array_equal(found, expected.long().numpy())


def test_relative_rows_ascend_and_stay_in_the_table():
    rows = relative_rows(700, DebertaV2Config())
    assert rows.shape == (1399,) and rows[699] == 256
    assert (np.diff(rows) >= 0).all() and rows.min() == 0 and rows.max() == 511
    np.testing.assert_array_equal(relative_rows(3, DebertaV2Config()), [254, 255, 256, 257, 258])


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"position_buckets": 2}, "model.position_buckets"),
        ({"max_relative_positions": 129}, "max_relative_positions is 129, expected more than half"),
    ],
)
def test_unusable_buckets_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        DebertaV2Config(**fields)


def test_flops_include_the_products_with_relative_positions():
    bert = 12 * (8 * 768**2 + 4 * 768 * 3072 + 4 * 512 * 768)
    assert DebertaV2Config().encoder_flops(512) == bert + 12 * 4 * 1023 * 768


def test_published_table_has_unused_rows():
    check_embedding_rows(128_001, 128_100, "published", "expected no error")
