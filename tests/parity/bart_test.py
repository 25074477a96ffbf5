"""Compares BART with Hugging Face's PyTorch class: outputs, folders, refused models.

Every parameter is random; `final_logits_bias` is a buffer of zeros. Covers bert_jax/models/bart.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interop.seq2seq import read_seq2seq_folder
from bert_jax.models.bart.config import BartConfig
from tests.helpers.seq2seq_parity import check_seq2seq_model
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = BartConfig(
    vocab_size=103,
    hidden_size=48,
    num_attention_heads=3,
    intermediate_size=70,
    num_encoder_layers=3,
    num_decoder_layers=2,
    max_position_embeddings=20,
)
MEDIUM = dataclasses.replace(
    SMALL,
    vocab_size=301,
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=130,
    num_encoder_layers=1,
    max_position_embeddings=40,
    forced_bos_token_id=0,
)


def torch_model(config: BartConfig, seed: int = 0, std: float = 0.1) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.BartConfig(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_attention_heads,
        decoder_attention_heads=config.num_attention_heads,
        encoder_ffn_dim=config.intermediate_size,
        decoder_ffn_dim=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        forced_bos_token_id=config.forced_bos_token_id,
        attn_implementation="eager",
    )
    model = transformers.BartForConditionalGeneration(hf_config)
    return randomize_parameters(model, std=std, seed=seed)


@pytest.mark.parametrize("config", [SMALL, MEDIUM], ids=["small", "medium"])
def test_outputs_cached_decoding_and_folders(tmp_path, config):
    check_seq2seq_model(torch_model(config), config, tmp_path)


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
    torch_model(SMALL).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(UserError, match=message):
        read_seq2seq_folder(tmp_path)


def test_bias_of_logits_and_unequal_tables_are_refused(tmp_path):
    torch_model(SMALL).save_pretrained(tmp_path)
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
