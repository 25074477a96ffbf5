"""Covers bert_jax/apps/search/explain.py, explain_page.py and the verb, with NumPy."""

import json

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.search.build import build_index
from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.explain import explain_late_interaction, explain_sparse
from bert_jax.apps.search.index import SearchIndex
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.load import load_encoder, require_tokenizer
from tests.helpers.report_markup import Report

TEXTS = ["the old man mends a net", "the sea", "a man sings by the sea .", "a net <b>"]
DOCUMENTS = [Document(f"d{n}", text) for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def indexes(encoders, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SearchIndex]:
    root = tmp_path_factory.mktemp("indexes")
    return {kind: build_index(root / kind, DOCUMENTS, each) for kind, each in encoders.items()}


def test_matches_of_a_multi_vector_model(encoders, indexes):
    encoder = encoders["multi_vector"]
    (hits,) = indexes["multi_vector"].search(encoder, ["a net"], 4)
    found = explain_late_interaction(encoder, "a net", hits)
    assert found["tokens"] == ["[CLS]", "the", "a", "net", "[SEP]", *["[MASK]"] * 4]
    (query,) = encoder.encode_queries(["a net"])
    documents = encoder.encode_documents([hit.document.text for hit in hits])
    for hit, document, result in zip(hits, documents, found["hits"], strict=True):
        products = query @ document.T
        assert "." not in result["tokens"] and len(result["tokens"]) == len(document)
        np.testing.assert_allclose(result["similarities"], products, atol=1e-5)
        assert result["matches"] == products.argmax(axis=1).tolist()
        assert result["max_sim"] == pytest.approx(hit.score, abs=1e-4)


def test_terms_of_a_sparse_model(encoders, indexes, folders):
    encoder, model = encoders["sparse"], load_encoder(folders["sparse"])
    (hits,) = indexes["sparse"].search(encoder, ["the old net"], 3)
    found = explain_sparse(encoder, require_tokenizer(model), "the old net", hits)
    embed = SparseEmbedder(model)
    query = embed.weights(embed(["the old net"], role="query"))[0]
    assert {term["token"]: term["weight"] for term in found["terms"]} == pytest.approx(
        query, rel=1e-5
    )
    for term in found["terms"]:
        assert term["is_added"] == (term["token"] not in ("the", "old", "net"))
    for hit, result in zip(hits, found["hits"], strict=True):
        products = [term["product"] for term in result["shared"]]
        assert sum(products) == pytest.approx(hit.score, abs=1e-4)
        assert products == sorted(products, reverse=True)
        (weights,) = embed.weights(embed([hit.document.text]))
        assert {term["token"] for term in result["shared"]} == weights.keys() & query.keys()
        assert {term["token"]: term["weight"] for term in result["terms"]} == pytest.approx(
            weights, rel=1e-5
        )


@pytest.mark.parametrize("kind", ["sparse", "multi_vector"])
def test_verb_writes_a_page(indexes, kind, tmp_path, capsys):
    folder = str(indexes[kind].folder)
    command = ["search", "explain", folder, "a net", "sea", "--output", str(tmp_path / "found")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "found/explanations.json").read_text())
    assert [each["query"] for each in results["queries"]] == ["a net", "sea"]
    for query in results["queries"]:
        for hit in query["hits"]:
            assert f"{hit['score']:8.4f}  {hit['id']}\n" in printed
    page = (tmp_path / "found/explanations.html").read_text()
    assert "<b>" not in page and "<script" not in page
    report = Report(page)
    assert "a net" in report.text and "sea" in report.text
    assert ("Underlined terms" in page) == (kind == "sparse")
    assert ("MaxSim" in page) == (kind == "multi_vector")


def test_bad_input(indexes, capsys, folders):
    assert main(["search", "explain", str(indexes["dense"].folder), "sea"]) == 2
    assert "has a dense vector of each text" in capsys.readouterr().err
    command = ["search", "explain", str(indexes["sparse"].folder), "sea"]
    assert main([*command, "--model", folders["dense"]]) == 1
    assert "is another model" in capsys.readouterr().err
    assert main([*command, "--top-k", "9"]) == 2
