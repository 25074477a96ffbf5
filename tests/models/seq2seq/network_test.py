"""Tests encoder-decoders without a peer: sizes, packed rows, layer loops, dropout, shardings.

Covers bert_jax/models/seq2seq, bert_jax/models/t5, bert_jax/models/bart and
bert_jax/models/encoder.py; tests/parity compares outputs with PyTorch.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.errors import ConfigError
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.sharding import parameter_axes
from bert_jax.models.t5.config import T5Config
from bert_jax.params import paths
from tests.helpers.quick_init import quick_init

T5 = T5Config(
    vocab_size=41,
    hidden_size=16,
    d_kv=6,
    intermediate_size=20,
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_attention_heads=2,
)
BART = BartConfig(
    vocab_size=41,
    hidden_size=16,
    intermediate_size=20,
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_attention_heads=2,
    max_position_embeddings=24,
)
each_family = pytest.mark.parametrize("config", [T5, BART], ids=["t5", "bart"])

# Published counts; Raffel et al. 2020 and Lewis et al. 2020 round them.
COUNTS: list[tuple[EncoderDecoderConfig, int]] = [
    (T5Config.from_size("small"), 60_506_624),
    (T5Config.from_size("base"), 222_903_552),
    (T5Config.from_size("large"), 737_668_096),
    (T5Config.from_size("3b"), 2_851_598_336),
    (T5Config.from_size("11b"), 11_307_321_344),
    (T5Config.v1_1("small"), 76_961_152),
    (T5Config.v1_1("base"), 247_577_856),
    (T5Config.v1_1("large"), 783_150_080),
    (T5Config.v1_1("xl"), 2_849_757_184),
    (T5Config.v1_1("xxl"), 11_135_332_352),
    (BartConfig.from_size("base"), 139_420_416),
    (BartConfig.from_size("large"), 406_291_456),
]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(config, expected, marks=[pytest.mark.slow] if expected > 3e8 else [])
        for config, expected in COUNTS
    ],
)
def test_published_sizes_have_their_parameter_counts(config, expected):
    flat = paths.flatten(build_encoder_decoder_network(config).abstract())
    assert paths.count_parameters(flat)[0] == expected
    assert from_json(EncoderDecoderConfig, to_json(config), "model") == config


@pytest.fixture(scope="module")
def params() -> dict[type, Any]:
    return {
        type(config): quick_init(build_encoder_decoder_network(config).abstract(), std=0.1)
        for config in (T5, BART)
    }


@functools.cache
def program(config: EncoderDecoderConfig, compute: ComputeConfig) -> Callable[..., jax.Array]:
    """Returns a function that is compiled once for each shape, for all tests of the file."""
    network = build_encoder_decoder_network(config, compute)

    @jax.jit
    def logits(params: Any, fields: dict[str, Any]) -> jax.Array:
        model = network.merge(params)
        return model.logits(model(**fields).last_hidden_state)

    return logits


def forward(
    config: EncoderDecoderConfig,
    params: dict[type, Any],
    compute: ComputeConfig | None = None,
    **fields: Any,
) -> np.ndarray:
    return np.asarray(program(config, compute or ComputeConfig())(params[type(config)], fields))


def token_ids(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 41, (1, length)).astype(np.int32)


# tests/objectives/seq2seq_test.py compares the loss and the gradients of packed rows.
@pytest.mark.slow
@each_family
def test_packed_rows_are_computed_as_if_alone(config, params):
    source, target = token_ids(20), token_ids(13, seed=1)

    def ids(*lengths: int) -> np.ndarray:
        return np.repeat([1, 2, 0], lengths)[None].astype(np.int32)

    def positions(*lengths: int) -> np.ndarray:
        return np.concatenate([np.arange(length) for length in lengths])[None].astype(np.int32)

    together = forward(
        config,
        params,
        input_ids=source,
        attention_mask=(ids(11, 7, 2) > 0).astype(np.int32),
        decoder_input_ids=target,
        packing_ids=ids(11, 7, 2),
        position_ids=positions(11, 7, 2),
        decoder_packing_ids=ids(5, 6, 2),
        decoder_position_ids=positions(5, 6, 2),
    )[0]
    # Each example in a row of its own, padded to one shape.
    rows = np.zeros((2, 11), np.int32), np.zeros((2, 6), np.int32)
    rows[0][0], rows[0][1, :7] = source[0, :11], source[0, 11:18]
    rows[1][0, :5], rows[1][1] = target[0, :5], target[0, 5:11]
    mask = np.array([[1] * 11, [1] * 7 + [0] * 4], np.int32)
    first, second = forward(
        config, params, input_ids=rows[0], attention_mask=mask, decoder_input_ids=rows[1]
    )
    alone = np.concatenate([first[:5], second])
    np.testing.assert_allclose(together[:11], alone, atol=1e-5 * np.abs(alone).max())
    assert np.isfinite(together).all()


# Only T5's layers share something: the biases of relative positions.
@pytest.mark.parametrize(
    "config", [T5, pytest.param(BART, marks=pytest.mark.slow)], ids=["t5", "bart"]
)
def test_scanned_and_rematerialized_layers_are_the_same(config, params):
    fields: dict[str, Any] = {
        "input_ids": token_ids(8),
        "decoder_input_ids": token_ids(6, seed=1),
        "dropout_key": jax.random.key(1),
    }
    expected = forward(config, params, **fields)
    scanned = ComputeConfig(layer_loop="scanned", remat="full")
    found = forward(config, params, scanned, **fields)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    without_dropout = forward(config, params, **(fields | {"dropout_key": None}))
    assert np.abs(without_dropout - expected).max() > 0.01 * np.abs(expected).max()


@each_family
def test_bfloat16_is_close_and_every_parameter_has_axes(config, params):
    fields: dict[str, Any] = {
        "input_ids": token_ids(8),
        "decoder_input_ids": token_ids(6, seed=1),
    }
    expected = forward(config, params, **fields)
    with jax.numpy_dtype_promotion("strict"):
        found = forward(config, params, ComputeConfig(dtype="bfloat16"), **fields)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
    table = parameter_axes()
    for path, leaf in paths.flatten(params[type(config)]).items():
        assert len(table[path]) == leaf.ndim, path


def test_impossible_configs_name_the_field():
    for changes, message in (
        ({"d_kv": 0}, "model.d_kv is 0"),
        ({"eos_token_id": 41}, "model.eos_token_id 41 is not an id below"),
        ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets is 2"),
        ({"num_decoder_layers": True}, "num_decoder_layers is True, expected an integer"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(T5, **changes)
    with pytest.raises(ConfigError, match=r"hidden_size 16 is not a multiple of .* 3"):
        dataclasses.replace(BART, num_attention_heads=3)


def test_bart_refuses_lengths_beyond_its_position_table(params):
    with pytest.raises(ConfigError, match="sequence length 25 is beyond the position table"):
        forward(BART, params, input_ids=token_ids(25), decoder_input_ids=token_ids(3))
