"""Covers bert_jax/params/name_table.py and the tables of models/bert/: names both ways."""

import numpy as np
import pytest

from bert_jax.apps.testing.models import random_parameters, small_config
from bert_jax.config.objectives import Pretraining
from bert_jax.errors import UserError
from bert_jax.models.bert.huggingface import HUGGING_FACE, TABLES
from bert_jax.models.bert.tf1 import TF1
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.params.name_table import Ignored, NameMapping, NameTable, Packed


@pytest.mark.parametrize("table, tied", [(TABLES.tied, True), (TABLES.untied, False), (TF1, True)])
def test_round_trip_of_every_parameter_is_bit_identical(table, tied):
    config = small_config(tie_word_embeddings=tied)
    program = PretrainingObjective(Pretraining(model=config, mask_token_id=4))
    flat = random_parameters(config)
    assert flat.keys() == paths.flatten(program.abstract()).keys()
    external = table.to_external(flat)
    assert len(external) == len(flat)
    back = table.from_external(external, "memory")
    assert back.keys() == flat.keys()
    for path, leaf in flat.items():
        np.testing.assert_array_equal(back[path], leaf, err_msg=path)


def test_names_and_transposition_of_some_tensors():
    flat = random_parameters(small_config())
    external = TABLES.tied.to_external(flat)
    kernel = flat["encoder/layers/1/feed_forward/intermediate/kernel"]
    np.testing.assert_array_equal(
        external["bert.encoder.layer.1.intermediate.dense.weight"], kernel.T
    )
    word_vectors = flat["encoder/embeddings/word_embeddings/embedding"]
    np.testing.assert_array_equal(external["bert.embeddings.word_embeddings.weight"], word_vectors)
    google = TF1.to_external(flat)
    np.testing.assert_array_equal(
        google["cls/seq_relationship/output_weights"], flat["next_sentence/kernel"].T
    )
    np.testing.assert_array_equal(google["bert/encoder/layer_1/intermediate/dense/kernel"], kernel)


def test_unknown_tensor_is_named():
    with pytest.raises(UserError, match=r"model\.bin: unknown tensor 'lm_head.weight'"):
        TABLES.tied.from_external({"lm_head.weight": np.zeros(2)}, "model.bin")


def test_only_ignored_tensors_are_left_out():
    moments = {"bert/pooler/dense/bias/adam_m": np.zeros(2), "global_step": np.array(20)}
    assert TF1.from_external(moments, "x") == {}
    assert TF1.parameter_names([*moments, "bert/pooler/dense/bias"], "x") == [
        "bert/pooler/dense/bias"
    ]
    with pytest.raises(UserError, match="'bert/pooler/dense/bias/Adam'"):
        TF1.parameter_names(["bert/pooler/dense/bias/Adam"], "x")


def test_two_tensors_of_one_parameter_are_refused():
    table = NameTable(
        "t", [NameMapping("a/*/b", "x.*.b"), NameMapping("c", "c")], [Ignored("d", "why")], "."
    )
    assert table.from_external({"x.3.b": np.ones(1), "d": np.ones(1)}, "f").keys() == {"a/3/b"}
    doubled = NameTable("t", [NameMapping("a", "b"), NameMapping("a", "c")], [], ".")
    with pytest.raises(UserError, match="two tensors are the parameter a"):
        doubled.from_external({"b": np.ones(1), "c": np.ones(1)}, "f")


def test_old_tensor_names_become_canonical():
    expected = "bert.encoder.layer.0.output.LayerNorm.weight"
    assert HUGGING_FACE.canonical("encoder.layer.0.output.LayerNorm.gamma") == expected
    assert HUGGING_FACE.canonical("bert.encoder.layer.0.output.LayerNorm.weight") == expected
    assert HUGGING_FACE.canonical("cls.predictions.bias") == "cls.predictions.bias"


JOINT = NameTable(
    "joint",
    [
        Packed(
            ("l/*/q/kernel", "l/*/k/kernel", "l/*/v/kernel"), "h.*.Wqkv.weight", transposed=True
        ),
        Packed(("l/*/q/bias", "l/*/k/bias", "l/*/v/bias"), "h.*.Wqkv.bias"),
        NameMapping("l/*/scale", "h.*.norm.weight"),
    ],
    [Ignored("**.rotary_emb.inv_freq", "a buffer in old files")],
    separator=".",
)


def test_packed_tensor_is_split_along_its_output_axis():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(12, 5)), rng.normal(size=(12,))
    tensors = {
        "h.10.Wqkv.weight": weight,
        "h.10.Wqkv.bias": bias,
        "h.10.norm.weight": rng.normal(size=(5,)),
        "h.10.attn.rotary_emb.inv_freq": rng.normal(size=(2,)),
    }
    flat = JOINT.from_external(tensors, "memory")
    x = rng.normal(size=(3, 5))
    q, k, v = np.split(x @ weight.T + bias, 3, axis=-1)  # as PyTorch computes and splits them
    for name, expected in {"q": q, "k": k, "v": v}.items():
        found = x @ flat[f"l/10/{name}/kernel"] + flat[f"l/10/{name}/bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)
    back = JOINT.to_external(dict(reversed(flat.items())))
    assert back.keys() == tensors.keys() - {"h.10.attn.rotary_emb.inv_freq"}
    for name, tensor in back.items():
        np.testing.assert_array_equal(tensor, tensors[name], err_msg=name)


def test_packed_tensor_without_equal_parts_is_refused():
    with pytest.raises(UserError, match=r"'h\.0\.Wqkv\.weight' has shape \[10, 5\].* 3 equal"):
        JOINT.from_external({"h.0.Wqkv.weight": np.zeros((10, 5))}, "f")
    with pytest.raises(UserError, match=r"Wqkv\.bias' has shape \[\]"):
        JOINT.from_external({"h.0.Wqkv.bias": np.zeros(())}, "f")


def test_incomplete_packed_parameters_are_refused():
    with pytest.raises(KeyError, match="l/0/v/bias"):
        JOINT.to_external({"l/0/q/bias": np.zeros(4), "l/0/k/bias": np.zeros(4)})
    assert JOINT.parameter_names(["h.0.Wqkv.bias", "a.rotary_emb.inv_freq"], "f") == [
        "h.0.Wqkv.bias"
    ]
