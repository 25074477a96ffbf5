"""The name tables: complete over our parameters, exact both ways, loud about anything else."""

import numpy as np
import pytest

from bert_jax import paths
from bert_jax.errors import UserError
from bert_jax.interop.huggingface_names import TIED, UNTIED, canonical
from bert_jax.interop.names import Dropped, NameTable, Row
from bert_jax.interop.tf1_names import TF1
from bert_jax.programs.config import Pretraining
from bert_jax.programs.pretraining import PretrainingProgram
from bert_jax.testing.models import random_parameters, small_config


@pytest.mark.parametrize("table, tied", [(TIED, True), (UNTIED, False), (TF1, True)])
def test_there_and_back_is_bit_identical_for_every_parameter_of_the_program(table, tied):
    config = small_config(tie_word_embeddings=tied)
    program = PretrainingProgram(Pretraining(model=config, mask_token_id=4))
    flat = random_parameters(config)
    assert flat.keys() == paths.flatten(program.abstract()).keys()
    theirs = table.to_theirs(flat)
    assert len(theirs) == len(flat)
    back = table.from_theirs(theirs, "memory")
    assert back.keys() == flat.keys()
    for path, leaf in flat.items():
        np.testing.assert_array_equal(back[path], leaf, err_msg=path)


def test_names_and_transposition_of_some_tensors():
    flat = random_parameters(small_config())
    theirs = TIED.to_theirs(flat)
    kernel = flat["encoder/layers/1/feed_forward/intermediate/kernel"]
    np.testing.assert_array_equal(
        theirs["bert.encoder.layer.1.intermediate.dense.weight"], kernel.T
    )
    word_vectors = flat["encoder/embeddings/word_embeddings/embedding"]
    np.testing.assert_array_equal(theirs["bert.embeddings.word_embeddings.weight"], word_vectors)
    google = TF1.to_theirs(flat)
    np.testing.assert_array_equal(
        google["cls/seq_relationship/output_weights"], flat["next_sentence/kernel"].T
    )
    np.testing.assert_array_equal(google["bert/encoder/layer_1/intermediate/dense/kernel"], kernel)


def test_an_unknown_tensor_is_named():
    with pytest.raises(UserError, match=r"model\.bin: the tensor 'lm_head.weight' is not"):
        TIED.from_theirs({"lm_head.weight": np.zeros(2)}, "model.bin")


def test_what_is_dropped_is_dropped_by_a_row():
    moments = {"bert/pooler/dense/bias/adam_m": np.zeros(2), "global_step": np.array(20)}
    assert TF1.from_theirs(moments, "x") == {}
    assert TF1.kept([*moments, "bert/pooler/dense/bias"], "x") == ["bert/pooler/dense/bias"]
    with pytest.raises(UserError, match="'bert/pooler/dense/bias/Adam'"):
        TF1.kept(["bert/pooler/dense/bias/Adam"], "x")


def test_two_tensors_for_one_parameter_are_refused():
    table = NameTable("t", [Row("a/*/b", "x.*.b"), Row("c", "c")], [Dropped("d", "why")], ".")
    assert table.from_theirs({"x.3.b": np.ones(1), "d": np.ones(1)}, "f").keys() == {"a/3/b"}
    doubled = NameTable("t", [Row("a", "b"), Row("a", "c")], [], ".")
    with pytest.raises(UserError, match="two tensors are the parameter a"):
        doubled.from_theirs({"b": np.ones(1), "c": np.ones(1)}, "f")


def test_older_spellings_have_one_canonical_name():
    expected = "bert.encoder.layer.0.output.LayerNorm.weight"
    assert canonical("encoder.layer.0.output.LayerNorm.gamma") == expected
    assert canonical("bert.encoder.layer.0.output.LayerNorm.weight") == expected
    assert canonical("cls.predictions.bias") == "cls.predictions.bias"
