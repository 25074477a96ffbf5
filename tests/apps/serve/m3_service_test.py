"""Covers a model with several heads in bert_jax/apps/serve/retrieval_services.py (BGE-M3)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.served_models import serve_model
from bert_jax.predict.m3_embedder import M3Embedder, M3Vectors
from bert_jax.pretrained.load import load_encoder
from tests.helpers.m3_folder import LINEAR, write_m3_folder
from tests.helpers.server import RunningServer, running_server

CONFIG = ServerConfig(max_batch_tokens=40, max_inputs=8, warm_up="all")
TEXTS = ["the old man mends a net by the sea", "sea", "net net boat the net", "sea " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_m3_folder(tmp_path_factory.mktemp("m3"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running_server(serve_model("m3", load_encoder(folder), CONFIG), CONFIG) as running:
        yield running


def assert_dense(found: list[list[float]], expected: M3Vectors) -> None:
    assert expected.dense is not None
    np.testing.assert_allclose(found, expected.dense, atol=1e-5)


def assert_sparse(found: list[list[dict]], expected: M3Vectors) -> None:
    assert expected.sparse is not None
    for weights, vector in zip(found, expected.sparse.toarray(), strict=True):
        assert [each["index"] for each in weights] == np.flatnonzero(vector).tolist()
        values = [each["value"] for each in weights]
        np.testing.assert_allclose(values, vector[vector > 0], atol=1e-5)


def assert_multi_vector(found: list[list[list[float]]], expected: M3Vectors) -> None:
    assert expected.multi_vector is not None
    for vectors, each in zip(found, expected.multi_vector, strict=True):
        np.testing.assert_allclose(vectors, each.vectors, atol=1e-5)


@pytest.mark.parametrize("prompt_name", [None, "query"])
def test_all_heads_of_one_pass_equal_the_embedder(server, folder, prompt_name):
    expected = M3Embedder(load_encoder(folder))(TEXTS, prompt_name=prompt_name)
    response = server.post("/embed_heads", inputs=TEXTS, prompt_name=prompt_name)
    found = response.json()
    assert list(found) == ["dense", "sparse", "multi_vector"]
    assert_dense(found["dense"], expected)
    assert_sparse(found["sparse"], expected)
    assert_multi_vector(found["multi_vector"], expected)
    assert response.headers["x-truncated-inputs"] == "1"
    # The texts are computed once: their tokens count once.
    alone = server.post("/embed", inputs=TEXTS, prompt_name=prompt_name)
    assert response.headers["x-compute-tokens"] == alone.headers["x-compute-tokens"]


def test_routes_of_single_heads_equal_the_embedder(server, folder):
    expected = M3Embedder(load_encoder(folder))(TEXTS)
    assert_dense(server.post("/embed", inputs=TEXTS).json(), expected)
    assert_sparse(server.post("/embed_sparse", inputs=TEXTS).json(), expected)
    data = server.post("/v1/multi-vector", input=TEXTS).json()["data"]
    assert_multi_vector([each["embeddings"] for each in data], expected)
    (hidden,) = server.post("/embed_all", inputs=TEXTS[:1]).json()
    assert len(hidden) == len(data[0]["embeddings"]) + 1  # and [CLS]


def test_rerank_gives_the_mean_over_the_tokens_of_the_query(server, folder):
    query, *documents = M3Embedder(load_encoder(folder))(TEXTS).multi_vector or []
    expected = [
        np.mean([max(token @ other for other in document.vectors) for token in query.vectors])
        for document in documents
    ]
    found = server.post("/rerank", query=TEXTS[0], texts=TEXTS[1:]).json()
    assert [each["index"] for each in found] == np.argsort(np.negative(expected)).tolist()
    np.testing.assert_allclose(
        [each["score"] for each in found], sorted(expected, reverse=True), atol=1e-5
    )


def test_one_engine_computes_all_heads(server, folder):
    (model,) = server.client.get("/v1/models").json()["data"]
    routes = {"/embed", "/embed_sparse", "/v1/multi-vector", "/embed_heads", "/rerank"}
    assert routes <= set(model["routes"])
    (served,) = serve_model("m3", load_encoder(folder), CONFIG)
    assert served.embedding is not None and served.attention is not None
    assert set(served.engines) == {served.embedding.engine, served.attention.engine}


def test_heads_that_are_not_possible_are_refused(server, folder, tmp_path):
    for heads, message in (
        ([], "`heads` is empty; expected any of dense, sparse, multi_vector, or no `heads`"),
        (["dense", "colbert"], "heads"),
    ):
        error = server.post("/embed_heads", inputs="sea", heads=heads)
        assert error.status_code == 422 and message in error.json()["error"], error.json()
    error = server.post("/predict", inputs="sea", model="m3")
    assert error.status_code == 422 and "it is a model with several heads" in str(error.json())
    error = server.post("/embed_heads", inputs=TEXTS, truncate=False)
    assert error.status_code == 422 and "more than 20 tokens" in error.json()["error"]
    for file in folder.iterdir():
        if not file.name.startswith(("sparse", "colbert")):
            (tmp_path / file.name).symlink_to(file)
    save_file(LINEAR["sparse_linear"], tmp_path / "sparse_linear.safetensors")
    served = serve_model("sparse", load_encoder(tmp_path), CONFIG)
    with running_server(served, CONFIG) as running:
        assert list(running.post("/embed_heads", inputs="sea").json()) == ["dense", "sparse"]
        error = running.post("/embed_heads", inputs="sea", heads=["multi_vector"])
        message = (
            "`heads` has 'multi_vector', for which the model has no head; expected any of dense"
        )
        assert error.status_code == 422 and message in error.json()["error"]
        error = running.post("/v1/multi-vector", input="sea")
        assert error.status_code == 400 and "no model of this server" in str(error.json())
