"""Covers bert_jax/predict/multi_vector_embedder.py with NumPy over each text alone."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.model import run_forward
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    Prompt,
    QueryExpansion,
)
from bert_jax.models.sentence_encoder.multi_vector import max_sim
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.pretrained.embedding_model import MultiVectorModel

KERNEL = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
PROJECTION = (Dense(in_features=16, out_features=6, bias=False, activation=None), Normalize())
TEXTS = ["the old man mends a net .", "", "net", "sea " * 30]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("vocabulary"), initializer_range=0.2)


def multi_vector(model, **fields) -> MultiVectorModel:
    config = MultiVectorEncoderConfig(modules=PROJECTION, **fields)
    head = {"dense": {"0": {"kernel": KERNEL}}}
    return MultiVectorModel(model=model, config=config, head_params=head)


def reference(model, ids: list[int], attended: int | None = None) -> np.ndarray:
    """Returns the normalized projection of each token of a text without padding, [L, 6]."""
    batch = {
        "input_ids": np.array([ids], np.int32),
        "token_type_ids": np.zeros((1, len(ids)), np.int32),
        "attention_mask": (np.arange(len(ids)) < (attended or len(ids)))[None].astype(np.int32),
    }
    vectors = run_forward(model.params, model.config, batch)["hidden_states"][-1][0] @ KERNEL
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def token_ids(model, text: str, max_length: int = 20) -> list[int]:
    tokenizer = model.tokenizer
    return [tokenizer.cls_id, *tokenizer.encode(text)[: max_length - 2], tokenizer.sep_id]


def test_documents_have_a_vector_for_each_token_that_is_not_skipped(model):
    period = model.tokenizer.token_to_id(".")
    embed = MultiVectorEmbedder(multi_vector(model, skip_token_ids=(period,), document_length=12))
    for text, embedded in zip(TEXTS, embed.embed(TEXTS), strict=True):
        ids = token_ids(model, text, 12)
        expected = reference(model, ids)[np.array(ids) != period]
        np.testing.assert_allclose(embedded.vectors, expected, atol=1e-5)
        assert embedded.is_truncated == (text == TEXTS[-1]) and "." not in embed.tokens(embedded)
    assert embed.num_truncated == 1


@pytest.mark.parametrize("is_attended", [False, True])
@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_queries_are_extended_with_masks(model, is_attended, strategy):
    mask = model.tokenizer.mask_id
    expansion = QueryExpansion(length=7, token_id=mask, is_attended=is_attended, strategy=strategy)
    embed = MultiVectorEmbedder(
        multi_vector(model, expansion=expansion, skip_token_ids=(mask,), query_length=9)
    )
    for text, embedded in zip(TEXTS, embed.embed(TEXTS, role="query"), strict=True):
        ids = token_ids(model, text, 7 if strategy == "fixed" else 9)
        extended = ids + [mask] * (7 - len(ids))
        expected = reference(model, extended, None if is_attended else len(ids))
        np.testing.assert_allclose(embedded.vectors, expected, atol=1e-5, err_msg=text)


def test_prefixes_that_are_tokens_are_not_split(model):
    prompts = (Prompt(name="query", text="##s"), Prompt(name="document", text="##ed a "))
    embed = MultiVectorEmbedder(multi_vector(model, prompts=prompts, has_prefix_tokens=True))
    (query,), (document,) = embed.embed(["net"], role="query"), embed.embed(["net"])
    assert embed.tokens(query) == ["[CLS]", "##s", "net", "[SEP]"]
    assert embed.tokens(document) == ["[CLS]", "##ed", "a", "net", "[SEP]"]


@pytest.mark.parametrize("similarity", ["maxsim", "meanmaxsim"])
def test_scores_are_sums_of_largest_products(model, similarity):
    embed = MultiVectorEmbedder(multi_vector(model, similarity=similarity))
    queries, documents = embed(["a net", "sea"], role="query"), embed(TEXTS)
    expected = np.array([[(q @ d.T).max(1).sum() for d in documents] for q in queries])
    if similarity == "meanmaxsim":
        expected /= np.array([[len(q)] for q in queries])
    np.testing.assert_allclose(embed.scores(queries, documents), expected, rtol=1e-6)
    assert embed.scores([], documents).shape == (0, 4)
    with pytest.raises(UserError, match="a text without vectors cannot be scored"):
        embed.scores(queries, [np.zeros((0, 6), np.float32)])

    def padded(texts):
        width = max(map(len, texts)) + 2
        arrays = [np.pad(t, ((0, width - len(t)), (0, 0)), constant_values=9.0) for t in texts]
        have = np.array([np.arange(width) < len(t) for t in texts])
        return jnp.asarray(np.stack(arrays)), jnp.asarray(have)

    scores = max_sim(*padded(queries), *padded(documents), is_mean=similarity == "meanmaxsim")
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_command_prints_the_vector_of_each_token(model, tmp_path, capsys):
    folder, expansion = tmp_path / "colbert", QueryExpansion(length=7, token_id=4)
    retrieval = multi_vector(model, expansion=expansion)
    assert export_retrieval_encoder(retrieval, folder) < 1e-5
    assert main(["embed", str(folder), "--role", "query", "a net"]) == 0
    (record,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert record["tokens"] == ["[CLS]", "a", "net", "[SEP]", *["[MASK]"] * 3]
    (expected,) = MultiVectorEmbedder(retrieval)(["a net"], role="query")
    np.testing.assert_allclose(record["embedding"], expected, atol=1e-5)
    assert main(["embed", str(folder), "--dimensions", "2", "a net"]) == 2
    assert "is a multi-vector model, which does not use --dimensions" in capsys.readouterr().err
