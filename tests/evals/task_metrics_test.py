"""The metrics of each kind of task, and their intervals against resampling everything."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.evals.bootstrap import bootstrap_interval
from bert_jax.evals.squad_decoding import Candidate, PredictedAnswer
from bert_jax.evals.task_metrics import question_scores, task_interval, task_metrics

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def answered(text: str, doubt: float = -1.0) -> PredictedAnswer:
    best = Candidate(text=text, start=0, end=len(text), score=0.0, probability=1.0)
    return PredictedAnswer(best=best, no_answer_score=doubt, n_best=(best,))


def cases() -> dict[str, tuple]:
    """Kind -> (labels, gold, outputs) of 40 examples."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 3, 40)
    logits = random.normal(size=(40, 3)) + np.eye(3)[classes]
    numbers = random.normal(size=40)
    tags = [[TAGS[k] for k in random.integers(5, size=6)] for _ in range(40)]
    guesses = [[tag if random.random() < 0.8 else "O" for tag in row] for row in tags]
    texts = random.choice(["red", "blue sky", "the sea"], 40).tolist()
    answers = [
        answered(text, float(d)) for text, d in zip(texts, random.normal(size=40), strict=True)
    ]
    gold = [[str(text)] for text in random.choice(["red", "sky", "sea"], 40)]
    return {
        "classification": (("a", "b", "c"), classes, logits),
        "regression": ((), numbers, numbers + random.normal(size=40)),
        "token_classification": (TAGS, tags, guesses),
        "question_answering": ((), gold, answers),
        "multiple_choice": ((), classes, logits),
    }


HEADLINES = {
    "classification": ("accuracy", "f1", "matthews", "roc_auc", "loss"),
    "regression": ("pearson", "spearman", "mse"),
    "token_classification": ("f1", "f1_macro", "precision", "recall", "token_accuracy"),
    "question_answering": ("exact_match", "f1"),
    "multiple_choice": ("accuracy", "loss"),
}


@pytest.mark.parametrize("kind", HEADLINES)
def test_intervals_are_those_of_the_metric_itself(kind):
    labels, gold, outputs = cases()[kind]
    found = task_metrics(kind, labels, gold, outputs)
    for metric in HEADLINES[kind]:
        low, high = task_interval(metric, kind, labels, gold, outputs, n_resamples=20)
        assert low < found[metric] < high
        slow = bootstrap_interval(
            lambda g, o, metric=metric: task_metrics(kind, labels, g, o)[metric],
            gold,
            outputs,
            n_resamples=20,
        )
        assert (low, high) == pytest.approx(slow, abs=1e-9)


def test_questions_without_an_answer_are_scored_by_squad_2():
    gold = [["red"], [], ["blue", "sky"], []]
    outputs = [answered("red"), answered("x", 2.0), answered("the sky", 0.5), answered("y", -3)]
    found = task_metrics("question_answering", (), gold, outputs)
    assert found["exact_match"] == found["exact"] == 50
    assert found["HasAns_exact"] == found["NoAns_exact"] == 50
    raised = task_metrics("question_answering", (), gold, outputs, no_answer_threshold=1.0)
    assert raised["exact_match"] == raised["best_exact"] == 75
    scores = question_scores(gold, outputs, 1.0)
    assert scores.exact.tolist() == [1, 1, 1, 0]
    low, high = task_interval(
        "exact_match", "question_answering", (), gold, outputs, no_answer_threshold=1.0
    )
    assert 0 <= low < 75 < high == 100
    answerable = task_metrics("question_answering", (), [["red"]], outputs[:1])
    assert answerable == {"exact_match": 100, "f1": 100}


def test_what_cannot_be_measured():
    with pytest.raises(UserError, match="reference tags hold B-ORG, but the model chooses among O"):
        task_metrics("token_classification", TAGS, [["B-ORG"]], [["O"]])
    with pytest.raises(UserError, match=r"row 0 has the class id 7, .* 4 \(choices\)"):
        task_metrics("multiple_choice", (), np.array([7]), np.zeros((1, 4)))
    labels, gold, outputs = cases()["classification"]
    with pytest.raises(UserError, match=r"no interval can be made for 'f2' .* metrics are accur"):
        task_interval("f2", "classification", labels, gold, outputs)
    with pytest.raises(UserError, match="no examples"):
        task_interval("f1", "classification", labels, gold[:0], outputs[:0])
