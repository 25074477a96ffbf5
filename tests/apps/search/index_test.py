"""Covers bert_jax/apps/search/index.py, build.py and documents.py, and the verbs.

Most tests embed with random vectors of words instead of a model.
"""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.search import build as build_module
from bert_jax.apps.search.build import build_index
from bert_jax.apps.search.documents import Document, read_collection, read_retrieval_set
from bert_jax.apps.search.encoder import EncoderId, check_finite_vectors
from bert_jax.apps.search.index import SearchIndex
from bert_jax.apps.search.stored_vectors import DenseVectors
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.heads.config import RankingHead
from bert_jax.tasks.metrics.vectors import normalize_vectors

WORDS = ["old", "man", "mends", "red", "net", "sea", "sings", "wind", "rain", "night", "boat"]
DOCUMENTS = [
    Document(f"d{n}", " ".join(np.random.default_rng(n).choice(WORDS, 6))) for n in range(30)
]


class WordEncoder:
    """Embeds a text as the normalized sum of a random vector of each word."""

    kind: EmbeddingKind = "dense"
    max_length, num_truncated = 512, 0

    def __init__(self, width: int = 32, fingerprint: str = "words"):
        self.id = EncoderId("word model", fingerprint)
        self.width = width
        self.texts: list[str] = []

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        sums = [sum(map(self._vector, text.split())) for text in texts]
        return normalize_vectors(np.stack(sums).astype(np.float32))

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        return self.encode_queries(texts)

    def _vector(self, word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=self.width)


def vectors_of(index: SearchIndex) -> np.ndarray:
    assert isinstance(index.vectors, DenseVectors)
    return index.vectors.matrix


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    folder = tmp_path_factory.mktemp("index") / "index"
    build_index(folder, DOCUMENTS, WordEncoder(), approximate=True)
    return SearchIndex(folder)


@pytest.mark.parametrize("method", ["exact", "approximate", "bm25", "hybrid"])
def test_document_is_the_best_for_its_own_text(index, method):
    queries = [document.text for document in DOCUMENTS[:5]]
    found = index.search(WordEncoder(), queries, 3, method)
    for document, hits in zip(DOCUMENTS, found, strict=False):
        assert document in [hit.document for hit in hits]
        assert DOCUMENTS[hits[0].row] == hits[0].document
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        if method == "exact":
            assert hits[0].document.text == document.text and scores[0] == pytest.approx(1)


def test_query_without_a_word_of_the_documents(index):
    encoder = WordEncoder()
    assert index.search(None, ["zebra"], 3, "bm25") == [[]]
    dense, hybrid = (index.search(encoder, ["zebra"], 3, m)[0] for m in ("exact", "hybrid"))
    assert [hit.row for hit in hybrid] == [hit.row for hit in dense]


def test_files_of_the_index_are_complete(index):
    expected = WordEncoder().encode_documents([document.text for document in DOCUMENTS])
    np.testing.assert_array_equal(vectors_of(index), expected)
    assert index.documents(range(30)) == DOCUMENTS and len(index) == 30
    names = {path.name for path in index.folder.iterdir()}
    assert names == {
        "index.json", "vectors.npy", "documents.jsonl", "offsets.npy", "graph.usearch"
    }  # fmt: skip
    assert [path.name for path in index.folder.parent.iterdir()] == ["index"]


class InterruptedEncoder(WordEncoder):
    """Raises in the third group of documents."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        if len(self.texts) >= 8:
            raise KeyboardInterrupt
        return super().encode_documents(texts)


def test_interrupted_build_continues(tmp_path, monkeypatch, index):
    monkeypatch.setattr(build_module, "_GROUP_SIZE", 4)
    output = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_index(output, DOCUMENTS, InterruptedEncoder())
    assert not output.exists()
    encoder = WordEncoder()
    continued = build_index(output, DOCUMENTS, encoder)
    assert len(encoder.texts) == 30 - 8
    np.testing.assert_array_equal(vectors_of(continued), vectors_of(index))


def test_complete_index_is_opened_without_embedding(index):
    encoder = WordEncoder()
    again = build_index(index.folder, DOCUMENTS, encoder, approximate=True)
    assert not encoder.texts and again.info == index.info


@pytest.mark.parametrize("change", ["documents", "model"])
def test_interrupted_build_of_another_index_starts_again(tmp_path, monkeypatch, change):
    monkeypatch.setattr(build_module, "_GROUP_SIZE", 4)
    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path / "index", DOCUMENTS, InterruptedEncoder())
    encoder = WordEncoder(fingerprint="other") if change == "model" else WordEncoder()
    documents = DOCUMENTS if change == "model" else DOCUMENTS[1:]
    build_index(tmp_path / "index", documents, encoder)
    assert len(encoder.texts) == len(documents)


class ChangingWidthEncoder(WordEncoder):
    """Returns wider vectors after the first group."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        vectors = super().encode_documents(texts)
        self.width += 1
        return vectors


def test_bad_input_of_a_build(tmp_path, monkeypatch, index):
    with pytest.raises(UserError, match="no text to index"):
        build_index(tmp_path / "empty", [], WordEncoder())
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(build_module, "_GROUP_SIZE", 4)
    with pytest.raises(UserError, match="documents 5 to 8 have the width 33, but those before"):
        build_index(tmp_path / "widths", DOCUMENTS, ChangingWidthEncoder())
    with pytest.raises(UserError, match="index of other texts; choose another --output"):
        build_index(index.folder, DOCUMENTS[1:], WordEncoder())
    with pytest.raises(UserError, match="index of another model, pooling or prompt"):
        build_index(index.folder, DOCUMENTS, WordEncoder(fingerprint="other"))
    with pytest.raises(UserError, match="not an empty folder"):
        build_index(index.folder.parent, DOCUMENTS, WordEncoder())
    with pytest.raises(UserError, match=r"model: the vector of text 2 of 2 .* not finite"):
        check_finite_vectors(np.array([[1.0, 2.0], [np.nan, 1.0]]), "model")


def test_bad_input_of_a_query(tmp_path, index):
    with pytest.raises(UserError, match=r"made with word model .* is another model"):
        index.search(WordEncoder(fingerprint="other"), ["red"])
    with pytest.raises(ConfigError, match="--top-k is 31, but there are 30 documents"):
        index.search(WordEncoder(), ["red"], 31)
    with pytest.raises(UserError, match="query has no text"):
        index.search(None, [" "], 1, "bm25")
    with pytest.raises(UserError, match="no such folder; expected an index"):
        SearchIndex(tmp_path / "missing")
    exact_only = build_index(tmp_path / "exact", DOCUMENTS[:4], WordEncoder())
    with pytest.raises(UserError, match="no graph for approximate search"):
        exact_only.search(WordEncoder(), ["red"], 1, "approximate")
    np.save(exact_only.folder / "vectors.npy", np.zeros((3, 32), np.float32))
    with pytest.raises(UserError, match=r"shape \[3, 32\]; expected \[4, 32\], for 4 documents"):
        SearchIndex(exact_only.folder)
    info = json.loads((exact_only.folder / "index.json").read_text())
    (exact_only.folder / "index.json").write_text(json.dumps({**info, "version": 1}))
    with pytest.raises(UserError, match="version of the format is 1; expected 2"):
        SearchIndex(exact_only.folder)


def test_collection_of_lines_and_json(tmp_path):
    (tmp_path / "a.txt").write_text("first\n\n third \n")
    records = [{"_id": "x", "title": "Net", "text": "red"}, {"id": 7, "text": "sea"}, {"text": "y"}]
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    found = list(read_collection([str(tmp_path / "*")]))
    lines = [("a.txt:1", "first"), ("a.txt:3", "third")]
    assert found == [*lines, ("x", "Net red"), ("7", "sea"), ("b.jsonl:3", "y")]


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"_id": "x", "text": "again"}', r"line 2: the id 'x' is already used in .*line 1"),
        ('{"body": "red"}', r"line 2: no field 'text' \(found body\)"),
        ('{"text": 5}', "line 2: the field 'text' is a int; expected text"),
        ('{"text": "red", "id": null}', "line 2: the id is None"),
        ('["red"]', "line 2: expected a JSON object, found a list"),
    ],
)
def test_bad_line_of_a_collection(tmp_path, line, message):
    (tmp_path / "c.jsonl").write_text('{"_id": "x", "text": "red"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        list(read_collection([str(tmp_path / "c.jsonl")]))


def write_beir(folder: Path, qrels: str) -> None:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        '{"_id": "1", "title": "Net", "text": "red"}\n{"_id": "2", "title": "", "text": "sea"}\n'
    )
    (folder / "queries.jsonl").write_text(
        '{"_id": "q", "text": "net?"}\n{"_id": "r", "text": "x"}\n'
    )
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")


def test_beir_folder(tmp_path):
    write_beir(tmp_path, "q\t1\t2\nq\t9\t0\n")
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "3", "title": "", "text": ""}\n')
    found = read_retrieval_set(f"beir:{tmp_path}")
    assert found.documents == (("1", "Net red"), ("2", "sea"), ("3", ""))
    assert found.ignores_own_document
    assert found.queries == {"q": "net?"} and found.relevance == {"q": {"1": 2}}


@pytest.mark.parametrize(
    "qrels, message",
    [
        ("q\t9\t1\n", "test.tsv, line 2: there is no document '9'"),
        ("z\t1\t1\n", "there is no query 'z'"),
        ("q\t1\tyes\n", "the score is 'yes'; expected a whole number"),
        ("q\t1\t0\n", "no document is relevant"),
    ],
)
def test_damaged_beir_folder(tmp_path, qrels, message):
    write_beir(tmp_path, qrels)
    with pytest.raises(UserError, match=message):
        read_retrieval_set(f"beir:{tmp_path}")


def test_squad_paragraphs_are_documents(tmp_path):
    answer = [{"text": "red", "answer_start": 0}]
    paragraphs = [
        {"context": "red net", "qas": [{"id": "1", "question": "color?", "answers": answer}]},
        {"context": "red sea", "qas": [{"id": "2", "question": "which?", "answers": answer}]},
        {"context": "red net", "qas": [
            {"id": "3", "question": "what?", "answers": answer},
            {"id": "4", "question": "none?", "answers": [], "is_impossible": True},
        ]},
    ]  # fmt: skip
    file = tmp_path / "dev.json"
    file.write_text(json.dumps({"version": "2.0", "data": [{"paragraphs": paragraphs}]}))
    found = read_retrieval_set(f"squad:{file}")
    assert found.documents == (("0", "red net"), ("1", "red sea"))
    assert found.queries == {"1": "color?", "2": "which?", "3": "what?"}
    assert found.relevance == {"1": {"0": 1}, "2": {"1": 1}, "3": {"0": 1}}
    with pytest.raises(ConfigError, match="expected squad:FILE or beir:FOLDER"):
        read_retrieval_set("trec:x")


def test_verbs_index_query_and_rerank(tmp_path, capsys, monkeypatch):
    model = small_model(tmp_path / "vocabulary")
    ranking = small_model(tmp_path / "ranking-vocabulary", head=RankingHead(), num_hidden_layers=1)
    models = {"model": model, "ranking": ranking}
    monkeypatch.setattr("bert_jax.pretrained.load.load_encoder", models.__getitem__)
    texts = ["the old man mends a net", "the sea", "a man sings by the sea .", "a net"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    folder = str(tmp_path / "index")
    files = ["--file", str(tmp_path / "texts.txt")]
    assert main(["search", "index", "model", *files, "--output", folder]) == 0
    assert "4 texts, vectors of width 16" in capsys.readouterr().out
    assert main(["search", "index", "model", *files, "--output", folder]) == 0
    assert (
        "4 texts, vectors of width 16, 64 bytes a text, complete since" in capsys.readouterr().out
    )

    (tmp_path / "long.txt").write_text("the " * 40 + "\na net\n")
    long = ["--file", str(tmp_path / "long.txt"), "--output", str(tmp_path / "long")]
    assert main(["search", "index", "model", *long]) == 0
    assert "1 texts were truncated to 20 tokens" in capsys.readouterr().out

    dense = ["--model", "model", "--top-k", "2", "--json"]
    assert main(["search", "query", folder, texts[2], "sea", *dense]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["query"] == texts[2] and len(first["hits"]) == len(second["hits"]) == 2
    assert first["hits"][0]["text"] == texts[2] and first["hits"][0]["id"] == "texts.txt:3"
    assert first["hits"][0]["score"] == pytest.approx(1, abs=1e-5)

    rerank = ["--rerank", "ranking", "--candidates", "3"]
    assert main(["search", "query", folder, "the net", *dense, *rerank]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert len(hits) == 2 and hits[0]["score"] >= hits[1]["score"]
    assert all(0 < hit["score"] < 1 for hit in hits)

    assert main(["search", "query", folder, "net", "--method", "bm25"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["1.", "0.3697", "texts.txt:4"]
    assert main(["search", "query", folder, "net", "--model", "ranking"]) == 1
    assert "is another model" in capsys.readouterr().err
