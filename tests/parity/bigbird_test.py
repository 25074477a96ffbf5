"""Compares BigBird with Hugging Face's PyTorch classes in float32: outputs, training, folders.

Every parameter is random, biases and norms too; batches are padded. Only real tokens are compared:
the hidden states of padding have no meaning. Batches of 24 tokens have 12 blocks of 2 tokens, which
is more than the 11 up to which attention is full.
families_test.py has what all families are compared in.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.batch import ENCODER_FIELDS
from bert_jax.export.export import export
from bert_jax.models.bigbird.attention import random_blocks
from bert_jax.models.heads.config import QuestionAnsweringHead
from bert_jax.models.model import build_network, run_forward
from bert_jax.pretrained.load import load_encoder
from tests.helpers.families import FAMILIES
from tests.helpers.folder_parity import assert_same_tensors
from tests.helpers.torch_parity import (
    jax_head_outputs,
    load_exported,
    torch_head_outputs,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["bigbird"]
SMALL, torch_model = FAMILY.small, FAMILY.torch_model


def padded_batch(length: int) -> Any:
    return pretraining_batch(
        batch_size=3, seq_length=length, max_predictions_per_seq=4, vocab_size=103
    )


def test_pretraining_heads_both_ways(tmp_path):
    model, batch = torch_model(SMALL, "ForPreTraining"), padded_batch(24)
    model.save_pretrained(tmp_path / "torch")
    loaded = load_encoder(tmp_path / "torch")
    found = run_forward(loaded.params, loaded.config, batch)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(batch[name]).long() for name in ENCODER_FIELDS})
    real = batch["attention_mask"] > 0
    for name, rows in (("prediction_logits", real), ("seq_relationship_logits", slice(None))):
        logits = found["masked_lm" if rows is real else "next_sentence"]
        assert expected[name].std() > 0.005
        np.testing.assert_allclose(logits[rows], expected[name].numpy()[rows], rtol=0, atol=1e-5)
    export(loaded, tmp_path / "exported")
    reopened = load_exported(transformers.AutoModelForPreTraining, tmp_path / "exported")
    assert_same_tensors(model, reopened)


@pytest.mark.parametrize("length", [pytest.param(12, marks=pytest.mark.slow), 22, 23, 101])
def test_lengths_of_full_and_of_block_sparse_attention(tmp_path, length):
    model, batch = torch_model(SMALL, "ForMaskedLM"), padded_batch(length)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(batch[name]).long() for name in ENCODER_FIELDS})
    real = batch["attention_mask"] > 0
    found = run_forward(load_encoder(tmp_path).params, SMALL, batch)["masked_lm"]
    np.testing.assert_allclose(found[real], expected.logits.numpy()[real], rtol=0, atol=1e-5)


def test_question_answering_folders_both_ways(tmp_path):
    """Hugging Face's class subtracts 1e6 from the logits of the question, all but the first."""
    model = torch_model(SMALL, "ForQuestionAnswering")
    model.save_pretrained(tmp_path / "torch")
    loaded = load_encoder(tmp_path / "torch")
    batch = padded_batch(24)
    batch["input_ids"][:, 4] = SMALL.sep_token_id
    batch["input_ids"][:, 1:4] = 5
    expected = torch_head_outputs(
        model, {name: torch.from_numpy(batch[name]).long() for name in ENCODER_FIELDS}
    )
    found = jax_head_outputs(loaded.params, SMALL, QuestionAnsweringHead(), batch)
    context = (batch["attention_mask"] > 0) & ((np.arange(24) > 4) | (np.arange(24) == 0))
    for name, logits in expected.items():
        assert logits[context].std() > 0.005 and (logits[:, 1:5] < -9e5).all()
        np.testing.assert_allclose(found[name][context], logits[context], rtol=0, atol=1e-5)
    assert export(loaded, tmp_path / "exported") == 0.0
    auto_class = transformers.AutoModelForQuestionAnswering
    assert_same_tensors(model, load_exported(auto_class, tmp_path / "exported"))


def test_training_attends_to_the_random_blocks_of_each_layer_and_head(tmp_path):
    config = dataclasses.replace(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = torch_model(config, "Model")
    model.save_pretrained(tmp_path)
    params = {"encoder": load_encoder(tmp_path).params["encoder"]}
    ids = np.random.default_rng(0).integers(5, 103, (2, 60)).astype(np.int32)
    ids_array = jnp.asarray(ids)

    def hidden(dropout_key):
        encoder = build_network(config).merge(params).encoder
        return jax.jit(lambda: encoder(ids_array, dropout_key=dropout_key).last_hidden_state)()

    with torch.no_grad():
        for model_in_mode, key in ((model.train(), jax.random.key(0)), (model.eval(), None)):
            model_in_mode.train(key is not None)
            expected = model_in_mode(torch.from_numpy(ids).long()).last_hidden_state.numpy()
            np.testing.assert_allclose(hidden(key), expected, rtol=0, atol=1e-5)
    assert np.abs(hidden(jax.random.key(0)) - hidden(None)).max() > 0.01


@pytest.mark.parametrize("length", [1024, 2048, 4096])
def test_random_blocks_are_those_of_hugging_face(length):
    config = transformers.BigBirdConfig(hidden_size=24, num_attention_heads=2)
    module = transformers.models.big_bird.modeling_big_bird.BigBirdBlockSparseAttention
    attention = module(config, seed=3).train()
    np.random.seed(3)
    if length == 2048:
        plan = attention._get_rand_attn_plan(length, 64, 3)
        expected = attention._bigbird_block_rand_mask_with_head(length, length, 64, 64, 2, *plan)
    else:
        expected = [
            attention._bigbird_block_rand_mask(4096, 4096, 64, 64, 3, last_idx=1024)
            [: length // 64 - 2]
            for _ in range(2)
        ]  # fmt: skip
    found = random_blocks(
        num_blocks=length // 64, block_size=64, num_heads=2, num_random_blocks=3,
        max_position_embeddings=4096, seed=3,
    )  # fmt: skip
    np.testing.assert_array_equal(found, np.stack(expected))
