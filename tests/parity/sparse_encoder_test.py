"""Compares sparse vectors with sentence-transformers' `SparseEncoder`, for folders of both."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import WORDS, word_tokenizer
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.sentence_encoder.config import TextRole
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.embedding_model import SparseModel, load_embedding_model
from bert_jax.pretrained.load import load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sparse_encoder = pytest.importorskip("sentence_transformers.sparse_encoder")
modules = pytest.importorskip("sentence_transformers.base.modules")

TEXTS = [
    "the old man mends a net by the sea",
    "",
    "a net and the sea " * 12,  # more tokens than are read
    "sea",
    "the man sings .",
]
TOLERANCE = 1e-5
VOCAB_SIZE = len(WORDS) + 5
SIZES = {"vocab_size": VOCAB_SIZE, "initializer_range": 0.3}


def bert():
    config = transformers.BertConfig(
        **SIZES,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    return transformers.BertForMaskedLM(config)


def distilbert():
    config = transformers.DistilBertConfig(
        **SIZES, dim=16, n_layers=2, n_heads=4, hidden_dim=32, max_position_embeddings=20
    )
    return transformers.DistilBertForMaskedLM(config)


def modernbert():
    config = transformers.ModernBertConfig(
        **SIZES,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=20,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
    )
    return transformers.ModernBertForMaskedLM(config)


def encoder_folder(make, folder: Path) -> Path:
    """Writes a masked-LM model with random parameters, and the tokenizer of a few words."""
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():  # biases and norms, too
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(str(folder))
    word_tokenizer(folder.parent / "vocabulary").save(folder)
    return folder


def reference_model(folder: Path, *parts, **settings):
    """Writes a sparse model of sentence-transformers and returns its folder."""
    sparse_encoder.SparseEncoder(modules=list(parts), device="cpu", **settings).save_pretrained(
        str(folder)
    )
    return folder


def opened(folder: Path):
    return sparse_encoder.SparseEncoder(str(folder), device="cpu")


def check_equal(folder: Path, texts=TEXTS):
    """Compares the vectors of queries and documents, also of the folder that we write of it."""
    embed = SparseEmbedder(load_encoder(folder))
    exported = folder.parent / "exported"
    loaded = load_embedding_model(folder)
    assert isinstance(loaded, SparseModel)
    export_retrieval_encoder(loaded, exported)
    _check_vectors(opened(folder), embed, texts)
    _check_vectors(opened(exported), SparseEmbedder(load_encoder(exported)), texts)
    return embed


def _check_vectors(reference, embed: SparseEmbedder, texts):
    by_role: dict[TextRole, Any] = {
        "query": reference.encode_query,
        "document": reference.encode_document,
    }
    for role, encode in by_role.items():
        expected = encode(texts).to_dense().numpy()
        vectors = embed(texts, role=role)
        np.testing.assert_allclose(vectors.toarray(), expected, atol=TOLERANCE, err_msg=role)
        assert vectors.nnz == np.count_nonzero(expected)


@pytest.mark.parametrize(
    ("make", "pooling"), [(bert, "max"), (distilbert, "sum"), (modernbert, "max")]
)
def test_vectors_are_those_of_sentence_transformers(make, pooling, tmp_path):
    pooling_module = sparse_encoder.modules.SpladePooling(
        pooling, activation_function="relu" if pooling == "max" else "log1p_relu"
    )
    transformer = modules.Transformer(
        str(encoder_folder(make, tmp_path / "encoder")),
        transformer_task="fill-mask",
        max_seq_length=14,
    )
    folder = reference_model(
        tmp_path / "model", transformer, pooling_module, prompts={"query": "the man : "}
    )
    embed = check_equal(folder)
    assert embed.max_length == 14 and embed.config.pooling == pooling


def test_static_queries_and_largest_weights(tmp_path):
    transformer = modules.Transformer(
        str(encoder_folder(bert, tmp_path / "encoder")),
        transformer_task="fill-mask",
        max_seq_length=14,
    )
    weight = torch.linspace(-1, 3, VOCAB_SIZE)
    static = sparse_encoder.modules.SparseStaticEmbedding(transformer.tokenizer, weight=weight)
    router = modules.Router.for_query_document(
        query_modules=[static],
        document_modules=[transformer, sparse_encoder.modules.SpladePooling("max")],
    )
    folder = reference_model(tmp_path / "model", router, max_active_dims=5)
    # sentence-transformers cannot encode an empty query.
    embed = check_equal(folder, [text for text in TEXTS if text])
    assert max(np.diff(embed(TEXTS).indptr)) == 5
    assert embed([""], role="query").nnz == 0
