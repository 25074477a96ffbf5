"""Covers bert_jax/apps/search/contamination.py, and its metrics in `bert-jax search evaluate`."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.search.contamination import find_in_corpus
from bert_jax.apps.search.documents import read_retrieval_set
from bert_jax.apps.search.evaluate import evaluate_retrieval
from bert_jax.errors import UserError

LONG = "which harbor did the old fishing boats leave when the storm came from the north"
QUERIES = {
    "long": LONG,
    "whole": "how many nets did the fishermen mend",
    "near": "Who sings at sea?",
    "alone": "Where is it?",
    "absent": "why do the gulls follow every ship that carries herring back to the shore",
}
TEXTS = {
    "long": "The boats left the harbor of Whitby, which is sheltered on three sides by cliffs.",
    "whole": "Forty nets were mended during the winter, and forty more were sold in the spring.",
    "near": "Sailors sing shanties while they work at the ropes, and so keep the same time.",
    "alone": "The lighthouse stands on the rocks behind the bay, and can be seen for ten miles.",
    "absent": "Gulls have learned that ships throw parts of the catch into the water.",
}
# The first 14 of 15 words; a whole query of 7 words is too short, so one word is added.
QUERIES["whole"] += " by hand"
CORPUS = [
    f"A quiz. {LONG.upper()[: LONG.rindex(' ')]}\nNobody knew the answer to this question.",
    f"They asked: {QUERIES['whole']}, and nobody replied.",
    f"{QUERIES['near']} {TEXTS['near']}",
    f"{QUERIES['alone']} Nobody knows. {TEXTS['absent']}",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with a retrieval set of BEIR's layout and a corpus."""
    (tmp_path / "beir/qrels").mkdir(parents=True)
    for name, texts in (("corpus", TEXTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (tmp_path / f"beir/{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = ["query-id\tcorpus-id\tscore", *(f"{name}\t{name}\t1" for name in QUERIES)]
    (tmp_path / "beir/qrels/test.tsv").write_text("\n".join(rows) + "\n")
    for n, text in enumerate(CORPUS):
        (tmp_path / f"{n}.txt").write_text(text)
    return tmp_path


def test_queries_and_texts_are_found_in_the_corpus(folder):
    retrieval_set = read_retrieval_set(f"beir:{folder / 'beir'}")
    found = find_in_corpus(retrieval_set, [str(folder / "*.txt")])
    assert found.num_documents == 4
    queries = dict(zip(retrieval_set.queries, found.has_query, strict=True))
    # "Where is it?" is in the corpus too, but not near its relevant text.
    assert queries == {"long": True, "whole": True, "near": True, "alone": False, "absent": False}
    texts = [document.id for document in retrieval_set.documents]
    has_text = dict(zip(texts, found.has_text, strict=True))
    assert [name for name in texts if has_text[name]] == ["near", "absent"]


def test_a_query_without_words_cannot_be_found(folder):
    queries = folder / "beir/queries.jsonl"
    queries.write_text(queries.read_text().replace(QUERIES["alone"], "???"))
    retrieval_set = read_retrieval_set(f"beir:{folder / 'beir'}")
    found = find_in_corpus(retrieval_set, [str(folder / "*.txt")])
    assert found.is_searchable.tolist() == [True, True, True, False, True]


def test_verb_prints_the_metrics_without_the_queries_in_the_corpus(folder, capsys):
    pytest.importorskip("bm25s")
    name, output = f"beir:{folder / 'beir'}", folder / "results.json"
    command = ["search", "evaluate", name, "--corpus", str(folder / "*.txt")]
    assert main([*command, "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "corpus of 4 documents: it contains 3 queries (60.0%) and 2 texts (40.0%)" in printed
    assert "without the queries in the corpus (2 remain):" in printed
    corpus = json.loads(output.read_text())["corpus"]
    counts = {"num_documents": 4, "num_queries_found": 3, "num_queries_not_searchable": 0}
    assert {**corpus, **counts, "num_texts_found": 2} == corpus
    values = evaluate_retrieval(read_retrieval_set(name), {})["bm25"]["ndcg@10"]
    assert corpus["results"]["bm25"]["ndcg@10"] == pytest.approx(np.mean(values[3:]))


def test_a_corpus_with_all_queries_leaves_no_metrics(folder, capsys):
    pytest.importorskip("bm25s")
    lines = [f"{QUERIES[name]} {TEXTS[name]}" for name in QUERIES]
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in lines))
    command = ["search", "evaluate", f"beir:{folder / 'beir'}", "--corpus"]
    assert main([*command, str(folder / "all.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert "it contains 5 queries (100.0%) and 5 texts (100.0%)" in printed
    assert "remain" not in printed


def test_a_pattern_without_files_is_an_error(folder):
    retrieval_set = read_retrieval_set(f"beir:{folder / 'beir'}")
    with pytest.raises(UserError, match=r"no-such-file\*"):
        find_in_corpus(retrieval_set, ["no-such-file*"])
