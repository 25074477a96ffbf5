"""Covers bert_jax/interop/sparse_encoder.py and multi_vector_encoder.py with mistaken folders.

The comparison with sentence-transformers is in tests/parity/.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.retrieval_encoder import export_retrieval_encoder
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.pretrained.embedding_model import (
    MultiVectorModel,
    SparseModel,
    load_embedding_model,
    load_sentence_model,
)

MODEL, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
SPLADE = "sentence_transformers.sparse_encoder.models.SpladePooling"
MASK = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
def splade(model, tmp_path) -> Path:
    config = SparseEncoderConfig(max_active_dims=7)
    export_retrieval_encoder(SparseModel(model=model, config=config), tmp_path / "splade")
    return tmp_path / "splade"


@pytest.fixture
def static(model, tmp_path) -> Path:
    sparse = SparseModel(
        model=model,
        config=SparseEncoderConfig(has_static_queries=True),
        head_params={"query_weights": np.ones(18, np.float32)},
    )
    export_retrieval_encoder(sparse, tmp_path / "static")
    return tmp_path / "static"


@pytest.fixture
def colbert(model, tmp_path) -> Path:
    modules = Dense(in_features=16, out_features=4, bias=False, activation=None), Normalize()
    config = MultiVectorEncoderConfig(
        modules=modules, expansion=QueryExpansion(length=8, token_id=4, strategy="min")
    )
    multi_vector = MultiVectorModel(
        model=model,
        config=config,
        head_params={"dense": {"0": {"kernel": np.ones((16, 4), np.float32)}}},
    )
    export_retrieval_encoder(multi_vector, tmp_path / "colbert")
    return tmp_path / "colbert"


def edit(folder: Path, name: str, **changes: Any) -> None:
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_modules(folder: Path, change) -> None:
    file = folder / "modules.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def test_missing_and_doubled_modules_of_sparse_models_are_refused(splade, static):
    modules = (splade / "modules.json").read_text()
    for change, names in (
        (lambda entries: entries[:1], "MLMTransformer"),
        (lambda entries: [*entries, entries[1]], "MLMTransformer, SpladePooling, SpladePooling"),
        (lambda entries: entries[::-1], "SpladePooling, MLMTransformer"),
    ):
        edit_modules(splade, change)
        with pytest.raises(UserError, match=f"sparse model are {names}; supported are"):
            load_embedding_model(splade)
        (splade / "modules.json").write_text(modules)
    edit_modules(static, lambda entries: [*entries, {"type": SPLADE, "path": "x"}])
    with pytest.raises(UserError, match="Router, SpladePooling; expected nothing after the Router"):
        load_embedding_model(static)


def test_routes_that_are_not_supported_are_refused(static):
    router = json.loads((static / "router_config.json").read_text())
    query, (document, pooling) = router["structure"]["query"], router["structure"]["document"]
    for structure, message in (
        ({"query": query}, "the routes are query; expected query and document"),
        ({"query": [*query, pooling], "document": [document, pooling]}, "modules of queries are"),
        ({"query": query, "document": [document]}, "sparse model are MLMTransformer; supported"),
        ({"query": query, "document": [document, "other"]}, "no class for the module 'other'"),
        ({"query": [], "document": [document]}, r"route 'query' is \[\], expected modules"),
    ):
        edit(static, "router_config.json", structure=structure)
        with pytest.raises(UserError, match=message):
            load_embedding_model(static)


def test_vocabularies_that_do_not_fit_are_refused(splade, static):
    edit(splade, "1_SpladePooling/config.json", word_embedding_dimension=30522)
    with pytest.raises(UserError, match=r"30522 components, but the vocabulary .* has 18 tokens"):
        load_embedding_model(splade)
    folder = static / "query_0_SparseStaticEmbedding"
    save_file({"weight": np.ones(17, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"'weight': \(17,\)}, but .* has 18 tokens"):
        load_embedding_model(static)
    edit(static, "query_0_SparseStaticEmbedding/config.json", path="idf.json")
    with pytest.raises(UserError, match=r"the weights of queries are in 'idf.json'"):
        load_embedding_model(static)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "'mean', expected one of"),
        ("1_SpladePooling/config.json", {"activation_function": "gelu"}, "'gelu', expected one of"),
        (TRANSFORMER, {"transformer_task": "feature-extraction"}, "expected 'fill-mask'"),
        (TRANSFORMER, {"max_seq_length": 1}, "max_seq_length is 1"),
        (MODEL, {"max_active_dims": 0}, "max_active_dims is 0"),
        (MODEL, {"similarity_fn_name": "maxsim"}, "'maxsim', expected one of dot"),
        (MODEL, {"model_type": "CrossEncoder"}, "is a cross-encoder"),
        (MODEL, {"model_type": "MultiVectorEncoder"}, "module 0 is .*MLMTransformer"),
        ("config.json", {"architectures": ["BertModel"]}, None),
    ],
)
def test_impossible_values_of_sparse_models_are_refused(splade, name, changes, message):
    edit(splade, name, **changes)
    if message is None:  # the weights have the head, whatever the name of the class
        assert isinstance(load_embedding_model(splade), SparseModel)
        return
    with pytest.raises(UserError, match=message):
        load_embedding_model(splade)


def test_missing_and_doubled_modules_of_multi_vector_models_are_refused(colbert):
    modules = (colbert / "modules.json").read_text()
    for change, message in (
        (lambda e: [e[0], *e[2:]], "MultiVectorMask occurs 0 times .* expected it 1 times"),
        (lambda e: [*e, e[1]], "MultiVectorMask occurs 2 times"),
        (lambda e: [e[0], e[0], *e[1:]], "module 1 is .*Transformer; supported are"),
        (lambda e: [*e, e[2]], "in_features 16, but its input has 4 components; its files disag"),
        (lambda e: e[1:], "module 0 is .*MultiVectorMask; supported are Transformer first"),
    ):
        edit_modules(colbert, change)
        with pytest.raises(UserError, match=message):
            load_embedding_model(colbert)
        (colbert / "modules.json").write_text(modules)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (TRANSFORMER, {"query_expansion": {"strategy": "all", "length": 8}}, "'all', expected one"),
        (TRANSFORMER, {"query_expansion": {"strategy": "min"}}, "has the length None"),
        (TRANSFORMER, {"query_expansion": 8}, "query_expansion is 8, expected an object or null"),
        (
            TRANSFORMER,
            {"query_expansion": {"strategy": "min", "length": 8, "token": "<x>"}},
            "is '<x>', which the vocabulary of 18 tokens does not have",
        ),
        (
            TRANSFORMER,
            {"query_expansion": {"strategy": "min", "length": 21}},
            "extended to 21 tokens, but the encoder reads at most 20",
        ),
        (TRANSFORMER, {"document_length": -1}, "document_length is -1"),
        ("1_MultiVectorMask/config.json", {"skiplist_words": "."}, "skiplist_words is '.'"),
        ("1_MultiVectorMask/config.json", {"skiplist_tasks": ["all"]}, r"\['all'\], expected quer"),
        ("1_MultiVectorMask/config.json", {"keep_only_token_ids": [1]}, "which is for images"),
        ("2_Dense/config.json", {"module_input_name": "sentence_embedding"}, "a vector for each"),
        ("3_Normalize/config.json", {"module_input_name": None}, "module_input_name is None"),
        (MODEL, {"similarity_fn_name": "cosine"}, "'cosine', expected one of maxsim"),
        (MODEL, {"query_prefix": "[Q]"}, "query_prefix are settings of PyLate"),
        (MODEL, {"model_type": "ColBERT"}, "module 1 is .*MultiVectorMask; supported are"),
    ],
)
def test_impossible_values_of_multi_vector_models_are_refused(colbert, name, changes, message):
    edit(colbert, name, **changes)
    with pytest.raises(UserError, match=message):
        load_embedding_model(colbert)


def test_kinds_are_not_taken_for_each_other(splade, colbert):
    for folder, kind in ((splade, "sparse"), (colbert, "multi-vector")):
        with pytest.raises(UserError, match=f"is a {kind} model .* expected a sentence encoder"):
            load_sentence_model(folder)
    edit_modules(splade, lambda entries: [{**entries[0], "path": "../other"}, entries[1]])
    with pytest.raises(UserError, match=r"path of module 0 is '../other', outside the folder"):
        load_embedding_model(splade)
