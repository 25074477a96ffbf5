"""Explains a score of a sparse or multi-vector model by the tokens of query and text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.apps.search.encoder import MultiVectorTextEncoder, SparseTextEncoder
from bert_jax.apps.search.index import Hit
from bert_jax.text.tokenizer import Tokenizer


def explain_late_interaction(
    encoder: MultiVectorTextEncoder, query: str, hits: Sequence[Hit]
) -> dict[str, Any]:
    """Finds which token of each text matches each token of a query (MaxSim).

    The vectors are computed from the texts, without the pooling and compression of an index.

    Returns:
      {"query", "tokens", "hits": [{"id", "text", "score", "max_sim", "tokens", "similarities",
      "matches": [position of each query token's match]}]}; "similarities" is [query tokens, tokens
      of the text], and "max_sim" the score without compression.
    """
    embed = encoder.embedder
    (embedded,) = embed.embed([query], role="query")
    results: list[dict[str, Any]] = []
    for hit, text in zip(hits, embed.embed([hit.document.text for hit in hits]), strict=True):
        similarities = embedded.vectors @ text.vectors.T
        (score,) = embed.scores([embedded.vectors], [text.vectors])[0].tolist()
        results.append(
            {
                **_hit_to_json(hit),
                "max_sim": score,
                "tokens": embed.tokens(text),
                "similarities": similarities.tolist(),
                "matches": similarities.argmax(axis=1).tolist(),
            }
        )
    return {"query": query, "tokens": embed.tokens(embedded), "hits": results}


def explain_sparse(
    encoder: SparseTextEncoder, tokenizer: Tokenizer, query: str, hits: Sequence[Hit]
) -> dict[str, Any]:
    """Lists the tokens of the vocabulary that a query and texts have weights for.

    Returns:
      {"query", "terms", "hits": [{"id", "text", "score", "shared": [{"token", "query", "document",
      "product"}], "terms"}]}. "terms" are [{"token", "weight", "is_added"}], largest first; a term
      is added if the text does not have it. The products add up to the score.
    """
    query_terms = _terms(encoder, tokenizer, [query], is_query=True)[0]
    query_weights = {term["token"]: term["weight"] for term in query_terms}
    texts = [hit.document.text for hit in hits]
    results: list[dict[str, Any]] = []
    for hit, terms in zip(hits, _terms(encoder, tokenizer, texts, is_query=False), strict=True):
        shared = [
            {
                "token": term["token"],
                "query": query_weights[term["token"]],
                "document": term["weight"],
                "product": query_weights[term["token"]] * term["weight"],
            }
            for term in terms
            if term["token"] in query_weights
        ]
        shared.sort(key=lambda each: -each["product"])
        results.append({**_hit_to_json(hit), "shared": shared, "terms": terms})
    return {"query": query, "terms": query_terms, "hits": results}


def _terms(
    encoder: SparseTextEncoder, tokenizer: Tokenizer, texts: Sequence[str], *, is_query: bool
) -> list[list[dict[str, Any]]]:
    vectors = encoder.encode_queries(texts) if is_query else encoder.encode_documents(texts)
    terms: list[list[dict[str, Any]]] = []
    for weights, ids in zip(
        encoder.embedder.weights(vectors), tokenizer.encode_ids(list(texts)), strict=True
    ):
        own = {tokenizer.id_to_token(token_id) for token_id in np.unique(ids).tolist()}
        terms.append(
            [
                {"token": token, "weight": weight, "is_added": token not in own}
                for token, weight in weights.items()
            ]
        )
    return terms


def _hit_to_json(hit: Hit) -> dict[str, Any]:
    return {"id": hit.document.id, "text": hit.document.text, "score": hit.score}
