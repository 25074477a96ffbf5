"""Compares searches of bert_jax/apps/search with the scores of sentence-transformers' models."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.search.build import build_index
from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.encoder import text_encoder_of
from bert_jax.apps.search.late_interaction import pool_tokens
from bert_jax.apps.testing.models import small_model
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.sentence_encoder.config import (
    Dense,
    LateInteraction,
    MultiVectorEncoderConfig,
    Normalize,
    Prompt,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.pretrained.embedding_model import MultiVectorModel, SparseModel
from bert_jax.pretrained.load import load_encoder
from bert_jax.tasks.metrics.vectors import normalize_vectors

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = ["the old man mends a net by the sea", "sea", "a net and the sea " * 12, "the man sings ."]
QUERIES = ["a net", "who mends the old net by the sea and sings"]
PROMPTS = (Prompt(name="query", text="the "), Prompt(name="document", text="a "))


def compare_scores(folder: Path, external, index_folder: Path, **options: bool) -> None:
    encoder = text_encoder_of(load_encoder(folder))
    documents = [Document(str(n), text) for n, text in enumerate(TEXTS)]
    index = build_index(index_folder, documents, encoder)
    found = index.search(encoder, QUERIES, len(TEXTS))
    queries = external.encode_query(QUERIES, **options)
    vectors = external.encode_document(TEXTS, **options)
    expected = np.asarray(external.similarity(queries, vectors))
    for hits, scores in zip(found, expected, strict=True):
        assert len(hits) == len(TEXTS)
        for hit in hits:
            assert hit.score == pytest.approx(scores[hit.row], abs=1e-4)


def test_sparse_scores(tmp_path):
    model = small_model(tmp_path / "vocabulary", initializer_range=0.2)
    config = SparseEncoderConfig(prompts=PROMPTS)
    export_retrieval_encoder(SparseModel(model=model, config=config), tmp_path / "splade")
    external = sentence_transformers.SparseEncoder(str(tmp_path / "splade"), device="cpu")
    dense = {"convert_to_sparse_tensor": False}  # sparse tensors of PyTorch warn
    compare_scores(tmp_path / "splade", external, tmp_path / "index", **dense)


@pytest.mark.parametrize("similarity", ["maxsim", "meanmaxsim"])
def test_multi_vector_scores(tmp_path, similarity: LateInteraction):
    model = small_model(tmp_path / "vocabulary", initializer_range=0.2)
    kernel = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    config = MultiVectorEncoderConfig(
        modules=(Dense(in_features=16, out_features=8, bias=False, activation=None), Normalize()),
        prompts=PROMPTS,
        expansion=QueryExpansion(length=9, token_id=4),
        similarity=similarity,
    )
    head = {"dense": {"0": {"kernel": kernel}}}
    multi_vector = MultiVectorModel(model=model, config=config, head_params=head)
    export_retrieval_encoder(multi_vector, tmp_path / "colbert")
    external = sentence_transformers.MultiVectorEncoder(str(tmp_path / "colbert"), device="cpu")
    compare_scores(tmp_path / "colbert", external, tmp_path / "index")


@pytest.mark.parametrize("factor", [1, 2, 3, 50])
def test_pooled_tokens(factor):
    modules = pytest.importorskip("sentence_transformers.multi_vector_encoder.modules")
    pooling = modules.HierarchicalTokenPooling(factor)
    for count in (1, 2, 9, 40):
        vectors = np.random.default_rng(count).normal(size=(count, 12)).astype(np.float32)
        vectors = normalize_vectors(vectors)
        expected = pooling.pool_one(torch.from_numpy(vectors)).numpy()
        np.testing.assert_allclose(pool_tokens(vectors, factor), expected, atol=1e-5)
