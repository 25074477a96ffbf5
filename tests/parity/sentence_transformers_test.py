"""Compares vectors with sentence-transformers, for folders that either library wrote."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from bert_jax.export.export import export
from bert_jax.models.sentence_encoder.config import POOLING_MODES
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.load import load_model
from bert_jax.testing.models import small_model

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = [
    "the old man mends a net by the sea",
    "",
    "a net and the sea " * 120,  # 600 tokens
    "sea",
    "the man sings .",
]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that sentence-transformers wrote, with all poolings and modules."""
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    base = tmp_path_factory.mktemp("model")
    export(small_model(base / "vocabulary"), base / "encoder")
    torch.manual_seed(0)
    pooling = modules.Pooling(16, pooling_mode=POOLING_MODES, include_prompt=False)
    dense = modules.Dense(16 * len(POOLING_MODES), 8, activation_function=torch.nn.ReLU())
    transformer = modules.Transformer(str(base / "encoder"), max_seq_length=14)
    model = sentence_transformers.SentenceTransformer(
        modules=[transformer, pooling, dense, modules.Normalize()],
        prompts={"query": "the man : ", "passage": "a "},
        default_prompt_name="passage",
        truncate_dim=6,
        device="cpu",
    )
    model.save_pretrained(str(base / "sentence_model"))
    return base / "sentence_model"


def test_vectors_are_those_of_sentence_transformers(written):
    reference = sentence_transformers.SentenceTransformer(str(written), device="cpu")
    embed = Embedder(load_model(written))
    assert embed.max_length == 14 and embed.embedding_size == 6
    for prompt in ({}, {"prompt_name": "query"}, {"prompt": "sea "}, {"prompt": ""}):
        expected = reference.encode(TEXTS, **prompt)
        np.testing.assert_allclose(
            embed.vectors(TEXTS, **prompt), expected, atol=TOLERANCE, err_msg=str(prompt)
        )
