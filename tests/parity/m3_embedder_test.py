"""Compares bert_jax/predict/m3_embedder.py with the formulas of FlagEmbedding, in PyTorch.

The folder is that of BGE-M3: XLM-RoBERTa, pooling of sentence-transformers, and two .pt files.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.predict.m3_embedder import M3Embedder
from bert_jax.pretrained.load import load_encoder
from tests.parity.roberta_test import SMALL, torch_model, write_tokenizer

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.models")

TEXTS = ["the cat sat.", "a cat on the mat and the dog.", "", "the the"]
TOLERANCE = 1e-5


def test_embeddings_equal_those_of_a_folder_of_bge_m3(tmp_path: Path):
    torch.manual_seed(0)
    tokenizer = write_tokenizer(tmp_path / "encoder", "xlm-roberta")
    config = dataclasses.replace(SMALL, vocab_size=len(tokenizer), model_type="xlm-roberta")
    model = torch_model(config, "Model").eval()
    model.save_pretrained(tmp_path / "encoder")
    parts = [
        modules.Transformer(str(tmp_path / "encoder"), max_seq_length=24),
        modules.Pooling(config.hidden_size, "cls"),
        modules.Normalize(),
    ]
    sentence_transformers.SentenceTransformer(modules=parts, device="cpu").save(
        str(tmp_path / "m3")
    )
    sparse = torch.nn.Linear(config.hidden_size, 1)
    colbert = torch.nn.Linear(config.hidden_size, config.hidden_size)
    torch.save(sparse.state_dict(), tmp_path / "m3/sparse_linear.pt")
    torch.save(colbert.state_dict(), tmp_path / "m3/colbert_linear.pt")
    found = M3Embedder(load_encoder(tmp_path / "m3"))(TEXTS)
    assert found.dense is not None and found.multi_vector is not None and found.sparse is not None

    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
        dense = torch.nn.functional.normalize(states[:, 0], dim=-1)
        weights = torch.relu(sparse(states)).squeeze(-1)
        tokens = torch.nn.functional.normalize(colbert(states[:, 1:]), dim=-1)
    scattered = torch.zeros(len(TEXTS), config.vocab_size)
    scattered = scattered.scatter_reduce(-1, batch["input_ids"], weights, reduce="amax")
    for name in ("cls", "eos", "pad", "unk"):
        scattered[:, getattr(tokenizer, f"{name}_token_id")] = 0
    assert (scattered > 0).any() and found.truncated == [False, True, False, False]
    np.testing.assert_allclose(found.dense, dense, atol=TOLERANCE)
    np.testing.assert_allclose(found.sparse.toarray(), scattered, atol=TOLERANCE)
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    for each, vectors, length in zip(found.multi_vector, tokens, lengths, strict=True):
        np.testing.assert_allclose(each.vectors, vectors[: length - 1], atol=TOLERANCE)
