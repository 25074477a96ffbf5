"""Computes the metrics of retrieval: nDCG, MRR, recall and MAP, with the definitions of trec_eval.

The gain of a document is its relevance (not 2^relevance - 1), and the document at rank r is
discounted by log2(r + 1). Documents with equal scores are ordered by id, the largest id first, as
trec_eval does. All metrics are between 0 and 1; a larger value is better.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError

Relevance = Mapping[str, Mapping[str, int]]
"""Query id -> document id -> relevance; documents that are missing have relevance 0."""
Run = Mapping[str, Mapping[str, float]]
"""Query id -> document id -> score of each document that was retrieved."""


def retrieval_metrics(relevance: Relevance, run: Run) -> dict[str, float]:
    """Averages the metrics of `RETRIEVAL_METRICS` over queries; see `retrieval_outcomes`."""
    return {
        name: float(values.mean()) for name, values in retrieval_outcomes(relevance, run).items()
    }


def retrieval_outcomes(relevance: Relevance, run: Run) -> dict[str, np.ndarray]:
    """Computes the metrics of `RETRIEVAL_METRICS` for each query with a relevant document.

    A query that is missing in `run` counts as 0.

    Returns:
      Name -> float64 [queries], in the order of `relevance`.

    Raises:
      UserError: no query has a relevant document, or a score is NaN.
    """
    with_relevant = {query: grades for query, grades in relevance.items() if _relevant(grades)}
    if not with_relevant:
        raise UserError(
            f"none of {len(relevance):,} queries has a relevant document; expected at least one "
            "relevance above 0"
        )
    rankings = {query: rank_documents(run.get(query, {})) for query in with_relevant}
    return {
        name: np.array([metric(rankings[query], with_relevant[query]) for query in with_relevant])
        for name, metric in RETRIEVAL_METRICS.items()
    }


def rank_documents(scores: Mapping[str, float]) -> list[str]:
    """Sorts the documents of a query by score, the best first; see above for equal scores.

    Raises:
      UserError: a score is NaN.
    """
    for document, score in scores.items():
        if math.isnan(score):
            raise UserError(f"the score of the document {document!r} is NaN; expected a number")
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], cutoff: int) -> float:
    """Computes the normalized discounted cumulative gain of the first `cutoff` documents."""
    # TREC uses negative grades for junk; trec_eval counts them as not relevant.
    gains = [max(grades.get(document, 0), 0) for document in ranking[:cutoff]]
    best_gains = sorted(_relevant(grades).values(), reverse=True)[:cutoff]
    return _discounted_gain(gains) / _discounted_gain(best_gains)


def reciprocal_rank(ranking: Sequence[str], grades: Mapping[str, int], cutoff: int) -> float:
    """Computes 1 / rank of the first relevant document; 0 if it is not among the first `cutoff`."""
    for rank, document in enumerate(ranking[:cutoff], start=1):
        if grades.get(document, 0) > 0:
            return 1 / rank
    return 0.0


def recall(ranking: Sequence[str], grades: Mapping[str, int], cutoff: int) -> float:
    """Computes the fraction of the relevant documents that are among the first `cutoff`."""
    relevant = _relevant(grades)
    return sum(document in relevant for document in ranking[:cutoff]) / len(relevant)


def average_precision(ranking: Sequence[str], grades: Mapping[str, int], cutoff: int) -> float:
    """Averages the precision at the rank of each relevant document among the first `cutoff`.

    The sum is divided by the number of all relevant documents, as in trec_eval's `map_cut`.
    """
    relevant = _relevant(grades)
    num_found, total = 0, 0.0
    for rank, document in enumerate(ranking[:cutoff], start=1):
        if document in relevant:
            num_found += 1
            total += num_found / rank
    return total / len(relevant)


RETRIEVAL_METRICS: dict[str, Callable[[Sequence[str], Mapping[str, int]], float]] = {
    "ndcg@10": lambda ranking, grades: ndcg(ranking, grades, 10),
    "mrr@10": lambda ranking, grades: reciprocal_rank(ranking, grades, 10),
    "recall@10": lambda ranking, grades: recall(ranking, grades, 10),
    "recall@100": lambda ranking, grades: recall(ranking, grades, 100),
    "map@100": lambda ranking, grades: average_precision(ranking, grades, 100),
}
"""Name -> function of the ranked documents and the relevance of documents, for one query."""


def _relevant(grades: Mapping[str, int]) -> dict[str, int]:
    return {document: grade for document, grade in grades.items() if grade > 0}


def _discounted_gain(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
