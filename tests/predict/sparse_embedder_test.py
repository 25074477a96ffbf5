"""Covers bert_jax/predict/sparse_embedder.py with NumPy over the logits of each text alone."""

import json
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.model import run_forward
from bert_jax.models.sentence_encoder.config import Prompt, SparseEncoderConfig
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.embedding_model import SparseModel
from bert_jax.pretrained.load import load_encoder

TEXTS = ["the old man mends a net by the sea", "", "a net", "sea " * 30]
QUERY_WEIGHTS = np.linspace(0.5, 2.0, 18).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("vocabulary"), initializer_range=0.2)


def sparse(model, **fields) -> SparseModel:
    head = {"query_weights": QUERY_WEIGHTS} if fields.get("has_static_queries") else {}
    return SparseModel(model=model, config=SparseEncoderConfig(**fields), head_params=head)


def logits(model, text: str, max_length: int = 20) -> np.ndarray:
    """Returns the masked-LM logits of one text without padding, [L, V]."""
    ids = [model.tokenizer.cls_id, *model.tokenizer.encode(text)[: max_length - 2]]
    ids = np.array([[*ids, model.tokenizer.sep_id]], np.int32)
    batch = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
    }
    return run_forward(model.params, model.config, batch)["masked_lm"][0]


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_weights_are_saturated_and_pooled_logits(model, pooling, activation):
    embed = SparseEmbedder(sparse(model, pooling=pooling, activation=activation))
    vectors, truncated = embed.embed(TEXTS)
    assert truncated == [False, False, False, True] and embed.num_truncated == 1
    for vector, text in zip(vectors.toarray(), TEXTS, strict=True):
        weights = np.log1p(np.maximum(logits(model, text), 0))
        weights = np.log1p(weights) if activation == "log1p_relu" else weights
        expected = getattr(weights, pooling)(axis=0)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_prompts_roles_and_largest_weights(model):
    prompts = (Prompt(name="query", text="the "), Prompt(name="passage", text="a "))
    embed = SparseEmbedder(sparse(model, prompts=prompts, max_seq_length=8), max_active_dims=3)
    prefixes: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "a "),
        ({"role": "query"}, "the "),
        ({"prompt_name": "query"}, "the "),
        ({"prompt": ""}, ""),
    )
    for chosen, prefix in prefixes:
        vector = embed(["net"], **chosen).toarray()[0]
        weights = np.log1p(np.maximum(logits(model, f"{prefix}net", 8), 0)).max(axis=0)
        smallest = np.sort(weights)[-3]
        expected = np.where(weights >= smallest, weights, 0)
        np.testing.assert_allclose(vector, expected, atol=1e-5, err_msg=str(chosen))
    with pytest.raises(UserError, match="there is no prompt 'querry'; did you mean 'query'"):
        embed(["net"], prompt_name="querry")


def test_static_queries_are_the_weights_of_their_tokens(model):
    embed = SparseEmbedder(sparse(model, has_static_queries=True, query_length=4))
    vectors, truncated = embed.embed(["net net", "", "a net by the sea"], role="query")
    ids = model.tokenizer.encode("a net by the")
    expected = np.zeros((3, 18), np.float32)
    expected[0, ids[1]] = QUERY_WEIGHTS[ids[1]]
    expected[2, ids] = QUERY_WEIGHTS[ids]
    np.testing.assert_array_equal(vectors.toarray(), expected)
    assert truncated == [False, False, True]
    np.testing.assert_array_equal(
        embed(["net"]).toarray(), SparseEmbedder(sparse(model))(["net"]).toarray()
    )


def test_command_prints_the_weights_of_tokens(model, tmp_path, capsys):
    folder = tmp_path / "splade"
    export_retrieval_encoder(sparse(model, has_static_queries=True), folder)
    texts = ["net", ""]
    vectors = SparseEmbedder(sparse(model))(texts).toarray()
    assert main(["embed", str(folder), *texts]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for record, text, vector in zip(records, texts, vectors, strict=True):
        assert record["text"] == text and record["truncated"] is False
        weights = list(record["embedding"].values())
        assert weights == sorted(weights, reverse=True) and len(weights) == np.count_nonzero(vector)
        for token, weight in record["embedding"].items():
            assert weight == pytest.approx(vector[model.tokenizer.token_to_id(token)], abs=1e-5)
    assert main(["embed", str(folder), "--role", "query", "net the"]) == 0
    (record,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(record["embedding"]) == ["net", "the"]


def test_flags_of_other_kinds_of_models_are_refused(model, tmp_path, capsys):
    folder, dense = tmp_path / "splade", tmp_path / "dense"
    export_retrieval_encoder(sparse(model), folder)
    export(model, dense)
    for arguments, message in (
        ([str(folder), "--pooling", "cls", "a"], "is a sparse model, which does not use --pooling"),
        ([str(dense), "--role", "query", "a"], "so it does not use --role; choose a prompt with"),
    ):
        assert main(["embed", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError, match="expected a sentence encoder, which has one dense vector"):
        Embedder(load_encoder(folder))
