"""Compares the losses of bert_jax/tasks/losses.py and of each kind of task with float64 NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)
from bert_jax.tasks.losses import classification_loss
from bert_jax.tasks.question_answering import span_loss
from bert_jax.tasks.ranking import ranking_loss
from bert_jax.tasks.registry import head_spec
from bert_jax.tasks.regression import regression_loss
from bert_jax.tasks.token_classification import token_classification_loss

SIZES = {"batch_size": 7, "seq_length": 12, "vocab_size": 30, "num_padding_examples": 2}
LABELS = ("a", "b", "c", "d")
CLASS_WEIGHTS = (0.5, 2.0, 0.0, 1.0)


def make(head):
    batch = fine_tuning_batch(head, **SIZES)
    return batch, {name: jnp.asarray(field) for name, field in batch.items()}


def scores(*shape):
    return np.random.default_rng(1).normal(0, 3, shape)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def reference(logits, labels, weights, class_weights=None, smoothing=0.0):
    """Returns (sum of losses, sum of weights) by a loop over labels, from the definition."""
    classes = logits.shape[-1]
    per_class = np.ones(classes) if class_weights is None else np.asarray(class_weights)
    total = norm = 0.0
    for index in np.ndindex(labels.shape):
        target = np.full(classes, smoothing / classes)
        target[labels[index]] += 1 - smoothing
        total -= weights[index] * (per_class * target * log_softmax(logits[index])).sum()
        norm += weights[index] * per_class[labels[index]]
    return total, norm


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weights", [(), CLASS_WEIGHTS], ids=["plain", "weighted"])
def test_classification_loss(class_weights, smoothing):
    raw, batch = make(SequenceClassificationHead(labels=LABELS))
    logits = scores(7, 4)
    loss, metrics = classification_loss(
        {"logits": jnp.asarray(logits, jnp.float32)}, batch, class_weights, smoothing
    )
    labels, weights = raw["labels"], raw["example_weights"]
    total, norm = reference(logits, labels, weights, class_weights or None, smoothing)
    assert float(loss.total) == pytest.approx(total, rel=1e-6)
    assert float(loss.weight) == pytest.approx(norm, rel=1e-6)
    assert metrics["loss"] is loss
    accuracy = metrics["accuracy"]
    assert float(accuracy.total) == ((logits.argmax(-1) == labels) * weights).sum()
    assert float(accuracy.weight) == 5


def test_multiple_choice_has_one_class_per_choice():
    raw, batch = make(MultipleChoiceHead())
    logits = scores(7, 3)
    loss, _ = classification_loss({"logits": jnp.asarray(logits, jnp.float32)}, batch)
    total, norm = reference(logits, raw["labels"], raw["example_weights"])
    assert float(loss.total) == pytest.approx(total, rel=1e-6)
    assert float(loss.weight) == norm == 5


@pytest.mark.parametrize("class_weights", [(), CLASS_WEIGHTS], ids=["plain", "weighted"])
def test_token_classification_counts_first_tokens_of_words(class_weights):
    raw, batch = make(TokenClassificationHead(labels=LABELS))
    batch["token_label_weights"] = jnp.ones((7, 12), jnp.float32).at[:, ::3].set(0.0)
    weights = np.asarray(batch["token_label_weights"]) * raw["example_weights"][:, None]
    logits = scores(7, 12, 4)
    loss, metrics = token_classification_loss(
        {"logits": jnp.asarray(logits, jnp.float32)}, batch, class_weights, 0.1
    )
    labels = raw["token_labels"]
    total, norm = reference(logits, labels, weights, class_weights or None, 0.1)
    assert float(loss.total) == pytest.approx(total, rel=1e-6)
    assert float(loss.weight) == pytest.approx(norm, rel=1e-6)
    accuracy = metrics["accuracy"]
    assert float(accuracy.total) == ((logits.argmax(-1) == labels) * weights).sum()
    assert float(accuracy.weight) == weights.sum() == 5 * 8


def test_span_loss_is_the_mean_of_start_and_end():
    raw, batch = make(QuestionAnsweringHead())
    starts, ends = scores(7, 12), scores(7, 12)[::-1]
    # One example is made correct: at random there may be none.
    starts[1, raw["start_positions"][1]] = ends[1, raw["end_positions"][1]] = 20.0
    outputs = {
        "start_logits": jnp.asarray(starts, jnp.float32),
        "end_logits": jnp.asarray(ends, jnp.float32),
    }
    loss, metrics = span_loss(outputs, batch, (), 0.0)
    weights = raw["example_weights"]
    both = [reference(starts, raw["start_positions"], weights)]
    both += [reference(ends, raw["end_positions"], weights)]
    assert float(loss.total) == pytest.approx((both[0][0] + both[1][0]) / 2, rel=1e-6)
    assert float(loss.weight) == 5
    start_right = (starts.argmax(-1) == raw["start_positions"]) * weights
    end_right = (ends.argmax(-1) == raw["end_positions"]) * weights
    assert float(metrics["start_accuracy"].total) == start_right.sum()
    assert float(metrics["end_accuracy"].total) == end_right.sum()
    assert float(metrics["accuracy"].total) == (start_right * end_right).sum() > 0


def test_ranking_loss_is_the_binary_cross_entropy():
    raw, batch = make(RankingHead())
    logits, labels = scores(7), raw["label_values"]
    spec = head_spec(RankingHead())
    outputs = spec.make_outputs(jnp.asarray(logits, jnp.float32)[:, None], batch)
    loss, metrics = spec.compute_loss(outputs, batch, (), 0.0)
    probabilities = 1 / (1 + np.exp(-logits))
    losses = -labels * np.log(probabilities) - (1 - labels) * np.log(1 - probabilities)
    weights = raw["example_weights"]
    assert float(loss.total) == pytest.approx((losses * weights).sum(), rel=1e-5)
    assert float(loss.weight) == 5
    correct = ((logits > 0) == (labels >= 0.5)) * weights
    assert float(metrics["accuracy"].total) == correct.sum()
    large, _ = ranking_loss({"values": jnp.full(7, -200.0)}, batch, (), 0.0)
    assert float(large.total) == pytest.approx(200 * (labels * weights).sum(), rel=1e-5)


def test_regression_loss_is_the_squared_error():
    raw, batch = make(RegressionHead())
    values = scores(7)
    loss, metrics = regression_loss({"values": jnp.asarray(values, jnp.float32)}, batch, (), 0.0)
    squares = (values - raw["label_values"]) ** 2 * raw["example_weights"]
    assert float(loss.total) == pytest.approx(squares.sum(), rel=1e-6)
    assert float(loss.weight) == 5
    assert metrics["mse"] == loss
