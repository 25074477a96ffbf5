"""Covers bert_jax/tasks/metrics/sentence_embeddings.py, predict/evaluate_embeddings.py and others.

Covers bert_jax/tasks/metrics/sentence_embeddings.py, predict/evaluate_embeddings.py and
embed-evaluate.

The best thresholds are compared with a search over all of them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.tasks.metrics.sentence_embeddings import (
    pair_classification_metrics,
    pairwise_similarity,
    similarity_metrics,
    vector_classification_metrics,
)

FIRST = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
SECOND = np.array([[4.0, 3.0], [1.0, 2.0], [-2.0, 0.0]])


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        ("cosine", [0.96, 0.0, -1.0]),
        ("dot", [24.0, 0.0, -2.0]),
        ("euclidean", [-np.sqrt(2), -np.sqrt(5), -3.0]),
        ("manhattan", [-2.0, -3.0, -3.0]),
    ],
)
def test_similarities_of_pairs(similarity, expected):
    np.testing.assert_allclose(pairwise_similarity(FIRST, SECOND, similarity), expected)


def test_spearman_uses_mean_ranks_for_ties():
    metrics = similarity_metrics(np.array([1.0, 2.0, 2.0, 4.0]), np.array([0.1, 0.2, 0.3, 0.9]))
    assert metrics["spearman"] == pytest.approx(4.5 / np.sqrt(4.5 * 5))  # ranks 1, 2.5, 2.5, 4
    with pytest.raises(UserError, match="similarities"):
        similarity_metrics(np.array([1.0, 2.0]), np.array([0.1, np.nan]))


def test_best_thresholds_are_those_of_a_search():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    similarities = np.round(0.3 * labels + rng.normal(size=60), 1)  # with ties
    metrics = pair_classification_metrics(labels, similarities)
    for name, score in (("accuracy", accuracy_score), ("f1", f1_score)):
        best = max(float(score(labels, similarities >= cut)) for cut in similarities)
        assert metrics[name] == pytest.approx(best)
        chosen = similarities >= metrics[f"{name}_threshold"]
        assert float(score(labels, chosen)) == pytest.approx(best)
    perfect = pair_classification_metrics(np.array([0, 1, 1]), np.array([0.1, 0.5, 0.9]))
    assert perfect["average_precision"] == 1.0 and perfect["f1_threshold"] == pytest.approx(0.3)
    with pytest.raises(UserError, match="all 2 pairs have the same label"):
        pair_classification_metrics(np.ones(2, int), np.array([0.1, 0.2]))


def test_logistic_regression_separates_clusters_of_vectors():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3)) + np.repeat([[0.0], [9.0]], 20, axis=0)
    labels = ["a"] * 20 + ["b"] * 20
    metrics = vector_classification_metrics(vectors[::2], labels[::2], vectors[1::2], labels[1::2])
    assert metrics == {"accuracy": 1.0, "f1_macro": 1.0}
    with pytest.raises(UserError, match="all training examples have the label 'a'"):
        vector_classification_metrics(vectors[:5], labels[:5], vectors, labels)


def test_command_evaluates_each_form_of_task(tmp_path: Path, capsys):
    model = str(tmp_path / "exported")
    export(small_model(tmp_path / "vocabulary"), Path(model))
    texts = ["the old man", "a net", "the sea", "the man sings", "a sea", "old net"]
    rows = [
        f"{a},{b},{i},{'yes' if i % 2 else 'no'}\n"
        for i, (a, b) in enumerate(zip(texts, texts[1:] + texts[:1], strict=True))
    ]
    file = tmp_path / "pairs.csv"
    file.write_text("a,b,score,label\n" + "".join(rows).replace(",0,", ",0.5,"))
    pairs = ["embed-evaluate", model, "--file", str(file), "--text", "a"]
    output = tmp_path / "results.json"
    flags = ["--text-pair", "b", "--label", "score", "--output", str(output)]
    assert main([*pairs, *flags]) == 0
    (scores,) = json.loads(output.read_text())["results"].values()
    assert scores["evaluation"] == "sts" and scores["num_examples"] == 6
    assert f"spearman {scores['metrics']['spearman']:.4f}" in capsys.readouterr().out
    assert main([*pairs, "--text-pair", "b", "--label", "label"]) == 0
    assert "pair classification, 6 examples: average_precision" in capsys.readouterr().out
    assert main([*pairs, "--train", str(file), "--label", "label"]) == 0
    assert "classification, 6 examples: accuracy" in capsys.readouterr().out
    assert main([*pairs, "--label", "label"]) == 1
    assert "has no split 'train'" in capsys.readouterr().err
    assert main(["embed-evaluate", model]) == 2
    assert "expected either --glue FOLDER, or --file FILE" in capsys.readouterr().err
