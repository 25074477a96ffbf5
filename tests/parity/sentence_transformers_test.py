"""Compares vectors with sentence-transformers, for folders that either library wrote."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.export.sentence_encoder import export_sentence_encoder, with_choices
from bert_jax.models.sentence_encoder.config import POOLING_MODES
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.embedding_model import load_sentence_model, sentence_model_of
from bert_jax.pretrained.load import load_encoder

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
    embed = Embedder(load_encoder(written))
    assert embed.max_length == 14 and embed.embedding_size == 6
    for prompt in ({}, {"prompt_name": "query"}, {"prompt": "sea "}, {"prompt": ""}):
        expected = reference.encode(TEXTS, **prompt)
        np.testing.assert_allclose(
            embed(TEXTS, **prompt), expected, atol=TOLERANCE, err_msg=str(prompt)
        )


def test_exported_folder_opens_in_the_spelling_of_old_versions(written, tmp_path):
    """The folder that sentence-transformers wrote, in the new spelling, is written in the old."""
    sentence = load_sentence_model(written)
    assert export_sentence_encoder(sentence, tmp_path / "exported") <= TOLERANCE
    modules = json.loads((tmp_path / "exported" / "modules.json").read_text())
    assert [module["type"] for module in modules] == [
        f"sentence_transformers.models.{name}"
        for name in ("Transformer", "Pooling", "Dense", "Normalize")
    ]
    reference, opened = (
        sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        for folder in (written, tmp_path / "exported")
    )
    assert opened.prompts["query"] == "the man : " and opened.default_prompt_name == "passage"
    assert (opened.max_seq_length, opened.truncate_dim) == (14, 6)
    for prompt in ({}, {"prompt": ""}):
        np.testing.assert_allclose(
            opened.encode(TEXTS, **prompt), reference.encode(TEXTS, **prompt), atol=1e-6
        )


def test_any_encoder_is_exported_with_a_chosen_pooling(tmp_path):
    model = small_model(tmp_path / "vocabulary")
    sentence = with_choices(sentence_model_of(model), "max", True)
    export_sentence_encoder(sentence, tmp_path / "exported")
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    vectors = Embedder(load_encoder(tmp_path / "exported"))(TEXTS)
    np.testing.assert_allclose(opened.encode(TEXTS), vectors, atol=TOLERANCE)
    np.testing.assert_allclose(
        vectors, Embedder(model, pooling="max", normalize=True)(TEXTS), atol=1e-6
    )
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "Pooling:\nmax, Normalize." in card
