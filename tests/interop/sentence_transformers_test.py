"""Covers bert_jax/interop/sentence_transformers/ and bert_jax/pretrained/load.py.

The comparison with sentence-transformers is tests/parity/sentence_transformers_test.py.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.apps.testing.models import small_model
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.interop.sentence_folder import transformer_folder
from bert_jax.interop.sentence_transformers import (
    SentenceHead,
    read_sentence_head,
    write_sentence_head,
)
from bert_jax.interop.weight_files import read_weights
from bert_jax.models.sentence_encoder.config import (
    Dense,
    Normalize,
    Prompt,
    SentenceEncoderConfig,
)
from bert_jax.pretrained.embedding_model import load_sentence_model

CONFIG = SentenceEncoderConfig(
    pooling=("cls", "mean"),
    include_prompt=False,
    modules=(
        Dense(in_features=32, out_features=8, activation="relu"),
        Normalize(),
        Dense(in_features=8, out_features=4, bias=False, activation=None),
    ),
    max_seq_length=12,
    prompts=(Prompt(name="query", text="query: "), Prompt(name="document", text="")),
    default_prompt_name="query",
    similarity="dot",
    truncate_dim=3,
)
HIDDEN_SIZE = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder of sentence-transformers without an encoder."""
    rng = np.random.default_rng(0)
    params = {
        "dense/0/kernel": rng.normal(size=(32, 8)),
        "dense/0/bias": rng.normal(size=8),
        "dense/1/kernel": rng.normal(size=(8, 4)),
    }
    head = SentenceHead(CONFIG, {name: leaf.astype(np.float32) for name, leaf in params.items()})
    write_sentence_head(tmp_path, head, HIDDEN_SIZE, 20)
    return tmp_path


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Changes fields of a JSON file; None removes the field."""
    data = json.loads((folder / name).read_text()) | changes
    remaining = {key: value for key, value in data.items() if value is not None}
    (folder / name).write_text(json.dumps(remaining))


def edit_module(folder: Path, index: int, **changes: Any) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[index] |= changes
    (folder / "modules.json").write_text(json.dumps(modules))


def test_folder_is_the_same_head_when_read_back(folder):
    config, params = read_sentence_head(folder, HIDDEN_SIZE)
    assert config == CONFIG
    assert sorted(params) == ["dense/0/bias", "dense/0/kernel", "dense/1/kernel"]
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(params["dense/0/kernel"], rng.normal(size=(32, 8)).astype("f4"))
    weight = read_weights(folder / "2_Dense" / "model.safetensors")["linear.weight"]
    np.testing.assert_array_equal(weight, params["dense/0/kernel"].T)
    assert json.loads((folder / "1_Pooling" / "config.json").read_text()) == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": False,
        "include_prompt": False,
    }


def test_spelling_since_5_4_is_read(folder):
    base, old = "sentence_transformers.base.modules", "sentence_transformers.sentence_transformer"
    for index, module_type in enumerate(
        (f"{base}.transformer.Transformer", f"{old}.modules.pooling.Pooling")
    ):
        edit_module(folder, index, type=module_type)
    for index, name in ((2, "dense.Dense"), (3, "normalize.Normalize"), (4, "dense.Dense")):
        edit_module(folder, index, type=f"{base}.{name}")
    pooling = {"embedding_dimension": 16, "pooling_mode": ["cls", "mean"], "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    edit(folder, "2_Dense/config.json", **names)
    edit(folder, "3_Normalize/config.json", **names)
    assert read_sentence_head(folder, HIDDEN_SIZE).config == CONFIG


def test_without_a_pooling_the_mean_is_assumed_and_reported(folder, caplog):
    (folder / "1_Pooling" / "config.json").unlink()
    for name in ("2_Dense", "3_Normalize", "4_Dense"):
        assert (folder / name).exists()
    modules = json.loads((folder / "modules.json").read_text())[:2]
    (folder / "modules.json").write_text(json.dumps(modules))
    edit(folder, "config_sentence_transformers.json", truncate_dim=None)
    with caplog.at_level(logging.WARNING):
        assert read_sentence_head(folder, HIDDEN_SIZE).config.pooling == ("mean",)
    assert "has no 1_Pooling/config.json, so the pooling is assumed to be the mean" in caplog.text


def test_length_is_that_of_the_tokenizer_without_a_length(folder):
    (folder / "sentence_bert_config.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    assert read_sentence_head(folder, HIDDEN_SIZE).config.max_seq_length == 7
    (folder / "tokenizer_config.json").write_text(f'{{"model_max_length": {10**30}}}')
    assert read_sentence_head(folder, HIDDEN_SIZE).config.max_seq_length is None


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (1, {"type": "sentence_transformers.models.LSTM"}, "module 1 is .*LSTM; supported are"),
        (2, {"type": "my_package.Dense"}, "module 2 is my_package.Dense"),
        (1, {"type": "sentence_transformers.sparse_encoder.models.SpladePooling"}, "sparse model"),
        (2, {"type": "pylate.models.Dense.Dense"}, "a multi-vector model"),
        (2, {"path": "../other"}, "path of module 2 is '../other', outside the folder"),
        (2, {"type": "sentence_transformers.models.Pooling"}, r"Pooling is at \[1, 2\]"),
        (3, {"path": 3}, 'entry 3 has no "type" and "path"'),
    ],
)
def test_modules_that_are_not_supported_are_refused(folder, index, changes, message):
    edit_module(folder, index, **changes)
    with pytest.raises(UserError, match=message):
        read_sentence_head(folder, HIDDEN_SIZE)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "first"}, "'first', expected one of cls, max"),
        ("1_Pooling/config.json", {"pooling_mode": []}, r"pooling_mode is \[\]"),
        ("1_Pooling/config.json", {"embedding_dimension": 24}, "size 24, .* hidden_size 16"),
        ("1_Pooling/config.json", {"include_prompt": "no"}, "include_prompt is 'no'"),
        ("2_Dense/config.json", {"in_features": 24}, r"describes {'linear.weight': \(8, 24\)"),
        ("2_Dense/config.json", {"out_features": "8"}, "out_features is '8', expected a size"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "'os.system', expected one"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual is true"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "multi-vector model"),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}, "multi-vector"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length is 'long'"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "'fill-mask'; expected"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "a sparse model"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "expected a text for each name"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "but prompts has"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim is 0"),
        ("config_sentence_transformers.json", {"truncate_dim": 9}, "have 4 .*files disagree"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "'maxsim'"),
    ],
)
def test_impossible_values_are_refused(folder, name, changes, message):
    edit(folder, name, **changes)
    with pytest.raises(UserError, match=message):
        read_sentence_head(folder, HIDDEN_SIZE)


def test_activations_and_orders_without_a_name_are_refused(tmp_path):
    dense = Dense(in_features=16, out_features=4, activation="gelu_tanh")
    for config, message in (
        (SentenceEncoderConfig(modules=(dense,)), "gelu_tanh"),
        (SentenceEncoderConfig(pooling=("mean", "cls")), "in the order cls, mean"),
    ):
        params = {"dense/0/kernel": np.zeros((16, 4)), "dense/0/bias": np.zeros(4)}
        with pytest.raises(UserError, match=message):
            write_sentence_head(tmp_path, SentenceHead(config, params), HIDDEN_SIZE, 20)


def test_sentence_model_reads_subfolders_and_refuses_nan(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    export(small_model(other / "vocabulary"), folder / "0_Transformer")
    edit_module(folder, 0, path="0_Transformer")
    assert transformer_folder(folder) == folder / "0_Transformer"
    # Old folders have this file next to the encoder.
    (folder / "sentence_bert_config.json").rename(
        folder / "0_Transformer" / "sentence_bert_config.json"
    )
    model = load_sentence_model(folder)
    assert model.is_trained and model.max_length == 12 and model.config == CONFIG
    file = folder / "2_Dense" / "model.safetensors"
    save_file({**read_weights(file), "linear.bias": np.full(8, np.nan, np.float32)}, file)
    with pytest.raises(UserError, match="sentence_head/dense/0/bias has values that are not finit"):
        load_sentence_model(folder)
