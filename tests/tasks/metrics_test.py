"""Tests metrics and confidence intervals of every kind of task.

Covers bert_jax/tasks/base.py and the modules of all kinds.
"""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.bootstrap import bootstrap_interval
from bert_jax.tasks.metrics.squad_decoding import Candidate, PredictedAnswer
from bert_jax.tasks.question_answering import question_scores
from bert_jax.tasks.registry import kind_named

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def predicted(text: str, no_answer_score: float = -1.0) -> PredictedAnswer:
    best = Candidate(text=text, start=0, end=len(text), score=0.0, probability=1.0)
    return PredictedAnswer(best=best, no_answer_score=no_answer_score, n_best=(best,))


def cases() -> dict[str, tuple]:
    """Returns kind -> (labels, references, predictions) of 40 examples."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 3, 40)
    logits = random.normal(size=(40, 3)) + np.eye(3)[classes]
    numbers = random.normal(size=40)
    tags = [[TAGS[k] for k in random.integers(5, size=6)] for _ in range(40)]
    guesses = [[tag if random.random() < 0.8 else "O" for tag in row] for row in tags]
    texts = random.choice(["red", "blue sky", "the sea"], 40).tolist()
    answers = [
        predicted(text, float(d)) for text, d in zip(texts, random.normal(size=40), strict=True)
    ]
    references = [[str(text)] for text in random.choice(["red", "sky", "sea"], 40)]
    return {
        "classification": (("a", "b", "c"), classes, logits),
        "regression": ((), numbers, numbers + random.normal(size=40)),
        "ranking": ((), random.random(40).round(), random.normal(size=40)),
        "token_classification": (TAGS, tags, guesses),
        "question_answering": ((), references, answers),
        "multiple_choice": ((), classes, logits),
    }


MAIN_METRICS = {
    "classification": ("accuracy", "f1_macro", "matthews", "roc_auc", "loss"),
    "regression": ("pearson", "spearman", "mse"),
    "ranking": ("average_precision", "accuracy"),
    "token_classification": ("f1", "f1_macro", "precision", "recall", "token_accuracy"),
    "question_answering": ("exact_match", "f1"),
    "multiple_choice": ("accuracy", "loss"),
}


@pytest.mark.parametrize("kind_name", MAIN_METRICS)
def test_interval_equals_bootstrap_of_all_metrics(kind_name):
    kind = kind_named(kind_name)
    labels, references, predictions = cases()[kind_name]
    metrics = kind.compute_metrics(references, predictions, labels)
    for metric in MAIN_METRICS[kind_name]:
        low, high = kind.metric_interval(metric, references, predictions, labels, n_resamples=20)
        assert low < metrics[metric] < high
        slow = bootstrap_interval(
            lambda r, p, metric=metric: kind.compute_metrics(r, p, labels)[metric],
            references,
            predictions,
            n_resamples=20,
        )
        assert (low, high) == pytest.approx(slow, abs=1e-9)


def test_unanswerable_questions_use_squad2_metrics():
    kind = kind_named("question_answering")
    references = [["red"], [], ["blue", "sky"], []]
    predictions = [predicted("red"), predicted("x", 2.0), predicted("the sky", 0.5)]
    predictions.append(predicted("y", -3))
    metrics = kind.compute_metrics(references, predictions, ())
    assert metrics["exact_match"] == metrics["exact"] == 50
    assert metrics["HasAns_exact"] == metrics["NoAns_exact"] == 50
    scores = question_scores(references, predictions, 1.0)
    assert scores.exact.tolist() == [1, 1, 1, 0]
    assert metrics["best_exact"] == 100 * scores.exact.mean()
    low, high = kind.metric_interval("exact_match", references, predictions, ())
    assert 0 <= low < 50 < high <= 100
    answerable = kind.compute_metrics([["red"]], predictions[:1], ())
    assert answerable == {"exact_match": 100, "f1": 100}


def test_invalid_references_and_metrics_are_refused():
    with pytest.raises(UserError, match="reference tags contain B-ORG, but the model chooses amo"):
        kind_named("token_classification").compute_metrics([["B-ORG"]], [["O"]], TAGS)
    with pytest.raises(UserError, match=r"\(choices\)"):
        kind_named("multiple_choice").compute_metrics(np.array([7]), np.zeros((1, 4)), ())
    kind = kind_named("classification")
    labels, references, logits = cases()["classification"]
    with pytest.raises(UserError, match=r"no confidence interval for the metric 'f2' .* accuracy"):
        kind.metric_interval("f2", references, logits, labels)
    with pytest.raises(UserError, match="no examples"):
        kind.metric_interval("f1", references[:0], logits[:0], labels)
