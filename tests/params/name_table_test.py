"""Covers bert_jax/params/name_table.py and the tables of models/bert/: names both ways."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.bert.huggingface import HUGGING_FACE, TIED, UNTIED
from bert_jax.models.bert.tf1 import TF1
from bert_jax.objectives.config import Pretraining
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.params.name_table import Ignored, NameMapping, NameTable
from bert_jax.testing.models import random_parameters, small_config


@pytest.mark.parametrize("table, tied", [(TIED, True), (UNTIED, False), (TF1, True)])
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
    external = TIED.to_external(flat)
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
        TIED.from_external({"lm_head.weight": np.zeros(2)}, "model.bin")


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
