"""Covers bert_jax/predict/m3_embedder.py, bert_jax/interop/m3_heads.py and `embed --heads`."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.__main__ import main
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.m3_embedder import M3Embedder
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.pretrained.embedding_model import MultiVectorModel
from bert_jax.pretrained.load import load_encoder, require_tokenizer
from tests.helpers.m3_folder import LINEAR, write_m3_folder

TEXTS = ["the old man mends a net by the sea", "", "net net boat the net", "a " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder in the layout of BGE-M3, with a prompt that is not pooled."""
    return write_m3_folder(tmp_path_factory.mktemp("m3"))


def token_vectors(folder: Path, *modules: Dense | Normalize) -> list[np.ndarray]:
    """Returns the output of the modules for each token, computed in a pass of its own."""
    model = load_encoder(folder)
    linear = LINEAR["colbert_linear"]
    dense = {"0": {"kernel": linear["weight"].T, "bias": linear["bias"]}} if modules else {}
    config = MultiVectorEncoderConfig(modules=modules)
    separate = MultiVectorModel(model=model, config=config, head_params={"dense": dense})
    return MultiVectorEmbedder(separate)(TEXTS)


def test_one_pass_gives_what_separate_passes_give(folder):
    model = load_encoder(folder)
    found = M3Embedder(model)(TEXTS)
    assert found.dense is not None and found.multi_vector is not None and found.sparse is not None
    assert found.truncated == [False, False, False, True]
    np.testing.assert_allclose(found.dense, Embedder(model)(TEXTS), atol=1e-6)
    layer = Dense(in_features=16, out_features=8, activation=None)
    for each, vectors in zip(
        found.multi_vector, token_vectors(folder, layer, Normalize()), strict=True
    ):
        np.testing.assert_allclose(each.vectors, vectors[1:], atol=1e-6)
    # The weights, by a loop over the tokens.
    tokenizer = require_tokenizer(model)
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id}
    expected = np.zeros((len(TEXTS), model.config.vocab_size))
    linear = LINEAR["sparse_linear"]
    for row, states in enumerate(token_vectors(folder)):
        ids = [tokenizer.cls_id, *found.multi_vector[row].token_ids]
        for token, state in zip(ids, states, strict=True):
            weight = max(float(state @ linear["weight"][0] + linear["bias"][0]), 0.0)
            if token not in special:
                expected[row, token] = max(expected[row, token], weight)
    assert 4 < (expected > 0).sum() < sum(len(set(e.token_ids)) for e in found.multi_vector) - 4
    np.testing.assert_allclose(found.sparse.toarray(), expected, atol=1e-5)


def test_only_the_chosen_kinds_are_computed_and_no_text_is_a_result(folder):
    embed = M3Embedder(load_encoder(folder), ("sparse",))
    found = embed(TEXTS[:1])
    assert found.dense is None and found.multi_vector is None
    assert found.sparse is not None and found.sparse.shape == (1, 18)
    empty = M3Embedder(load_encoder(folder))([])
    assert empty.dense is not None and empty.dense.shape == (0, 16)
    assert empty.sparse is not None and empty.sparse.shape == (0, 18)


def test_a_prompt_is_read_and_not_pooled(folder):
    model = load_encoder(folder)
    found = M3Embedder(model)(["man mends a net"], prompt_name="query")
    expected = Embedder(model)(["man mends a net"], prompt_name="query")
    assert found.dense is not None and found.multi_vector is not None
    np.testing.assert_allclose(found.dense, expected, atol=1e-6)
    tokens = M3Embedder(model).tokens(found.multi_vector[0])
    assert tokens == ["the", "old", "man", "mend", "##s", "a", "net", "[SEP]"]


def test_verb_prints_all_embeddings_of_a_text(folder, capsys):
    command = ["embed", str(folder), "--heads", "dense,sparse,multi-vector", *TEXTS[:1]]
    assert main(command) == 0
    (line,) = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    embed = M3Embedder(load_encoder(folder))
    found = embed(TEXTS[:1])
    assert found.dense is not None and found.multi_vector is not None and found.sparse is not None
    assert list(record) == ["text", "truncated", "dense", "sparse", "tokens", "multi_vector"]
    np.testing.assert_allclose(record["dense"], found.dense[0])
    assert record["sparse"] == embed.weights(found.sparse)[0]
    assert record["tokens"] == embed.tokens(found.multi_vector[0])
    np.testing.assert_allclose(record["multi_vector"], found.multi_vector[0].vectors)


def test_heads_that_are_not_possible_are_refused(folder, tmp_path, capsys):
    with pytest.raises(UserError, match=r"kinds is \(\); expected at least one of dense, sparse"):
        M3Embedder(load_encoder(folder), ())
    for file in folder.iterdir():
        if file.is_file() and not file.name.startswith(("sparse", "colbert")):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "1_Pooling").symlink_to(folder / "1_Pooling")
    (tmp_path / "2_Normalize").mkdir()
    with pytest.raises(UserError, match=r"no colbert_linear\.pt, the multi-vector head of BGE-M3"):
        M3Embedder(load_encoder(tmp_path), ("multi_vector",))
    linear = LINEAR["colbert_linear"]
    save_file(linear, tmp_path / "sparse_linear.safetensors")
    with pytest.raises(UserError, match=r"'weight': \(8, 16\).*expected 'weight' \[1, 16\] and 'b"):
        M3Embedder(load_encoder(tmp_path))
    save_file({"weight": linear["weight"]}, tmp_path / "colbert_linear.safetensors")
    with pytest.raises(UserError, match=r"expected 'weight' \[E, 16\] and 'bias', a linear layer"):
        M3Embedder(load_encoder(tmp_path), ("multi_vector",))
    assert main(["embed", str(folder), "--heads", "dense,colbert", "a net"]) == 2
    assert "--heads has 'colbert'; expected dense, sparse, multi-vector" in capsys.readouterr().err
    assert main(["embed", str(folder), "--heads", "dense", "--pooling", "mean", "a net"]) == 2
    assert "--heads does not use --pooling; remove one of them" in capsys.readouterr().err
