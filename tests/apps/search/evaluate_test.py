"""Covers bert_jax/apps/search/evaluate.py with encoders of all kinds, and the verb."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.search.documents import Document, RetrievalSet
from bert_jax.apps.search.evaluate import compare_systems, evaluate_retrieval
from bert_jax.apps.testing.models import WORDS
from bert_jax.tasks.metrics.bootstrap import bootstrap_interval, randomization_test

pytest.importorskip("bm25s")
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS[:9], 5)) for _ in range(30)]
SET = RetrievalSet(
    name="words",
    documents=tuple(Document(f"d{n:02}", text) for n, text in enumerate(TEXTS)),
    queries={f"q{n}": " ".join(TEXTS[n].split()[:2]) for n in range(12)},
    relevance={f"q{n}": {f"d{n:02}": 1} for n in range(12)},
)


@pytest.mark.parametrize("kind", ["dense", "sparse", "multi_vector"])
def test_ranks_of_each_kind(encoders, kind):
    encoder = encoders[kind]
    outcomes = evaluate_retrieval(SET, {kind: encoder})
    assert list(outcomes) == ["bm25", kind, "hybrid"]
    documents = encoder.encode_documents(TEXTS)
    queries = encoder.encode_queries(list(SET.queries.values()))
    if kind == "multi_vector":
        scores = [[(q @ d.T).max(axis=1).sum() for d in documents] for q in queries]
    else:
        scores = queries @ documents.T
        scores = scores.toarray() if kind == "sparse" else scores
    for query, row in enumerate(np.round(np.asarray(scores, np.float64), 4)):
        better, same = (row > row[query]).sum(), (row == row[query]).sum()
        found = outcomes[kind]["mrr@10"][query]
        # Texts with the same words have the same score.
        possible = [1 / (better + 1 + ties) for ties in range(same) if better + 1 + ties <= 10]
        assert any(found == pytest.approx(each) for each in [*possible, 0] if each or not possible)


def test_differences_are_paired_over_queries(encoders):
    chosen = {kind: encoders[kind] for kind in ("sparse", "multi_vector")}
    outcomes = evaluate_retrieval(SET, chosen)
    names = ["bm25", "sparse", "sparse+bm25", "multi_vector", "multi_vector+bm25"]
    assert list(outcomes) == names
    differences = compare_systems(outcomes, "ndcg@10")
    assert len(differences) == 10 and differences[0].systems == ("sparse", "bm25")
    values = outcomes["sparse"]["ndcg@10"] - outcomes["bm25"]["ndcg@10"]
    assert differences[0].difference == pytest.approx(values.mean())
    assert differences[0].p_value == randomization_test(values)


def write_beir(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    files = {"corpus": SET.documents, "queries": [Document(*each) for each in SET.queries.items()]}
    for name, texts in files.items():
        records = [{"_id": text.id, "title": "", "text": text.text} for text in texts]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    rows = [f"q{n}\td{n:02}\t1" for n in range(12)]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")


def test_verb_prints_intervals_and_differences(folders, encoders, tmp_path, capsys):
    write_beir(tmp_path / "beir")
    models = [folders["sparse"], folders["multi_vector"]]
    output = tmp_path / "results.json"
    command = ["search", "evaluate", f"beir:{tmp_path / 'beir'}"]
    assert main([*command, *models, "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    results = json.loads(output.read_text())
    expected = evaluate_retrieval(SET, {k: encoders[k] for k in ("sparse", "multi_vector")})
    for name, outcomes in expected.items():
        values = outcomes["ndcg@10"]
        assert results["results"][name]["ndcg@10"] == pytest.approx(values.mean())
        low, high = bootstrap_interval(np.mean, values)
        assert results["intervals"][name]["ndcg@10"] == pytest.approx([low, high])
        assert f"{values.mean():.4f} [{low:.4f}, {high:.4f}]" in printed
    first = results["differences"][0]
    assert first["systems"] == ["sparse", "bm25"] and first["metric"] == "ndcg@10"
    line = f"sparse - bm25: {first['difference']:+.4f}, p = {first['p_value']:.4f}"
    assert line in printed.splitlines()
    # Two models of one kind are called by their folders.
    assert main([*command, folders["sparse"], folders["sparse"] + "/"]) == 0
    assert f"\n{folders['sparse']}+bm25 " in capsys.readouterr().out
    assert main([*command, *models, "--pooling", "cls"]) == 2
    assert "is a sparse model, which does not use --pooling" in capsys.readouterr().err
