"""Covers bert_jax/apps/search/mining.py and evaluate.py with slow references."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.search.documents import Document, RetrievalSet
from bert_jax.apps.search.encoder import EncoderId
from bert_jax.apps.search.evaluate import evaluate_retrieval, sample_queries
from bert_jax.apps.search.mining import HardNegatives, find_hard_negatives
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.tasks.metrics.vectors import normalize_vectors

QUERIES = [f"query {n}" for n in range(8)]
TEXTS = [f"text {n}" for n in range(40)]
# Query 0 has three positives, in pairs that are not next to each other.
PAIRS = [*zip(QUERIES, TEXTS, strict=False), (QUERIES[0], TEXTS[20]), (QUERIES[0], TEXTS[21])]


class RandomEncoder:
    """Embeds texts as fixed random unit vectors; a query is near to its first text."""

    id = EncoderId("random", "random")
    kind: EmbeddingKind = "dense"

    def __init__(self, *args: object, **settings: object):
        vectors = np.random.default_rng(0).normal(size=(len(TEXTS), 6))
        self._vectors = dict(zip(TEXTS, vectors, strict=True))
        for query, vector in zip(QUERIES, vectors, strict=False):
            self._vectors[query] = vector + 0.8 * np.random.default_rng(1).normal(size=6)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return normalize_vectors(
            np.stack([self._vectors[text] for text in texts]).astype(np.float32)
        )

    encode_documents = encode_queries


def slow_negatives(query: str, config: HardNegatives) -> list[str]:
    """Returns all candidates of a query, in order, by the definition."""
    encoder = RandomEncoder()
    score = {t: float(encoder.encode_queries([query])[0] @ encoder.encode_queries([t])[0])
             for t in TEXTS}  # fmt: skip
    positives = {positive for anchor, positive in PAIRS if anchor == query}
    smallest = min(score[positive] for positive in positives)
    limits = [1.0 if config.max_score is None else config.max_score]
    if config.absolute_margin is not None:
        limits.append(smallest - config.absolute_margin)
    if config.relative_margin is not None:
        limits.append(smallest - abs(smallest) * config.relative_margin)
    lowest = -1.0 if config.min_score is None else config.min_score
    allowed = [t for t in TEXTS if t not in positives and lowest <= score[t] <= min(limits)]
    ranked = sorted(allowed, key=lambda text: -score[text])
    return ranked[config.range_min : config.num_candidates(3)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_negatives": 2, "range_min": 3},
        {"range_max": 4, "num_negatives": 4},
        {"absolute_margin": 0.3},
        {"relative_margin": 0.5, "range_max": 30},
        {"max_score": 0.2, "min_score": -0.1, "num_negatives": 5},
    ],
)
def test_negatives_equal_the_definition(fields):
    config = HardNegatives(**fields)
    triples = find_hard_negatives(PAIRS, RandomEncoder(), config, TEXTS)
    for query in QUERIES:
        expected = slow_negatives(query, config)[: config.num_negatives]
        for anchor, positive in PAIRS:
            if anchor == query:
                found = [t.negative for t in triples if t[:2] == (query, positive)]
                assert found == expected
    assert triples and [t.anchor for t in triples] == sorted(t.anchor for t in triples)


def test_random_negatives_are_a_sample_of_the_candidates():
    config = HardNegatives(sampling="random", range_max=15, num_negatives=4)
    triples = find_hard_negatives(PAIRS, RandomEncoder(), config, TEXTS)
    for query in QUERIES[1:]:
        found = [triple.negative for triple in triples if triple.anchor == query]
        assert len(set(found)) == 4 and {*found} < {*slow_negatives(query, config)}
    assert triples == find_hard_negatives(PAIRS, RandomEncoder(), config, TEXTS)
    other = HardNegatives(sampling="random", range_max=15, num_negatives=4, seed=1)
    assert triples != find_hard_negatives(PAIRS, RandomEncoder(), other, TEXTS)


def test_without_a_corpus_negatives_are_positives_of_other_queries():
    triples = find_hard_negatives(PAIRS, RandomEncoder(), HardNegatives())
    positives = {positive for _, positive in PAIRS}
    assert {triple.negative for triple in triples} <= positives
    # Too few texts for as many negatives as were asked for.
    few = find_hard_negatives(PAIRS[:2], RandomEncoder(), HardNegatives(num_negatives=9))
    assert few == [(QUERIES[0], TEXTS[0], TEXTS[1]), (QUERIES[1], TEXTS[1], TEXTS[0])]


def test_settings_that_leave_no_negatives():
    with pytest.raises(UserError, match="there are no pairs"):
        find_hard_negatives([], RandomEncoder(), HardNegatives())
    with pytest.raises(ConfigError, match=r"--range-max is 5.*expected at least 7"):
        HardNegatives(range_min=4, range_max=5)
    with pytest.raises(ConfigError, match="expected top or random"):
        HardNegatives(sampling="best")  # type: ignore[arg-type]


def test_mined_triples_are_written(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("bert_jax.pretrained.load.load_encoder", lambda path: None)
    monkeypatch.setattr("bert_jax.apps.search.encoder.EmbedderEncoder", RandomEncoder)
    pairs, output = tmp_path / "pairs.csv", tmp_path / "triples.jsonl"
    pairs.write_text("q,positive\n" + "".join(f"{q},{t}\n" for q, t in PAIRS[:8]))
    arguments = ["--query", "q", "--num-negatives", "1", "--output", str(output)]
    assert main(["search", "mine", "model", str(pairs), *arguments]) == 0
    assert "8 triples of 8 pairs" in capsys.readouterr().out
    records = [json.loads(line) for line in output.read_text().splitlines()]
    expected = find_hard_negatives(PAIRS[:8], RandomEncoder(), HardNegatives(num_negatives=1))
    assert records == [triple._asdict() for triple in expected]


SET = RetrievalSet(
    name="random",
    documents=tuple(Document(f"d{n}", text) for n, text in enumerate(TEXTS)),
    queries={f"q{n}": query for n, query in enumerate(QUERIES)},
    relevance={f"q{n}": {f"d{n}": 1} for n in range(8)},
)


class FirstTextReranker:
    """Scores the text with the number of the query highest."""

    def score_pairs(self, pairs, on_progress) -> np.ndarray:
        return np.array([q.split()[-1] == t.split()[1] for q, t in pairs], np.float32)


def test_each_way_of_ranking_is_evaluated():
    pytest.importorskip("bm25s")
    reranker: object = FirstTextReranker()
    results = evaluate_retrieval(SET, {"dense": RandomEncoder()}, reranker, num_candidates=30)  # type: ignore[arg-type]
    assert list(results) == ["bm25", "dense", "hybrid", "reranked"]
    encoder = RandomEncoder()
    scores = encoder.encode_queries(QUERIES) @ encoder.encode_documents(TEXTS).T
    ranks = 1 + (scores > np.diag(scores)[:8, None]).sum(axis=1)
    expected = np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
    assert 0 < expected < 1
    assert results["dense"]["mrr@10"].mean() == pytest.approx(expected)
    assert results["reranked"]["mrr@10"].mean() == pytest.approx(np.mean(ranks <= 30))
    assert list(evaluate_retrieval(SET, {})) == ["bm25"]


def test_own_document_of_a_query_is_no_result():
    pytest.importorskip("bm25s")
    own = RetrievalSet(
        name="own",
        documents=(Document("a", "red net"), Document("b", "net sea"), Document("c", "")),
        queries={"a": "red net", "z": "zebra"},
        relevance={"a": {"b": 1}, "z": {"b": 1}},
    )
    # No document has a word of the second query, so nothing is found for it.
    assert evaluate_retrieval(own, {})["bm25"]["mrr@10"].mean() == pytest.approx(0.5 / 2)
    ignoring = dataclasses.replace(own, ignores_own_document=True)
    assert evaluate_retrieval(ignoring, {})["bm25"]["mrr@10"].mean() == pytest.approx(1 / 2)

    class Encoder(RandomEncoder):
        def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
            return np.eye(3, dtype=np.float32)[: len(texts)]

        encode_queries = encode_documents

    reranker: object = FirstTextReranker()
    results = evaluate_retrieval(ignoring, {"dense": Encoder()}, reranker)  # type: ignore[arg-type]
    assert results["reranked"]["recall@100"].mean() == 1


def test_sampled_queries_are_the_same_for_a_seed():
    sampled = sample_queries(SET, 3)
    assert len(sampled.queries) == 3 and sampled.queries.keys() == sampled.relevance.keys()
    assert sampled == sample_queries(SET, 3) and sampled.documents == SET.documents
    assert sample_queries(SET, 8) is SET
