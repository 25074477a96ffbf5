"""Orders the documents that a search found again, by the scores of a cross-encoder."""

from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.predict.reranker import Reranker
from bert_jax.search.index import Hit


def rerank_hits(
    reranker: Reranker,
    queries: Sequence[str],
    candidates: Sequence[Sequence[Hit]],
    top_k: int,
    on_progress: Callable[[int], object] | None = None,
) -> list[list[Hit]]:
    """Returns the best documents of each query among its candidates, with the reranker's scores.

    The pairs of all queries are scored together, so that batches are full. Equal scores keep the
    order of the candidates.

    Args:
      top_k: number of documents for each query.
      on_progress: called after each batch with the number of pairs that it finished.
    """
    pairs = [
        (query, hit.document.text)
        for query, hits in zip(queries, candidates, strict=True)
        for hit in hits
    ]
    scores = reranker.score_pairs(pairs, on_progress)
    ends = np.cumsum([len(hits) for hits in candidates])
    reranked = []
    for hits, hit_scores in zip(candidates, np.split(scores, ends[:-1]), strict=True):
        order = np.argsort(-hit_scores, kind="stable")[:top_k].tolist()
        reranked.append([hits[i]._replace(score=float(hit_scores[i])) for i in order])
    return reranked
