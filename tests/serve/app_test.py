"""Sends requests to a server with tiny models. Covers bert_jax/serve/ except the page."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bert_jax.models.heads.config import (
    QuestionAnsweringHead,
    RegressionHead,
    SequenceClassificationHead,
    TaskHead,
    TokenClassificationHead,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.predictor import Predictor
from bert_jax.pretrained.load import LoadedModel
from bert_jax.serve.config import ServerConfig
from bert_jax.serve.served_models import serve_model
from bert_jax.testing.models import small_model
from tests.helpers.server import RunningServer, running_server

CONFIG = ServerConfig(max_batch_tokens=32, max_queue_tokens=4000, max_inputs=100)
HEADS: dict[str, TaskHead | None] = {
    "encoder": None,
    "reviews": SequenceClassificationHead(labels=("bad", "fair", "good")),
    "relevance": RegressionHead(),
    "names": TokenClassificationHead(labels=("O", "B-PER", "I-PER")),
    "questions": QuestionAnsweringHead(),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    return {
        name: small_model(folder, head=head, num_hidden_layers=1) for name, head in HEADS.items()
    }


@pytest.fixture(scope="module")
def server(models: dict[str, LoadedModel]) -> Iterator[RunningServer]:
    served = [each for name in models for each in serve_model(name, models[name], CONFIG)]
    with running_server(served, CONFIG) as running:
        yield running


def test_embed_equals_normalized_vectors_of_the_embedder(server, models):
    texts = ["the old man", "a net by the sea and the old man"]
    response = server.post("/embed", inputs=texts)
    assert response.status_code == 200
    vectors = np.stack([each.vector for each in Embedder(models["encoder"])(texts)])
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(response.json(), expected, atol=1e-6)


def test_predict_equals_probabilities_of_the_predictor(server, models):
    inputs = ["a net", ("the sea", "the old man")]
    response = server.post("/predict", inputs=[["a net"], ["the sea", "the old man"]])
    for scores, record in zip(response.json(), Predictor(models["reviews"])(inputs), strict=True):
        assert scores == sorted(scores, key=lambda score: -score["score"])
        found = {score["label"]: score["score"] for score in scores}
        assert found == pytest.approx(record["probabilities"], abs=1e-6)


def test_health_is_200_after_all_programs_are_compiled(server):
    assert server.client.get("/health").status_code == 200
