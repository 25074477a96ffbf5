"""Covers bert_jax/apps/serve/retrieval_services.py: answers equal offline results."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.served_models import serve_model
from bert_jax.apps.testing.models import small_model
from bert_jax.models.heads.config import RankingHead
from bert_jax.models.sentence_encoder.config import (
    Dense,
    EmbeddingConfig,
    MultiVectorEncoderConfig,
    Normalize,
    Prompt,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.predict.reranker import Reranker
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.load import LoadedModel
from tests.helpers.server import RunningServer, running_server

CONFIG = ServerConfig(max_batch_tokens=40, max_inputs=8, warm_up="all")
PROMPTS = (Prompt(name="query", text="the "), Prompt(name="document", text="a "))
TEXTS = ["the old man mends a net", "sea", "the man sings by the sea ."]
LONG = "sea " * 30
QUERY_WEIGHTS = np.linspace(0.5, 2.0, 18).astype(np.float32)
CONFIGS: dict[str, tuple[EmbeddingConfig, dict]] = {
    "splade": (SparseEncoderConfig(prompts=PROMPTS, max_active_dims=7), {}),
    "static": (SparseEncoderConfig(has_static_queries=True), {"query_weights": QUERY_WEIGHTS}),
    "colbert": (
        MultiVectorEncoderConfig(
            modules=(
                Dense(in_features=16, out_features=6, bias=False, activation=None),
                Normalize(),
            ),
            prompts=PROMPTS,
            document_length=12,
            expansion=QueryExpansion(length=18, token_id=4),
            skip_token_ids=(17,),
            similarity="meanmaxsim",
        ),
        {
            "dense": {
                "0": {"kernel": np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)}
            }
        },
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    model = small_model(
        tmp_path_factory.mktemp("vocabulary"), num_hidden_layers=1, initializer_range=0.2
    )
    return {
        name: dataclasses.replace(model, sentence_encoder=config, sentence_head=head)
        for name, (config, head) in CONFIGS.items()
    }


@pytest.fixture(scope="module")
def server(models: dict[str, LoadedModel]) -> Iterator[RunningServer]:
    served = [each for name in models for each in serve_model(name, models[name], CONFIG)]
    with running_server(served, CONFIG) as running:
        yield running


@pytest.mark.parametrize("model", ["splade", "static"])
@pytest.mark.parametrize("role", ["document", "query"])
def test_sparse_vectors_equal_the_embedder(server, models, model, role):
    embed = SparseEmbedder(models[model])
    expected, truncated = embed.embed([*TEXTS, LONG], role=role)
    response = server.post("/embed_sparse", inputs=[*TEXTS, LONG], model=model, input_type=role)
    for weights, vector in zip(response.json(), expected.toarray(), strict=True):
        indices = [weight["index"] for weight in weights]
        assert indices == np.flatnonzero(vector).tolist() == sorted(indices)
        values = [weight["value"] for weight in weights]
        np.testing.assert_allclose(values, vector[indices], atol=1e-5)
    assert truncated[-1] == ("x-truncated-inputs" in response.headers)
    # A list of one, as in TEI, for a text alone, and the first model of the kind by default.
    (alone,) = server.post("/embed_sparse", inputs=TEXTS[0], model=model, input_type=role).json()
    assert [each["index"] for each in alone] == np.flatnonzero(expected.toarray()[0]).tolist()


def test_prompt_of_sparse_vectors(server, models):
    expected = SparseEmbedder(models["splade"])(["sea"], prompt_name="query").toarray()
    (found,) = server.post("/", inputs="sea", prompt_name="query").json()
    values = [each["value"] for each in found]
    np.testing.assert_allclose(values, expected[0][expected[0] > 0], atol=1e-5)
    error = server.post("/embed_sparse", inputs="sea", prompt_name="querry")
    assert error.status_code == 422 and "did you mean 'query'" in error.json()["error"]


@pytest.mark.parametrize("role", ["document", "query"])
def test_vectors_of_tokens_equal_the_embedder(server, models, role):
    expected = MultiVectorEmbedder(models["colbert"])([*TEXTS, LONG], role=role)
    response = server.post("/v1/multi-vector", input=[*TEXTS, LONG], input_type=role)
    answer = response.json()
    assert answer["object"] == "list" and answer["model"] == "colbert"
    assert answer["usage"]["total_tokens"] == int(response.headers["x-compute-tokens"])
    assert response.headers["x-truncated-inputs"] == "1"
    for index, (each, vectors) in enumerate(zip(answer["data"], expected, strict=True)):
        assert (each["object"], each["index"]) == ("embeddings", index)
        np.testing.assert_allclose(each["embeddings"], vectors, atol=1e-5)


def test_rerank_gives_late_interaction(server, models):
    embed = MultiVectorEmbedder(models["colbert"])
    expected = embed.scores(embed(["a net"], role="query"), embed(TEXTS))[0]
    response = server.post("/rerank", query="a net", texts=TEXTS, return_text=True)
    order = np.argsort(-expected).tolist()
    assert [each["index"] for each in response.json()] == order
    assert [each["text"] for each in response.json()] == [TEXTS[index] for index in order]
    np.testing.assert_allclose(
        [each["score"] for each in response.json()], expected[order], atol=1e-5
    )
    assert int(response.headers["x-compute-characters"]) == len("a net") + sum(map(len, TEXTS))
    (best,) = server.post("/rerank", query="a net", documents=TEXTS, top_n=1).json()["results"]
    assert best["index"] == order[0]


def test_invalid_requests(server):
    for path, fields, status, message in (
        ("/embed", {"inputs": "sea"}, 422, "splade is a sparse model, with /embed_sparse"),
        ("/embed_sparse", {"inputs": "sea", "model": "colbert"}, 422, "a multi-vector model"),
        ("/embed_sparse", {"inputs": ["sea", ""]}, 400, "`inputs[1]` is an empty text"),
        ("/embed_sparse", {"inputs": LONG, "truncate": False}, 422, "more than 20 tokens"),
        ("/embed_sparse", {"inputs": "sea", "input_type": "text"}, 422, "input_type"),
        ("/rerank", {"query": LONG, "texts": ["a"], "truncate": False}, 422, "than 18 tokens"),
        (
            "/rerank",
            {"query": "a", "texts": ["a"], "truncation_direction": "Left"},
            422,
            "is 'Left'",
        ),
    ):
        error = server.post(path, **fields)
        assert error.status_code == status and message in error.json()["error"], error.json()
    error = server.post("/v1/multi-vector", input=[])
    assert error.status_code == 400 and "`input` is empty" in error.json()["error"]["message"]


def test_models_and_routes_are_described(server):
    listed = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
    assert listed["splade"]["model_type"] == {"embedding": {"pooling": "splade"}}
    assert "/embed_sparse" in listed["splade"]["routes"]
    assert {"/v1/multi-vector", "/rerank"} <= {*listed["colbert"]["routes"]}
    similarity = {"similarity": "meanmaxsim", "width": 6}
    assert listed["colbert"]["model_type"] == {"multi_vector": similarity}
    page = server.client.get("/docs").text
    assert "/embed_sparse" in page and "/v1/multi-vector" in page
    assert server.client.get("/health").status_code == 200
    before = server.client.get("/metrics").text
    server.post("/v1/multi-vector", input=["sea"] * 5)
    lines = [line for line in before.splitlines() if "compil" in line and line[0] != "#"]
    assert lines and all(line in server.client.get("/metrics").text for line in lines)


@pytest.mark.slow
def test_no_request_of_fifty_clients_is_lost(models, tmp_path):
    small = functools.partial(small_model, tmp_path, num_hidden_layers=1, initializer_range=0.2)
    dense, cross_encoder = small(), small(head=RankingHead())
    every = {**models, "dense": dense, "cross-encoder": cross_encoder}
    rng = np.random.default_rng(0)
    words = np.array(sorted({word for text in TEXTS for word in text.split()}))
    texts = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(40)]
    expected = {
        "/embed": Embedder(dense)(texts),
        "/embed_sparse": SparseEmbedder(models["splade"])(texts).toarray(),
        "/v1/multi-vector": MultiVectorEmbedder(models["colbert"])(texts),
        "/rerank": Reranker(cross_encoder).score_pairs(list(itertools.product(texts, TEXTS))),
    }
    scores = np.reshape(expected["/rerank"], (len(texts), len(TEXTS)))

    def request(number: int) -> None:
        path, row = list(expected)[number % 4], number // 4 % len(texts)
        match path:
            case "/embed":
                (found,) = server.post(
                    path, inputs=texts[row], model="dense", normalize=False
                ).json()
                np.testing.assert_allclose(found, expected[path][row], atol=1e-5)
            case "/embed_sparse":
                fields = {"inputs": texts[row], "model": "splade"}
                (found,) = server.post(path, **fields).json()
                weights = expected[path][row]
                assert [each["index"] for each in found] == np.flatnonzero(weights).tolist()
                values = [each["value"] for each in found]
                np.testing.assert_allclose(values, weights[weights > 0], atol=1e-5)
            case "/v1/multi-vector":
                (found,) = server.post(path, input=texts[row], model="colbert").json()["data"]
                np.testing.assert_allclose(found["embeddings"], expected[path][row], atol=1e-5)
            case "/rerank":
                fields = {"query": texts[row], "texts": TEXTS}
                found = server.post(path, **fields, model="cross-encoder").json()
                by_index = {each["index"]: each["score"] for each in found}
                np.testing.assert_allclose(
                    [by_index[index] for index in range(len(TEXTS))], scores[row], atol=1e-5
                )

    config = dataclasses.replace(CONFIG, max_queue_tokens=100_000)
    served = [each for name, model in every.items() for each in serve_model(name, model, config)]
    with running_server(served, config) as server, ThreadPoolExecutor(50) as pool:
        assert len(list(pool.map(request, range(1000)))) == 1000
