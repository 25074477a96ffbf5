"""Tests classification baselines by hand, and on a task that counting words solves."""

import pytest

from bert_jax.tasks.metrics.text_baselines import majority_accuracy, tfidf_accuracy


def test_majority_baseline_is_the_most_common_train_class():
    assert majority_accuracy(["a", "b", "b"], ["b", "a", "a", "b", "c"]) == pytest.approx(2 / 5)


def test_tfidf_classifies_texts_by_their_words():
    train = (["red apple", "green leaf", "red rose", "green tree"] * 5, ["r", "g", "r", "g"] * 5)
    assert tfidf_accuracy(train, (["red tree", "a green rose"], ["r", "g"])) == 1.0
