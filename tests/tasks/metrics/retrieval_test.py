"""Compares metrics of retrieval with hand-worked cases and with slow definitions."""

import math

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.retrieval import rank_documents, retrieval_metrics


def test_hand_worked_query():
    # Ranking: b (1), x (0), a (2), y (0); c (1) was not retrieved.
    relevance = {"q": {"a": 2, "b": 1, "c": 1, "x": 0}}
    run = {"q": {"b": 0.9, "x": 0.8, "a": 0.7, "y": 0.1}}
    metrics = retrieval_metrics(relevance, run)
    gain = 1 / math.log2(2) + 2 / math.log2(4)
    best = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    assert metrics["ndcg@10"] == pytest.approx(gain / best)
    assert metrics["mrr@10"] == 1.0
    assert metrics["recall@10"] == metrics["recall@100"] == pytest.approx(2 / 3)
    assert metrics["map@100"] == pytest.approx((1 / 1 + 2 / 3) / 3)


def test_queries_without_results_count_as_zero_and_unlabeled_ones_do_not():
    relevance = {"found": {"a": 1}, "missing": {"a": 1}, "without": {"a": 0}}
    metrics = retrieval_metrics(relevance, {"found": {"a": 1.0}, "without": {"b": 1.0}})
    assert set(metrics.values()) == {0.5}
    with pytest.raises(UserError, match="none of 1 queries has a relevant document"):
        retrieval_metrics({"q": {"a": 0}}, {})


def test_cutoffs_leave_out_later_documents():
    run = {"q": {f"{n:03}": -float(n) for n in range(200)}}
    metrics = retrieval_metrics({"q": {"010": 1, "099": 1, "100": 1}}, run)
    assert metrics["ndcg@10"] == metrics["mrr@10"] == metrics["recall@10"] == 0
    assert metrics["recall@100"] == pytest.approx(2 / 3)
    assert metrics["map@100"] == pytest.approx((1 / 11 + 2 / 100) / 3)


def test_equal_scores_are_ordered_as_in_trec_eval():
    assert rank_documents({"a": 1.0, "c": 1.0, "b": 2.0}) == ["b", "c", "a"]
    with pytest.raises(UserError, match="the score of the document 'a' is NaN"):
        rank_documents({"a": math.nan})


def test_random_runs_equal_slow_definitions():
    rng = np.random.default_rng(0)
    documents = [f"d{n}" for n in range(30)]
    relevance, run, slow = {}, {}, []
    for query in map(str, range(40)):
        grades = {d: int(rng.integers(0, 4)) for d in rng.choice(documents, 8, replace=False)}
        grades["d0"] = 1
        scores = {d: float(rng.integers(0, 9)) for d in rng.choice(documents, 20, replace=False)}
        relevance[query], run[query] = grades, scores
        slow.append(slow_metrics(grades, scores))
    metrics = retrieval_metrics(relevance, run)
    for name in ("ndcg@10", "mrr@10", "recall@10", "map@100"):
        assert metrics[name] == pytest.approx(np.mean([row[name] for row in slow]), abs=1e-12)


def slow_metrics(grades: dict[str, int], scores: dict[str, float]) -> dict[str, float]:
    """Computes the metrics from positions of single documents."""
    ranks = {d: 1 + sum((scores[o], o) > (scores[d], d) for o in scores if o != d) for d in scores}
    relevant = [d for d, grade in grades.items() if grade]
    gain = sum(grades.get(d, 0) / np.log2(1 + rank) for d, rank in ranks.items() if rank <= 10)
    ideal = np.sort(np.array([*grades.values()]))[::-1][:10]
    precisions = [
        sum(ranks.get(o, 999) <= ranks[d] for o in relevant) / ranks[d]
        for d in relevant
        if d in ranks
    ]
    best_rank = min((ranks.get(d, 999) for d in relevant), default=999)
    return {
        "ndcg@10": gain / (ideal / np.log2(np.arange(2, len(ideal) + 2))).sum(),
        "mrr@10": 1 / best_rank if best_rank <= 10 else 0.0,
        "recall@10": sum(ranks.get(d, 999) <= 10 for d in relevant) / len(relevant),
        "map@100": sum(precisions) / len(relevant),
    }
