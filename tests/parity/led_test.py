"""Compares LED with Hugging Face's PyTorch class: outputs, folders, refused models.

Every parameter is random, and the first token of each source is global. Covers
bert_jax/models/led.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.seq2seq import read_seq2seq_folder
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.led.config import LedConfig
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.params import paths
from tests.helpers.seq2seq_parity import LED_SMALL, check_seq2seq_model, torch_led

MEDIUM = dataclasses.replace(
    LED_SMALL,
    vocab_size=301,
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=130,
    num_encoder_layers=2,
    max_position_embeddings=40,
    max_decoder_position_embeddings=64,
    attention_window=(10, 10),
)


@pytest.mark.parametrize("config", [LED_SMALL, MEDIUM], ids=["small", "medium"])
def test_outputs_cached_decoding_and_folders(tmp_path, config):
    check_seq2seq_model(torch_led(config), config, tmp_path)


def test_base_has_the_published_number_of_parameters():
    flat = paths.flatten(build_encoder_decoder_network(LedConfig()).abstract())
    assert paths.count_parameters(flat)[0] == 161_844_480


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("attention_window", [4, 8], "attention_window has 2 values, expected .* 3 layers"),
        ("attention_window", 5, "attention_window has 5 for layer 0, expected an even number"),
        ("attention_window", 50, "attention_window has 50 for layer 0, .* room for 48 tokens"),
        ("max_decoder_position_embeddings", 0, "max_decoder_position_embeddings is 0, expected"),
        ("decoder_ffn_dim", 8, "encoder_ffn_dim is 70 and decoder_ffn_dim is 8; only equal"),
        ("encoder_layerdrop", 0.1, "encoder_layerdrop is 0.1; .*LayerDrop is not supported"),
        ("architectures", ["LEDForQuestionAnswering"], "'LEDForQuestionAnswering'; expected one"),
    ],
)
def test_unsupported_configs_are_refused_by_field(tmp_path, field, value, message):
    torch_led(LED_SMALL).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(UserError, match=message):
        read_seq2seq_folder(tmp_path)


def test_packed_sources_and_scans_over_different_windows_are_refused():
    ids = jnp.ones((1, 6), jnp.int32)
    network = build_encoder_decoder_network(LED_SMALL)
    model = network.merge(network.init(jax.random.key(0)))
    with pytest.raises(ConfigError, match=r"data\.packing is True, but LED has one global token"):
        model(ids, None, ids, packing_ids=ids, decoder_packing_ids=ids)
    with pytest.raises(ConfigError, match=r"attention_window is .*a scan compiles one layer"):
        build_encoder_decoder_network(LED_SMALL, ComputeConfig(layer_loop="scanned")).abstract()
