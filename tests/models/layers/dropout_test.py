"""Covers bert_jax/models/layers/dropout.py: rate, independence and scale over many elements."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.dropout import dropout, keep_mask, make_dropout_seeds, quantized_rate

SHAPE = (64, 128, 128)
COUNT = 64 * 128 * 128


def masks(key: int, sites: int = 2) -> list[np.ndarray]:
    made = make_dropout_seeds(jax.random.key(key), (sites,))
    return [np.asarray(keep_mask(SHAPE, 0.1, made[site])) for site in range(sites)]


def assert_fraction(found: float, expected: float, count: int) -> None:
    deviation = (expected * (1 - expected) / count) ** 0.5
    assert abs(found - expected) < 4.5 * deviation


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_rate(rate):
    seed = make_dropout_seeds(jax.random.key(1), ())
    found = 1 - np.asarray(keep_mask(SHAPE, rate, seed)).mean()
    assert_fraction(found, quantized_rate(rate), COUNT)
    assert quantized_rate(rate) == pytest.approx(rate, abs=1 / 512)


def test_rate_that_rounds_to_zero_is_refused():
    with pytest.raises(ValueError, match=r"the smallest rate is 0\.0039"):
        dropout(jnp.ones((4, 4)), 0.001, make_dropout_seeds(jax.random.key(1), ()))


@pytest.mark.parametrize(
    "columns", [1, 3, 128, 130, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))]
)
def test_rate_holds_for_any_number_of_columns(columns):
    seed = make_dropout_seeds(jax.random.key(11), ())
    mask = np.asarray(keep_mask((500_000 // columns, columns), 0.25, seed))
    for column in range(columns):
        assert_fraction(1 - mask[:, column].mean(), 0.25, mask.shape[0])


def test_masks_of_seeds_sites_and_adjacent_elements_are_independent():
    (first, second), (other, _) = masks(0), masks(1)
    both_dropped = quantized_rate(0.1) ** 2
    for a, b in [(first, second), (first, other)]:
        assert_fraction((~a & ~b).mean(), both_dropped, COUNT)
    for axis in range(3):
        shifted = np.roll(first, 1, axis=axis)
        assert_fraction((~first & ~shifted).mean(), both_dropped, COUNT)
    # The four bytes of one hash are used for elements a quarter of a row apart.
    for quarters in (1, 2, 3):
        shifted = np.roll(first, 32 * quarters, axis=2)
        assert_fraction((~first & ~shifted).mean(), both_dropped, COUNT)


def test_mask_has_no_row_or_column_pattern():
    """Tests the corners of rectangles, which share the keys of two rows and two columns."""
    p = quantized_rate(0.1)
    centred = (~masks(2)[0] - p) / (p * (1 - p)) ** 0.5
    for rows, columns in [(1, 1), (1, 32), (5, 3), (64, 64), (17, 96)]:
        pairs = centred * np.roll(centred, columns, axis=2)
        corners = (pairs * np.roll(pairs, rows, axis=1)).mean()
        assert abs(corners) * COUNT**0.5 < 4.5


def test_rate_is_the_same_for_all_examples_of_a_batch():
    rows = (~masks(3)[0]).reshape(64 * 128, 128).sum(1)
    # Binomial(128, p): chi-square over the rows has mean 1 for each degree of freedom.
    p = quantized_rate(0.1)
    chi_square = ((rows - 128 * p) ** 2 / (128 * p * (1 - p))).mean()
    assert chi_square == pytest.approx(1.0, abs=5 * (2 / len(rows)) ** 0.5)


def test_kept_elements_are_scaled_to_preserve_the_mean():
    seed = make_dropout_seeds(jax.random.key(5), ())
    dropped = np.asarray(dropout(jnp.ones(SHAPE), 0.2, seed))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / (1 - quantized_rate(0.2)))}
    assert dropped.mean() == pytest.approx(1.0, abs=0.002)


def test_no_seed_means_no_dropout():
    x = jnp.ones((3, 3))
    assert dropout(x, 0.5, None) is x


def test_gradient_has_the_mask_of_the_forward_pass():
    seed = make_dropout_seeds(jax.random.key(7), ())
    x = jnp.ones((1000,))
    gradient = jax.grad(lambda x: jnp.sum(dropout(x, 0.3, seed)))(x)
    np.testing.assert_array_equal(gradient, dropout(x, 0.3, seed))


@pytest.mark.parametrize("rate", [0.0, 1 / 256, 0.1, 0.5, 255 / 256])
def test_rate_in_config_is_applied(rate):
    dataclasses.replace(
        BertConfig.from_size("tiny"), hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
    )
    assert 0 <= quantized_rate(rate) < 1 and bool(quantized_rate(rate)) == bool(rate)


@pytest.mark.parametrize("rate", [-0.1, 0.001, 0.999, 1.0])
def test_config_refuses_rate_that_cannot_be_applied(rate):
    message = rf"attention_probs_dropout_prob is {rate}, expected 0, or a rate"
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(BertConfig.from_size("tiny"), attention_probs_dropout_prob=rate)
