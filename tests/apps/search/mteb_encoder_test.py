"""Covers bert_jax/apps/search/mteb_encoder.py, called as mteb calls an encoder."""

import dataclasses
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.search.mteb_encoder import MtebEncoder
from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import (
    EmbeddingConfig,
    Prompt,
    SentenceEncoderConfig,
    SparseEncoderConfig,
)
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.load import LoadedModel

TEXTS = ["a net by the sea", "the man", "the net"]
PROMPTS = {
    "query": "the ",
    "passage": "a ",
    "Nets": "by ",
    "Nets-query": "man by ",
    "Retrieval-document": "man ",
    "STS": "net ",
}
CONFIG = SentenceEncoderConfig(
    prompts=tuple(Prompt(name=name, text=text) for name, text in PROMPTS.items())
)
WithConfig = Callable[[EmbeddingConfig], LoadedModel]


@pytest.fixture(scope="module")
def with_config(tmp_path_factory: pytest.TempPathFactory) -> WithConfig:
    model = small_model(tmp_path_factory.mktemp("vocabulary"), initializer_range=0.2)
    return lambda config: dataclasses.replace(model, sentence_encoder=config)


def encode(encoder, name, kind, role, **encode_kwargs) -> np.ndarray:
    """Calls `encode` as mteb's evaluators do; a DataLoader yields such batches."""
    metadata: Any = SimpleNamespace(name=name, type=kind)
    return encoder.encode(
        [{"text": TEXTS[:2], "id": ["0", "1"]}, {"text": TEXTS[2:], "id": ["2"]}],
        task_metadata=metadata,
        hf_split="test",
        hf_subset="default",
        prompt_type=role,
        batch_size=2,
        **encode_kwargs,
    )


@pytest.mark.parametrize(
    ("name", "kind", "role", "prompt_name"),
    [
        ("Nets", "Retrieval", "query", "Nets-query"),
        ("Nets", "Retrieval", "document", "Nets"),
        ("Boats", "Retrieval", "document", "Retrieval-document"),
        ("Boats", "Retrieval", "query", "query"),
        ("Boats", "Reranking", "document", "passage"),
        ("Boats", "STS", None, "STS"),
        ("Boats", "Clustering", None, None),
    ],
)
def test_a_text_gets_the_most_specific_prompt(with_config, name, kind, role, prompt_name):
    model = with_config(CONFIG)
    expected = Embedder(model)(TEXTS, prompt_name=prompt_name)
    np.testing.assert_allclose(encode(MtebEncoder(model), name, kind, role), expected, atol=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_vectors_are_compared_as_the_model_says(with_config, similarity):
    encoder = MtebEncoder(with_config(SentenceEncoderConfig(similarity=similarity)))
    first, second = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
    expected = first @ second.T
    if similarity == "cosine":
        norms = [np.linalg.norm(vectors, axis=1) for vectors in (first, second)]
        expected = expected / np.outer(*norms)
    np.testing.assert_allclose(encoder.similarity(first, second), expected, atol=1e-5)
    pairs = encoder.similarity_pairwise(first, second)
    np.testing.assert_allclose(pairs, np.diag(expected), atol=1e-5)


def test_results_are_stored_by_the_weights(with_config, monkeypatch):
    class ModelMeta(SimpleNamespace):
        create_empty = classmethod(lambda cls, fields: cls(**fields))

    module: Any = ModuleType("mteb.models.model_meta")  # mteb is no dependency
    module.ModelMeta, module.ScoringFunction = ModelMeta, str
    for name in ("mteb", "mteb.models", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    model = with_config(SentenceEncoderConfig(similarity="dot"))
    meta = MtebEncoder(model, name="me/model").mteb_model_meta
    assert (meta.name, meta.embed_dim, meta.max_tokens) == ("me/model", 16, 20)
    assert meta.similarity_fn_name == "dot"
    assert MtebEncoder(model).mteb_model_meta.revision == meta.revision
    params = jax.tree.map(lambda array: array + 1, model.params)
    other = MtebEncoder(dataclasses.replace(model, params=params)).mteb_model_meta
    assert other.name == model.path and other.revision != meta.revision


def test_the_number_of_truncated_texts_is_counted(with_config):
    encoder = MtebEncoder(with_config(SentenceEncoderConfig(max_seq_length=4)))
    encode(encoder, "Nets", "STS", None)
    assert encoder.num_truncated == 1


def test_what_mteb_cannot_compare_is_refused(with_config):
    with pytest.raises(UserError, match=r"is a sparse model; expected a dense one: `bert-jax sear"):
        MtebEncoder(with_config(SparseEncoderConfig()))
    encoder = MtebEncoder(with_config(CONFIG))
    with pytest.raises(UserError, match="precision 'int8', but vectors are float32; remove it"):
        encode(encoder, "Nets", "STS", None, precision="int8")
