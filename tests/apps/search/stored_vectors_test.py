"""Covers bert_jax/apps/search/stored_vectors.py: indexes of sparse and multi-vector models.

Search is compared with NumPy; then builds that stop, appending, damage, and the verbs.
"""

import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.search import build as build_module
from bert_jax.apps.search import late_interaction, sparse
from bert_jax.apps.search.build import build_index
from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.encoder import (
    EmbedderEncoder,
    EncoderId,
    MultiVectorTextEncoder,
    SparseTextEncoder,
    TextEncoder,
    text_encoder_of,
)
from bert_jax.apps.search.index import SearchIndex
from bert_jax.apps.search.nearest import NO_ROW
from bert_jax.apps.testing.models import WORDS, small_model
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.models.heads.config import RankingHead
from bert_jax.models.sentence_encoder.config import (
    Prompt,
)
from bert_jax.pretrained.load import load_encoder

RNG = np.random.default_rng(0)
PROMPTS = (Prompt(name="query", text="the "), Prompt(name="document", text="a "))
DOCUMENTS = [
    Document(f"d{n}", " ".join(RNG.choice(WORDS[:9], RNG.integers(1, 12)))) for n in range(40)
]
QUERIES = ["the old net", "sea", "a man mends a net by the sea"]
KINDS = ["dense", "sparse", "multi_vector"]


@pytest.fixture(scope="module")
def indexes(encoders, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SearchIndex]:
    root = tmp_path_factory.mktemp("indexes")
    return {kind: build_index(root / kind, DOCUMENTS, encoders[kind]) for kind in KINDS}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"}


def expected_scores(encoder: TextEncoder) -> np.ndarray:
    """Returns the score of each query with each document by NumPy."""
    documents = encoder.encode_documents([document.text for document in DOCUMENTS])
    queries = encoder.encode_queries(QUERIES)
    if encoder.kind == "sparse":
        return queries.toarray() @ documents.toarray().T
    return np.array([[(q @ d.T).max(axis=1).sum() for d in documents] for q in queries])


@pytest.mark.parametrize("kind", ["sparse", "multi_vector"])
def test_exact_search_equals_numpy(encoders, indexes, kind, monkeypatch):
    monkeypatch.setattr(late_interaction, "_DOCUMENTS_PER_BLOCK", 7)
    monkeypatch.setattr(late_interaction, "_TOKENS_PER_BATCH", 64)
    monkeypatch.setattr(late_interaction, "_QUERY_TOKENS_PER_BATCH", 32)
    monkeypatch.setattr(sparse, "_SCORES_PER_BLOCK", 80)
    found = indexes[kind].neighbors(encoders[kind], QUERIES, 40)
    scores = expected_scores(encoders[kind])
    has_unscored = False
    for rows, values, expected in zip(found.rows, found.scores, scores, strict=True):
        order = [row for row in np.argsort(-expected, kind="stable") if expected[row] > 0]
        has_unscored |= len(order) < 40
        assert (rows == NO_ROW).sum() == 40 - len(order)
        np.testing.assert_allclose(values[: len(order)], expected[order], rtol=1e-5)
        np.testing.assert_allclose(expected[rows[: len(order)]], expected[order], rtol=1e-5)
    assert has_unscored == (kind == "sparse")
    assert indexes[kind].neighbors(encoders[kind], [], 3).rows.shape == (0, 3)


def test_mean_of_largest_products(encoders, folders):
    model = load_encoder(folders["multi_vector"])
    mean = MultiVectorTextEncoder(model)
    mean.embedder.config = type(mean.embedder.config)(
        **{**vars(mean.embedder.config), "similarity": "meanmaxsim"}
    )
    (total,), (query,) = (
        encoders["multi_vector"].encode_queries(["net"]),
        mean.encode_queries(["net"]),
    )
    np.testing.assert_allclose(query, total / 9, rtol=1e-6)


def test_document_without_vectors_is_not_found():
    texts = [
        np.ones((2, 3), np.float32),
        np.zeros((0, 3), np.float32),
        -np.ones((1, 3), np.float32),
    ]
    lengths = np.array([2, 0, 1], np.int32)
    stored = late_interaction.StoredTokenVectors(np.concatenate(texts), lengths)
    found = stored.exact([np.ones((2, 3), np.float32)], 3)
    assert found.rows.tolist() == [[0, 2, NO_ROW]] and found.scores.tolist() == [[6, -6, 0]]
    with pytest.raises(UserError, match=r"shape \[0, 3\].*at least one vector"):
        stored.exact([np.zeros((0, 3), np.float32)], 1)
    with pytest.raises(UserError, match="not finite"):
        stored.exact([np.full((1, 3), np.nan, np.float32)], 1)


class InterruptedEncoder:
    """Raises in the third group of documents."""

    def __init__(self, encoder: TextEncoder):
        self._encoder, self.id = encoder, encoder.id
        self.kind: EmbeddingKind = encoder.kind
        self.max_length, self.num_truncated, self.num_groups = 0, 0, 0
        self.encode_queries = encoder.encode_queries

    def encode_documents(self, texts: Sequence[str]) -> Any:
        self.num_groups += 1
        if self.num_groups == 3:
            raise KeyboardInterrupt
        return self._encoder.encode_documents(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_build_continues(encoders, indexes, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "_GROUP_SIZE", 7)
    output, building = tmp_path / "index", tmp_path / ".index.building"
    # What a build of another model left is not used.
    for other in {*KINDS} - {kind}:
        with pytest.raises(KeyboardInterrupt):
            build_index(output, DOCUMENTS, InterruptedEncoder(encoders[other]))
    with pytest.raises(KeyboardInterrupt):
        build_index(output, DOCUMENTS, InterruptedEncoder(encoders[kind]))
    # A kill may come after vectors were written, and before their progress was.
    for path in building.glob("*.npy"):
        if path.name not in ("offsets.npy",):
            rows = np.load(path)
            np.save(path, np.concatenate([rows, rows[:5]]))
    encoder = InterruptedEncoder(encoders[kind])
    encoder.num_groups = 3
    build_index(output, DOCUMENTS, encoder)
    assert encoder.num_groups == 3 + 4  # 26 documents
    assert files_of(output).keys() == files_of(indexes[kind].folder).keys()
    for name, content in files_of(indexes[kind].folder).items():
        if name.endswith(".npy"):
            built = np.load(output / name)
            np.testing.assert_allclose(built, np.load(indexes[kind].folder / name), atol=1e-5)
        else:
            assert files_of(output)[name] == content


@pytest.mark.parametrize("kind", KINDS)
def test_appended_index_equals_one_built_at_once(encoders, indexes, kind, tmp_path, monkeypatch):
    output, encoder = tmp_path / "index", encoders[kind]
    build_index(output, DOCUMENTS[:25], encoder)
    before = files_of(output)
    with pytest.raises(UserError, match=r"index of other texts; .* --append adds texts"):
        build_index(output, DOCUMENTS, encoder)
    assert files_of(output) == before
    # Of what is added, those that the index has are left out; the order of the others stays.
    appended = build_index(output, DOCUMENTS[20:], encoder, append=True)
    assert appended.documents(range(40)) == DOCUMENTS
    found, expected = (i.neighbors(encoder, QUERIES, 5) for i in (appended, indexes[kind]))
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_array_equal(found.rows, expected.rows)
    again = build_index(output, DOCUMENTS[30:], encoder, append=True)
    assert again.info == appended.info and [p.name for p in tmp_path.iterdir()] == ["index"]
    with pytest.raises(UserError, match="the id 'd3' is that of another text"):
        build_index(output, [Document("d3", "sea")], encoder, append=True)
    with pytest.raises(UserError, match="no such folder; expected an index"):
        build_index(tmp_path / "missing", DOCUMENTS, encoder, append=True)
    assert not list(tmp_path.glob(".missing*"))


@pytest.mark.parametrize("num_renames", [0, 1])
def test_kill_while_an_index_is_replaced(encoders, num_renames, tmp_path, monkeypatch):
    output, encoder, real = tmp_path / "index", encoders["sparse"], os.replace
    build_index(output, DOCUMENTS[:10], encoder)
    calls = itertools.count()

    def interrupted(source: Path, target: Path) -> None:
        if Path(source).is_dir() and next(calls) == num_renames:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_index(output, DOCUMENTS, encoder, append=True)
    monkeypatch.setattr(os, "replace", real)
    assert len(build_index(output, DOCUMENTS, encoder, append=True)) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    "kind, name, change, message",
    [
        ("sparse", "weights.npy", lambda a: a[:-1], r"weights.npy has the shape \[\d+\]; expected"),
        ("sparse", "token_ids.npy", lambda a: a + 18, "token_ids.npy: .*; index the texts again"),
        ("sparse", "lengths.npy", lambda a: a[:-1], r"lengths.npy has the shape \[39\]; expected"),
        ("multi_vector", "token_vectors.npy", lambda a: a[1:], "token_vectors.npy has the shape"),
        ("multi_vector", "offsets.npy", lambda a: a[1:], r"expected \[41\], for 40 documents"),
    ],
)
def test_damage_is_found_when_an_index_is_opened(indexes, kind, name, change, message, tmp_path):
    folder = shutil.copytree(indexes[kind].folder, tmp_path / "index")
    np.save(folder / name, change(np.load(folder / name)))
    with pytest.raises(UserError, match=message):
        SearchIndex(folder)
    (folder / name).write_bytes((indexes[kind].folder / name).read_bytes()[:-3])
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        SearchIndex(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        SearchIndex(folder)


@pytest.mark.parametrize("kind", ["sparse", "multi_vector"])
def test_bad_input(encoders, indexes, kind, tmp_path, folders):
    encoder, index = encoders[kind], indexes[kind]
    for query in ("", "  "):
        with pytest.raises(UserError, match="a query has no text"):
            index.search(encoder, [query], 1)
    with pytest.raises(UserError, match="is another model"):
        index.search(encoders["dense"], ["net"], 1)
    other = InterruptedEncoder(encoder)
    other.id = EncoderId("other", "other")
    with pytest.raises(UserError, match="index of another model, pooling or prompt"):
        build_index(index.folder, DOCUMENTS, other)
    name = kind.replace("_", "-")
    with pytest.raises(UserError, match=r"bytes a text, which are searched exactly"):
        index.search(encoder, ["net"], 1, "approximate")
    with pytest.raises(ConfigError, match=f"is a {name} model, and --approximate is for dense"):
        build_index(tmp_path / "index", DOCUMENTS, encoder, approximate=True)
    with pytest.raises(ConfigError, match=f"is a {name} model, which does not use --pooling"):
        text_encoder_of(load_encoder(folders[kind]), pooling="cls")
    with pytest.raises(UserError, match="expected a sentence encoder, which has one dense vector"):
        EmbedderEncoder(load_encoder(folders[kind]))


@pytest.mark.parametrize("kind", ["sparse", "multi_vector"])
def test_verbs(folders, kind, tmp_path, capsys, monkeypatch):
    ranking = small_model(tmp_path / "vocabulary", head=RankingHead(), num_hidden_layers=1)
    real = load_encoder
    monkeypatch.setattr(
        "bert_jax.pretrained.load.load_encoder",
        lambda path: ranking if path == "ranking" else real(path),
    )
    texts = ["the old man mends a net", "the sea", "a man sings by the sea .", "a net", "sea " * 30]
    (tmp_path / "texts.txt").write_text("\n".join(texts[:3]) + "\n\n")
    (tmp_path / "more.txt").write_text("\n".join(texts[3:]) + "\n")
    index = str(tmp_path / "index")
    command = ["search", "index", folders[kind], "--output", index, "--file"]
    assert main([*command, str(tmp_path / "texts.txt")]) == 0
    kinds = {"sparse": "sparse vectors of width 18, ", "multi_vector": "width 8 for each token, "}
    assert kinds[kind] in (output := capsys.readouterr().out) and "3 texts" in output
    assert main([*command, str(tmp_path / "more.txt"), "--append"]) == 0
    lengths = {"sparse": 20, "multi_vector": 12}
    output = capsys.readouterr().out
    assert "5 texts, " in output and f"1 texts were truncated to {lengths[kind]} tokens" in output
    query = ["search", "query", index, "a net", "--top-k", "2", "--json"]
    assert main(query) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    encoder = text_encoder_of(real(folders[kind]))
    (found,) = SearchIndex(index).search(encoder, ["a net"], 2)
    assert [hit["id"] for hit in hits] == [hit.document.id for hit in found]
    assert main([*query, "--method", "hybrid"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["score"] <= 2 / 61
    assert main([*query, "--rerank", "ranking", "--candidates", "3"]) == 0
    assert all(0 < hit["score"] < 1 for hit in json.loads(capsys.readouterr().out)["hits"])
    assert main([*query, "--method", "approximate"]) == 1
    assert "searched exactly" in capsys.readouterr().err


def test_sparse_query_without_a_weight_finds_nothing(encoders, indexes, monkeypatch):
    encoder = encoders["sparse"]
    assert isinstance(encoder, SparseTextEncoder)
    empty = encoder.encode_queries(["net"])
    empty.data[:] = 0
    monkeypatch.setattr(SparseTextEncoder, "encode_queries", lambda *_: empty)
    assert indexes["sparse"].search(encoder, ["net"], 3) == [[]]
