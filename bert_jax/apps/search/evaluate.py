"""Evaluates retrieval: BM25, encoders of all kinds, both fused, and a cross-encoder."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
from tqdm import tqdm

from bert_jax.apps.search.documents import RetrievalSet
from bert_jax.apps.search.encoder import TextEncoder
from bert_jax.apps.search.nearest import NO_ROW, Bm25, Neighbors, fuse_ranks
from bert_jax.apps.search.stored_vectors import in_memory
from bert_jax.predict.reranker import Reranker
from bert_jax.tasks.metrics.bootstrap import randomization_test
from bert_jax.tasks.metrics.retrieval import retrieval_outcomes

DEPTH = 100
"""Documents of a query that are retrieved, evaluated and fused."""
_GROUP_SIZE = 1024

Outcomes = dict[str, np.ndarray]
"""Name of a metric -> its value for each query; see `RETRIEVAL_METRICS`."""


class Difference(NamedTuple):
    """Holds the paired comparison of a metric of two systems.

    Attributes:
      systems: their names.
      difference: the mean of the first minus that of the second.
      p_value: of no difference, by a randomization test over the queries (Smucker et al. 2007).
    """

    systems: tuple[str, str]
    difference: float
    p_value: float


def evaluate_retrieval(
    retrieval_set: RetrievalSet,
    encoders: Mapping[str, TextEncoder],
    reranker: Reranker | None = None,
    *,
    num_candidates: int = DEPTH,
) -> dict[str, Outcomes]:
    """Computes the metrics of each way of ranking, for each query.

    Args:
      encoders: what rows call them -> encoders of any kind; none to evaluate BM25 alone.
      reranker: scores the best documents of the first encoder, or of BM25 without an encoder.
      num_candidates: documents of a query that are reranked.

    Returns:
      "bm25", each encoder, and it fused with BM25: "hybrid", or with several encoders "NAME+bm25";
      and "reranked".

    Raises:
      UserError: a vector is not finite.
      MissingExtraError: bm25s is not installed.
    """
    texts = [document.text for document in retrieval_set.documents]
    queries = list(retrieval_set.queries.values())
    # One more than is evaluated, because the document of the query itself may be left out.
    depth = min(DEPTH + 1, len(texts))
    found = {"bm25": _results(retrieval_set, Bm25(texts).search(queries, depth))}
    for name, encoder in encoders.items():
        documents = in_memory(encoder.kind, _encode(encoder, "documents", texts))
        found_by_vectors = documents.exact(_encode(encoder, "queries", queries), depth)
        found[name] = _results(retrieval_set, found_by_vectors)
        hybrid = "hybrid" if len(encoders) == 1 else f"{name}+bm25"
        found[hybrid] = fuse_ranks([found[name], found["bm25"]], DEPTH)
    if reranker is not None:
        candidates = found[next(iter(encoders), "bm25")].rows[:, :num_candidates]
        found["reranked"] = _rerank(reranker, queries, texts, candidates)
    return {
        name: retrieval_outcomes(retrieval_set.relevance, _to_run(retrieval_set, neighbors))
        for name, neighbors in found.items()
    }


def compare_systems(outcomes: Mapping[str, Outcomes], metric: str) -> list[Difference]:
    """Compares a metric of each system with that of each system before it."""
    return [
        Difference((later, earlier), float(values.mean()), randomization_test(values))
        for earlier, later in itertools.combinations(outcomes, 2)
        for values in [outcomes[later][metric] - outcomes[earlier][metric]]
    ]


def sample_queries(retrieval_set: RetrievalSet, num_queries: int, seed: int = 0) -> RetrievalSet:
    """Returns a set with at most `num_queries` random queries and all documents."""
    if num_queries >= len(retrieval_set.queries):
        return retrieval_set
    # Sorted, so that a sample does not depend on the order of the file.
    names = sorted(retrieval_set.queries)
    chosen = np.random.default_rng(seed).choice(len(names), num_queries, replace=False)
    queries = {names[i]: retrieval_set.queries[names[i]] for i in sorted(chosen.tolist())}
    relevance = {name: retrieval_set.relevance[name] for name in queries}
    return dataclasses.replace(retrieval_set, queries=queries, relevance=relevance)


def _encode(
    encoder: TextEncoder, role: Literal["documents", "queries"], texts: Sequence[str]
) -> Any:
    """Returns the vectors of all texts, of the type that the encoder returns."""
    encode = encoder.encode_documents if role == "documents" else encoder.encode_queries
    groups: list[Any] = []
    with tqdm(desc=role, total=len(texts), unit=" texts", disable=None) as bar:
        for start in range(0, len(texts), _GROUP_SIZE):
            group = texts[start : start + _GROUP_SIZE]
            groups.append(encode(group))
            bar.update(len(group))
    match encoder.kind:
        case "dense":
            return np.concatenate(groups)
        case "sparse":
            return scipy.sparse.vstack(groups, format="csr")
        case "multi_vector":
            return [vectors for group in groups for vectors in group]


def _results(retrieval_set: RetrievalSet, found: Neighbors) -> Neighbors:
    """Returns the first `DEPTH` results of each query, without the query's own document."""
    row_of_id: dict[str, int] = {}
    if retrieval_set.ignores_own_document:
        row_of_id = {document.id: row for row, document in enumerate(retrieval_set.documents)}
    own = np.array([row_of_id.get(query, NO_ROW) for query in retrieval_set.queries], np.int64)
    left_out = (found.rows == own[:, None]) | (found.rows == NO_ROW)
    # A stable sort moves what is left out to the end and keeps the ranking of the others.
    order = np.argsort(left_out, axis=1, kind="stable")[:, :DEPTH]
    rows = np.where(left_out, NO_ROW, found.rows)
    scores = np.where(left_out, 0, found.scores)
    return Neighbors(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))


def _rerank(
    reranker: Reranker, queries: Sequence[str], texts: Sequence[str], candidates_QK: np.ndarray
) -> Neighbors:
    # Documents without text, which a cross-encoder cannot read, come last.
    has_text_N = np.array([bool(text.strip()) for text in texts])
    is_scored_QK = (candidates_QK != NO_ROW) & has_text_N[candidates_QK]
    pairs: list[tuple[str, str]] = [
        (queries[query], str(texts[candidates_QK[query, rank]]))
        for query, rank in np.argwhere(is_scored_QK).tolist()
    ]
    scores_QK = np.full(candidates_QK.shape, -np.inf)
    with tqdm(desc="reranking", total=len(pairs), unit=" pairs", disable=None) as bar:
        scores_QK[is_scored_QK] = reranker.score_pairs(pairs, bar.update)
    order = np.argsort(-scores_QK, axis=1, kind="stable")
    return Neighbors(
        np.take_along_axis(candidates_QK, order, 1), np.take_along_axis(scores_QK, order, 1)
    )


def _to_run(retrieval_set: RetrievalSet, found: Neighbors) -> dict[str, dict[str, float]]:
    ids = [document.id for document in retrieval_set.documents]
    return {
        query: {
            ids[row]: score
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
            if row != NO_ROW
        }
        for query, rows, scores in zip(retrieval_set.queries, found.rows, found.scores, strict=True)
    }
