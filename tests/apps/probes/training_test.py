"""Covers the training of probes: planted signals, code lengths, mixes, many probes at once."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from bert_jax.apps.probes import training
from bert_jax.apps.probes.training import (
    PORTIONS,
    Examples,
    ProbeConfig,
    evaluate_probes,
    mix_weights,
    online_code_length,
    standardize,
    train_probes,
)
from bert_jax.errors import UserError

CONFIG = ProbeConfig(learning_rate=3e-2, batch_size=32, max_epochs=6, min_updates_per_epoch=10)
CLASSES = 3
EACH_LAYER = np.eye(2, dtype=bool)


def planted(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns features of 2 layers, the second of which has the first labeling, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, (2, size)).astype(np.int32)
    features = rng.normal(size=(2, size, 6)).astype(np.float32)
    features[1, :, :CLASSES] += 6 * np.eye(CLASSES, dtype=np.float32)[labels[0]]
    return features, labels


@pytest.fixture(scope="module")
def data() -> list[Examples]:
    """Returns the splits."""
    pairs = [planted(size, seed) for seed, size in enumerate((300, 100, 200))]
    features = standardize(*(features for features, _ in pairs))
    return [
        Examples(jax.numpy.asarray(each), jax.numpy.asarray(labels))
        for each, (_, labels) in zip(features, pairs, strict=True)
    ]


def accuracy(params, masks, examples) -> np.ndarray:
    predictions = evaluate_probes(params, masks, examples).predictions
    return (predictions == np.asarray(examples.labels)).mean(-1)


def test_probes_of_each_layer_equal_mixes_of_one_layer(data):
    """Without masks there are no mixes, whose gamma would be trained, too."""
    config = dataclasses.replace(CONFIG, max_epochs=1, batch_size=300, learning_rate=1e-6)
    mixed, alone = (
        train_probes(data[0], data[1], masks, (0, 1), CLASSES, config)
        for masks in (EACH_LAYER, None)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), mixed, alone)
    expected = evaluate_probes(mixed, EACH_LAYER, data[2])
    found = evaluate_probes(alone, None, data[2])
    np.testing.assert_allclose(found.bits, expected.bits, atol=1e-2)


@pytest.mark.parametrize("hidden_size", [0, 8])
def test_planted_labels_are_recovered_and_random_ones_are_not(data, hidden_size):
    config = dataclasses.replace(CONFIG, hidden_size=hidden_size)
    params = train_probes(data[0], data[1], EACH_LAYER, (0, 1), CLASSES, config)
    found = accuracy(params, EACH_LAYER, data[2])
    assert found.shape == (2, 2, 2)
    assert (found[:, 1, 0] > 0.95).all()  # the second layer has the first labeling
    found[:, 1, 0] = 1 / CLASSES
    assert np.abs(found - 1 / CLASSES).max() < 0.12


def test_probes_trained_together_equal_those_trained_alone(data):
    masks = np.array([[True, False], [True, True]])
    together = train_probes(data[0], data[1], masks, (3, 4), CLASSES, CONFIG)
    bits = evaluate_probes(together, masks, data[2]).bits
    for s, seed in enumerate((3, 4)):
        for m in range(2):
            for t in range(2):
                train, dev, test = (Examples(x.features, x.labels[t : t + 1]) for x in data)
                mask = masks[m : m + 1]
                alone = train_probes(train, dev, mask, (seed,), CLASSES, CONFIG)
                expected = evaluate_probes(alone, mask, test).bits[0, 0, 0]
                np.testing.assert_allclose(bits[s, m, t], expected, atol=2e-3)


def test_code_length_equals_the_definition(data):
    train, dev, _ = data
    train_all = vars(training)["_train"]
    num_programs = train_all._cache_size()
    found = online_code_length(train, dev, EACH_LAYER, (0,), CLASSES, CONFIG)
    assert train_all._cache_size() <= num_programs + 1  # for blocks of all sizes
    ends = sorted({max(1, round(portion * 300)) for portion in PORTIONS})
    expected = np.full((2, 2), ends[0] * np.log2(3))
    for end, next_end in itertools.pairwise(ends):
        params = train_probes(train, dev, EACH_LAYER, (0,), CLASSES, CONFIG, num_examples=end)
        kernel, bias = (np.asarray(params["0"][name])[0] for name in ("kernel", "bias"))
        for layer in range(2):
            hidden = np.asarray(train.features)[layer, end:next_end]
            for t in range(2):
                gamma = float(np.asarray(params["gamma"])[0, layer, t])
                logits = gamma * hidden @ kernel[layer, t] + bias[layer, t]
                for row, label in enumerate(np.asarray(train.labels)[t, end:next_end]):
                    probabilities = np.exp(logits[row] - logits[row].max())
                    probabilities /= probabilities.sum()
                    expected[layer, t] -= np.log2(probabilities[label])
    np.testing.assert_allclose(found[0], expected, rtol=1e-3)
    # Only the planted labels can be compressed.
    assert found[0, 1, 0] < 0.6 * 300 * np.log2(3) < found[0].ravel()[[0, 1, 3]].min()


def test_the_first_examples_alone_are_used(data):
    train, dev, _ = data
    features = train.features.at[:, 50:].set(0)
    changed = Examples(features, train.labels.at[:, 50:].set(0))
    first, second = (
        train_probes(each, dev, EACH_LAYER, (0,), CLASSES, CONFIG, num_examples=50)
        for each in (train, changed)
    )
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_a_mix_prefers_the_layer_with_the_labels(data):
    masks = np.array([[True, False], [True, True]])
    params = train_probes(data[0], data[1], masks, (0,), CLASSES, CONFIG)
    weights = mix_weights(params, masks)[0, :, 0]
    np.testing.assert_array_equal(weights[0], [1, 0])
    assert weights[1, 1] > 0.6 and weights[1].sum() == pytest.approx(1)


def test_labels_that_train_lacks_are_wrong(data):
    params = train_probes(data[0], data[1], EACH_LAYER, (0,), CLASSES, CONFIG)
    unknown = Examples(data[2].features, data[2].labels * 0 - 1)
    found = evaluate_probes(params, EACH_LAYER, unknown)
    assert (found.bits == 0).all() and (found.predictions >= 0).all()


def test_features_that_are_not_finite():
    values = np.zeros((2, 3, 4), np.float32)
    values[1, 2, 3] = np.nan
    with pytest.raises(UserError, match="layer 1 contain NaN"):
        standardize(np.ones((2, 5, 4), np.float32), values)


def test_fewer_examples_than_classes(data):
    few = Examples(data[0].features[:, :2], data[0].labels[:, :2])
    with pytest.raises(UserError, match="2 training examples are fewer than the 3 classes"):
        train_probes(few, data[1], EACH_LAYER, (0,), CLASSES, CONFIG)


def test_standardization():
    values = np.random.default_rng(0).normal(3, 2, (2, 50, 4)).astype(np.float32)
    values[0, :, 0] = 7  # a constant feature
    train, dev = standardize(values, values[:, :5])
    np.testing.assert_allclose(train.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(1)[0, 1:], 1, atol=1e-4)
    np.testing.assert_array_equal(dev, train[:, :5])
