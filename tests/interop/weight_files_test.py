"""Covers bert_jax/interop/weight_files.py, and the names of tensors that wrappers change."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.weight_files import read_weights

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = small_config()
    parts = frozenset({"encoder", "pooler", "masked_lm", "next_sentence"})
    huggingface.write_config(tmp_path, config, parts, pad_token_id=0)
    huggingface.write_weights(tmp_path, random_parameters(config), config)
    return tmp_path


def assert_parameters(folder: Path) -> None:
    found, expected = huggingface.read_folder(folder).flat_params, random_parameters(small_config())
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def split_into_shards(folder: Path) -> dict[str, str]:
    """Splits model.safetensors into three shards and an index; returns the index's weight map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    weight_map = {name: shards[index % 3] for index, name in enumerate(tensors)}
    for shard in shards:
        save_file({n: t for n, t in tensors.items() if weight_map[n] == shard}, folder / shard)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Any) -> None:
    content = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(content))


def test_shards_are_read_as_one_model(folder):
    split_into_shards(folder)
    assert_parameters(folder)


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForMaskedLM"])
def test_shards_of_transformers_are_read(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    hf_config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    model = getattr(transformers, name).from_config(hf_config)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    whole, sharded = (
        huggingface.read_folder(tmp_path / kind).flat_params for kind in ("whole", "sharded")
    )
    assert whole.keys() == sharded.keys()
    for path, leaf in whole.items():
        np.testing.assert_array_equal(sharded[path], leaf, err_msg=path)


def test_shards_of_a_bin_file_are_read(folder):
    torch = pytest.importorskip("torch")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"pytorch_model-{index % 2}.bin" for index, name in enumerate(names)}
    for shard in set(weight_map.values()):
        part = {n: torch.from_numpy(t) for n, t in tensors.items() if weight_map[n] == shard}
        torch.save(part, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_parameters(folder)


def test_missing_shard_is_named(folder):
    weight_map = split_into_shards(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    message = (
        r"the shard model-00002-of-00003\.safetensors is missing; .* lists 3 shards, of which 1"
    )
    with pytest.raises(UserError, match=message):
        huggingface.read_folder(folder)
    write_index(folder, {**weight_map, "bert.more": "long" * 500})
    with pytest.raises(UserError, match="lists 4 shards, of which 2 are absent"):
        huggingface.read_folder(folder)


def test_tensor_in_two_shards_is_refused(folder):
    weight_map = split_into_shards(folder)
    name = next(n for n, shard in weight_map.items() if "00001" in shard)
    other = folder / "model-00003-of-00003.safetensors"
    save_file({**load_file(other), name: np.zeros(3, np.float32)}, other)
    with pytest.raises(
        UserError, match=f"'{name}' is in two shards, model-00001.* and model-00003"
    ):
        huggingface.read_folder(folder)


def test_index_that_differs_from_its_shards_is_refused(folder):
    weight_map = split_into_shards(folder)
    write_index(folder, {**weight_map, "bert.more": "model-00001-of-00003.safetensors"})
    with pytest.raises(
        UserError, match=r"'bert\.more' is in .*index\.json, but not in model-00001"
    ):
        huggingface.read_folder(folder)
    del weight_map["cls.predictions.bias"]
    write_index(folder, weight_map)
    with pytest.raises(
        UserError, match=r"'cls\.predictions\.bias' is in model-.*, but not in .*ind"
    ):
        huggingface.read_folder(folder)


@pytest.mark.parametrize(
    "shard", ["../other.safetensors", "/etc/passwd", "..", "a/b", "", 3, "a\0"]
)
def test_index_that_leaves_the_folder_is_refused(folder, tmp_path, shard):
    weight_map = split_into_shards(folder)
    shutil.copy(folder / "model-00001-of-00003.safetensors", tmp_path.parent / "other.safetensors")
    write_index(folder, {**weight_map, "cls.predictions.bias": shard})
    with pytest.raises(UserError, match=r"the shard of 'cls.predictions.bias' is .*name of a file"):
        huggingface.read_folder(folder)


@pytest.mark.parametrize("weight_map", [None, {}, ["a"]])
def test_index_without_weight_map_is_refused(folder, weight_map):
    split_into_shards(folder)
    write_index(folder, weight_map)
    with pytest.raises(UserError, match=r'expected "weight_map" with the shard of each tensor'):
        huggingface.read_folder(folder)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module._orig_mod.module.{name}",
        lambda name: name.replace("bert.encoder.", "bert.encoder._orig_mod."),
        lambda name: f"module.{name.removeprefix('bert.')}",
    ],
    ids=["DataParallel", "compile", "both", "compiled-encoder", "bare"],
)
def test_names_that_wrappers_change_are_recognized(folder, wrap):
    tensors = load_file(folder / "model.safetensors")
    save_file({wrap(name): t for name, t in tensors.items()}, folder / "model.safetensors")
    assert_parameters(folder)


def test_two_names_of_one_tensor_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["module.cls.predictions.bias"] = tensors["cls.predictions.bias"] + 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"are both the tensor 'cls\.predictions\.bias'"):
        huggingface.read_folder(folder)


def test_safetensors_of_any_name_is_read_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "torch", None)
    tensors = {"lora_A.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    found = read_weights(tmp_path / "adapter_model.safetensors")
    np.testing.assert_array_equal(found["lora_A.weight"], tensors["lora_A.weight"])
