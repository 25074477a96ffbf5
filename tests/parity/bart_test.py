"""Compares BART with Hugging Face's PyTorch class: outputs, folders, refused models.

Every parameter is random; `final_logits_bias` is a buffer of zeros. Covers bert_jax/models/bart.
"""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interop.seq2seq import read_seq2seq_folder
from tests.helpers.seq2seq_parity import BART_SMALL, check_seq2seq_model, torch_bart

MEDIUM = dataclasses.replace(
    BART_SMALL,
    vocab_size=301,
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=130,
    num_encoder_layers=1,
    max_position_embeddings=40,
    forced_bos_token_id=0,
)


@pytest.mark.parametrize(
    "config",
    [BART_SMALL, pytest.param(MEDIUM, marks=pytest.mark.slow)],
    ids=["small", "medium"],
)
def test_outputs_cached_decoding_and_folders(tmp_path, config):
    check_seq2seq_model(torch_bart(config), config, tmp_path)
    tensors = load_file(tmp_path / "exported" / "model.safetensors")
    np.testing.assert_array_equal(tensors["final_logits_bias"], np.zeros((1, config.vocab_size)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("normalize_before", True, "normalize_before is True; only False is supported: .* mBART"),
        ("scale_embedding", True, "scale_embedding is True; only False is supported"),
        ("static_position_embeddings", True, "static_position_embeddings is True"),
        ("decoder_ffn_dim", 8, "encoder_ffn_dim is 70 and decoder_ffn_dim is 8; only equal"),
        (
            "architectures",
            ["BartForCausalLM"],
            "architecture is 'BartForCausalLM'; expected one of",
        ),
        ("model_type", "mbart", "model_type is 'mbart' .its layers are pre-norm"),
        ("eos_token_id", None, "eos_token_id is null; expected the id of the end token"),
    ],
)
def test_unsupported_configs_are_refused_by_field(tmp_path, field, value, message):
    torch_bart(BART_SMALL).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(UserError, match=message):
        read_seq2seq_folder(tmp_path)


def test_bias_of_logits_and_unequal_tables_are_refused(tmp_path):
    torch_bart(BART_SMALL).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name, message in (
        ("final_logits_bias", "final_logits_bias has values other than 0"),
        ("model.encoder.embed_tokens.weight", "embed_tokens.weight differs from model.shared"),
    ):
        changed = np.ones_like(tensors.get(name, tensors["model.shared.weight"]))
        save_file(tensors | {name: changed}, file)
        with pytest.raises(UserError, match=message):
            read_seq2seq_folder(tmp_path)
