"""Compares cross-encoders with sentence-transformers' `CrossEncoder`, in both directions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.heads.config import RankingHead
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.predict.reranker import Reranker
from bert_jax.pretrained.load import load_encoder
from tests.helpers.torch_parity import randomize_parameters

pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

QUERY = "the old man"
# The last ones are cut to 64 tokens with the query: a long text, and a long query.
TEXTS = ["A net by the sea, and old!", "Sea", "mends the net " * 3, "the man sings " * 40]
PAIRS = [*((QUERY, text) for text in TEXTS), ("the sea and a man " * 20, "a net " * 30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross-encoder")
    fields: Any = {
        "positions": LearnedPositions(max_position_embeddings=64),
        "initializer_range": 0.3,
    }
    export(small_model(folder / "made", head=RankingHead(), **fields), folder / "exported")
    return folder / "exported"


def test_exported_cross_encoder_scores_equal_sentence_transformers(folder):
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    expected = reference.predict(PAIRS)
    assert np.ptp(expected) > 0.05 and (expected > 0).all() and (expected < 1).all()
    rerank = Reranker(load_encoder(folder))
    np.testing.assert_allclose(rerank.score_pairs(PAIRS), expected, atol=1e-5)
    ranked = reference.rank(QUERY, TEXTS)
    assert [text.position for text in rerank.rank(QUERY, TEXTS)] == [r["corpus_id"] for r in ranked]


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_saved_cross_encoder_has_the_same_scores_here(folder, tmp_path, activation):
    import torch

    module = torch.nn.Sigmoid() if activation == "sigmoid" else torch.nn.Identity()
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu", activation_fn=module)
    randomize_parameters(reference.model, std=0.3, seed=2)
    reference.save_pretrained(str(tmp_path))
    model = load_encoder(tmp_path)
    assert model.head == RankingHead(activation=activation)
    expected = reference.predict(PAIRS)
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(Reranker(model).score_pairs(PAIRS), expected, atol=1e-5)
