"""Covers bert_jax/interop/huggingface.py and weight_files.py."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.errors import UserError
from bert_jax.interop import huggingface, weight_files
from bert_jax.interop.huggingface import read_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = small_config()
    parts = frozenset({"encoder", "pooler", "masked_lm", "next_sentence"})
    huggingface.write_config(tmp_path, config, parts, pad_token_id=0)
    huggingface.write_weights(tmp_path, random_parameters(config), config)
    return tmp_path


def change_config(folder: Path, **fields) -> Path:
    file = folder / "config.json"
    data = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: v for name, v in data.items() if v is not ...}))
    return file


def change_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")


def test_written_folder_is_read_back_bit_identical(folder):
    imported = huggingface.read_folder(folder)
    assert imported.config == small_config()
    assert imported.tokenizer is None
    expected = random_parameters(small_config())
    assert imported.flat_params.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(imported.flat_params[path], leaf, err_msg=path)


def test_named_tensors_are_ignored(folder):
    change_weights(folder, lambda t: {**t, "cls.structure.weight": np.ones(3, np.float32)})
    with pytest.raises(UserError, match=r"'cls\.structure\.weight'.*convert --ignore"):
        huggingface.read_folder(folder)
    with pytest.raises(
        UserError, match=r"no tensor matches the pattern to ignore, 'cls\.structure\.\*s'"
    ):
        huggingface.read_folder(folder, ["cls.structure.*s"])
    names = ["cls.structure.*", "cls.seq_relationship.*"]
    flat = huggingface.read_folder(folder, names).flat_params
    expected = random_parameters(small_config())
    assert expected.keys() - flat.keys() == {"next_sentence/bias", "next_sentence/kernel"}
    assert all(np.array_equal(flat[path], expected[path]) for path in flat)


def test_untied_head_keeps_its_table_and_bias(tmp_path):
    config = small_config(tie_word_embeddings=False, hidden_act="gelu_tanh")
    flat = random_parameters(config)
    huggingface.write_config(tmp_path, config, frozenset({"encoder", "masked_lm"}), pad_token_id=0)
    huggingface.write_weights(tmp_path, flat, config)
    imported = huggingface.read_folder(tmp_path)
    assert imported.config == config
    np.testing.assert_array_equal(
        imported.flat_params["masked_lm/decoder"], flat["masked_lm/decoder"]
    )
    assert load_file(tmp_path / "model.safetensors")["cls.predictions.decoder.bias"].any()
    # An untied model of transformers trains the decoder's bias, and leaves the other one unchanged.
    change_weights(tmp_path, lambda t: {**t, "cls.predictions.bias": np.zeros(18, np.float32)})
    again = huggingface.read_folder(tmp_path)
    np.testing.assert_array_equal(again.flat_params["masked_lm/bias"], flat["masked_lm/bias"])


def test_old_files_with_copies_buffers_and_no_prefix(folder):
    def age(tensors):
        old = {}
        for name, tensor in tensors.items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            old[name.replace("LayerNorm.bias", "LayerNorm.beta").removeprefix("bert.")] = tensor
        old["embeddings.position_ids"] = np.arange(20, dtype=np.int64)[None]
        old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
        old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
        return old

    expected = huggingface.read_folder(folder).flat_params
    change_weights(folder, age)
    found = huggingface.read_folder(folder).flat_params
    assert found.keys() == expected.keys()
    for path in expected:
        np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


def test_bias_is_read_from_the_decoder(folder):
    expected = huggingface.read_folder(folder).flat_params["masked_lm/bias"]

    def move(tensors):
        return {**tensors, "cls.predictions.decoder.bias": tensors.pop("cls.predictions.bias")}

    change_weights(folder, move)
    np.testing.assert_array_equal(
        huggingface.read_folder(folder).flat_params["masked_lm/bias"], expected
    )


def test_tied_tensors_that_differ_are_refused(folder):
    other = np.ones((18, 16), np.float32)
    change_weights(folder, lambda t: {**t, "cls.predictions.decoder.weight": other})
    with pytest.raises(UserError, match=r'decoder\.weight differs .* "tie_word_embeddings": false'):
        huggingface.read_folder(folder)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_files_become_float32(folder, dtype):
    change_weights(folder, lambda t: {name: tensor.astype(dtype) for name, tensor in t.items()})
    flat = huggingface.read_folder(folder).flat_params
    assert {leaf.dtype for leaf in flat.values()} == {np.dtype(np.float32)}
    path = "encoder/layers/0/attention/query/kernel"
    expected = random_parameters(small_config())[path].astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(flat[path], expected)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"architectures": ["BertLMHeadModel"]}, "'BertLMHeadModel'"),
        (
            {"model_type": "t5"},
            "model_type is 't5' .an encoder-decoder.*; supported are bert, roberta, .*electra",
        ),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; supported are 'gelu', 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is .*: the weights of the named heads"),
        ({"quantization_config": {"bits": 8}}, "quantization_config is .*without quantization"),
        ({"hidden_size": ...}, "integer in the field 'hidden_size'; it is absent"),
        ({"vocab_size": "18"}, "integer in the field 'vocab_size'; found '18'"),
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]"),
        ({"architectures": 5}, "architectures is 5; expected a list of names"),
        ({"architectures": [["BertModel"]]}, r"the architecture is \['BertModel'\]"),
        ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]"),
        ({"hidden_size": 32.0}, r"integer in the field 'hidden_size'; found 32\.0"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000, expected an integer from 1 to"),
        ({"num_hidden_layers": 2.5}, r"integer in the field 'num_hidden_layers'; found 2\.5"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected an integer from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected an integer"),
        ({"max_position_embeddings": -1}, "max_position_embeddings is -1, expected an integer"),
        ({"max_position_embeddings": True}, "'max_position_embeddings'; found True"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan, expected 0, or a"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps is inf, expected a number"),
        ({"layer_norm_eps": 10**400}, "number in the field 'layer_norm_eps'; found 1000"),
        ({"vocab_size": 2**24, "hidden_size": 2**20}, r"has 2\.6e\+13 parameters, expected at"),
        ({"tie_word_embeddings": "no"}, "true or false in the field 'tie_word_embeddings'"),
    ],
)
def test_unsupported_config_error_names_the_field(folder, fields, message):
    file = change_config(folder, **fields)
    with pytest.raises(UserError, match=message) as error:
        read_config(file)
    assert str(file) in str(error.value)


def test_absent_or_damaged_config_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        read_config(tmp_path / "config.json")
    for damaged in ('{"vocab_size": 3', "[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}", "\0"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
            read_config(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json: expected a JSON object, found a list"):
        read_config(tmp_path / "config.json")


def test_damaged_or_absent_weights_are_refused(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-5], b"\xff" + whole[1:], b"", b"<html>not found</html>"):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors: damaged or not in the safetens"):
            huggingface.read_folder(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"expected model\.safetensors or pytorch_model\.bin in it"):
        huggingface.read_folder(folder)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_weights_of_8_bits_are_refused(folder, dtype):
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    kind = getattr(torch, np.dtype(dtype).name)
    safetensors_torch.save_file(
        {"bert.pooler.dense.weight": torch.zeros(2, 2).to(kind)}, folder / "model.safetensors"
    )
    with pytest.raises(
        UserError, match=r"pooler\.dense\.weight has dtype F8_.*expected one of F64"
    ):
        huggingface.read_folder(folder)


def test_weights_of_integers_are_refused(folder):
    name = "bert.encoder.layer.0.output.dense.weight"
    change_weights(folder, lambda t: {**t, name: t[name].astype(np.int8)})
    with pytest.raises(UserError, match=rf"{name}' has dtype int8; expected floating-point"):
        huggingface.read_folder(folder)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unusual_tensors_of_a_bin_file_are_read_or_refused(tmp_path):
    torch = pytest.importorskip("torch")
    file, weight = tmp_path / "pytorch_model.bin", torch.eye(2)
    torch.save({"a": torch.nn.Parameter(weight)}, file)
    np.testing.assert_array_equal(weight_files.read_torch_file(file)["a"], np.eye(2))
    refused = {
        "sparse": {"a": weight.to_sparse()},
        "empty": {"a": weight.to("meta")},
        "quantized": {"a": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)},
        "only tensors with names": {7: weight},
        "found a list": [weight],
    }
    for reason, state in refused.items():
        torch.save(state, file)
        with pytest.raises(UserError, match=reason):
            weight_files.read_torch_file(file)


def test_bin_file_without_torch_is_refused(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(UserError, match="needs PyTorch, which is not installed"):
        weight_files.read_torch_file(folder / "pytorch_model.bin")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_bin_file_cannot_run_code(folder, tmp_path):
    torch = pytest.importorskip("torch")
    expected = huggingface.read_folder(folder).flat_params
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    state["bert.pooler.dense.bias"] = state["bert.pooler.dense.bias"].bfloat16()
    torch.save(state, folder / "pytorch_model.bin")
    flat = huggingface.read_folder(folder).flat_params
    np.testing.assert_array_equal(flat["next_sentence/kernel"], expected["next_sentence/kernel"])
    assert flat["pooler/dense/bias"].dtype == np.float32

    ran = tmp_path / "ran"
    for content, message in [
        ({"a": _RunsCode(ran)}, "objects other than tensors, which could run code"),
        ({"epoch": 3, "a": torch.zeros(2)}, "'epoch' is a int; expected a state dict"),
        ([torch.zeros(2)], "expected named tensors, found a list"),
    ]:
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match=message):
            huggingface.read_folder(folder)
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    with pytest.raises(UserError, match="damaged or contains objects"):
        huggingface.read_folder(folder)
    assert not ran.exists()


class _RunsCode:
    """Creates a file when it is unpickled, like a malicious checkpoint."""

    def __init__(self, file: Path):
        self._file = file

    def __reduce__(self):
        return (Path.touch, (self._file,))
