"""Compares scores of cross-encoders with the predictions of their classifiers."""

import dataclasses

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.models.heads.config import (
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
)
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.reranker import Reranker
from bert_jax.pretrained.load import LoadedModel

QUERY, TEXTS = "the sea", ["a net", "the old man mends a net by the sea", "a man sings"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return small_model(tmp_path_factory.mktemp("vocabulary"), head=RankingHead())


def test_score_is_the_sigmoid_of_the_logit_unless_it_is_the_identity(model):
    predictions = Predictor(model)([(QUERY, text) for text in TEXTS])
    logits = np.array([prediction["logit"] for prediction in predictions])
    scores = Reranker(model)(QUERY, TEXTS)
    assert scores.dtype == np.float64 and len({*scores}) == 3
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert [p["score"] for p in predictions] == pytest.approx(scores.tolist(), rel=1e-5)
    raw = dataclasses.replace(model, head=RankingHead(activation="identity"))
    np.testing.assert_allclose(Reranker(raw)(QUERY, TEXTS), logits, rtol=1e-5)
    regression = dataclasses.replace(model, head=RegressionHead())
    np.testing.assert_allclose(Reranker(regression)(QUERY, TEXTS), scores, rtol=1e-5)


def test_sigmoids_of_large_logits_differ(model, monkeypatch):
    rerank = Reranker(model)
    logits = [{"logit": 20.0}, {"logit": 25.0}]
    monkeypatch.setattr(rerank, "_predict", lambda pairs, on_progress: logits)
    assert [each.position for each in rerank.rank(QUERY, TEXTS[:2])] == [1, 0]


def test_ranked_texts_are_in_the_order_of_their_scores(model):
    rerank = Reranker(model)
    scores = rerank(QUERY, TEXTS)
    ranked = rerank.rank(QUERY, TEXTS)
    assert [text.position for text in ranked] == np.argsort(-scores).tolist()
    assert all(text.text == TEXTS[text.position] for text in ranked)
    assert rerank.rank(QUERY, TEXTS, top_k=1) == ranked[:1]
    assert rerank(QUERY, []).shape == (0,)


def test_inputs_that_cannot_be_scored(model, tmp_path):
    with pytest.raises(TypeError, match="expected a list of texts"):
        Reranker(model)(QUERY, "a net")
    with pytest.raises(UserError, match="a text is empty"):
        Reranker(model)(QUERY, ["a net", " "])
    classifier = small_model(tmp_path, head=SequenceClassificationHead(labels=("no", "yes")))
    with pytest.raises(UserError, match=r"model for classification.*expected a cross-encoder"):
        Reranker(classifier)
