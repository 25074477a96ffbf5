"""Compares T5 1.0 and 1.1 with Hugging Face's PyTorch classes: outputs, folders, packed rows.

Every parameter is random, and the head of 1.1 differs from the token embeddings: a new model of
transformers 5 would have tied ones. Covers bert_jax/models/t5, bert_jax/models/seq2seq and
bert_jax/interop/seq2seq.py.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.models.layers.config import GeluTanh
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.seq2seq.config import GatedFeedForward
from bert_jax.models.t5.config import T5Config
from tests.helpers.seq2seq_parity import check_seq2seq_model
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = T5Config(
    vocab_size=103,
    hidden_size=48,
    d_kv=10,
    num_attention_heads=3,
    intermediate_size=70,
    num_encoder_layers=4,
    num_decoder_layers=3,
)
MEDIUM = dataclasses.replace(
    SMALL,
    vocab_size=301,
    hidden_size=64,
    d_kv=24,
    num_attention_heads=4,
    intermediate_size=130,
    num_encoder_layers=2,
    relative_attention_num_buckets=12,
    relative_attention_max_distance=20,
)


def version_1_1(config: T5Config) -> T5Config:
    return dataclasses.replace(
        config,
        feed_forward=GatedFeedForward(activation=GeluTanh()),
        tie_word_embeddings=False,
        scale_decoder_outputs=False,
    )


def torch_model(config: T5Config, seed: int = 0) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    gated = isinstance(config.feed_forward, GatedFeedForward)
    hf_config = transformers.T5Config(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        d_kv=config.d_kv,
        d_ff=config.intermediate_size,
        num_layers=config.num_encoder_layers,
        num_decoder_layers=config.num_decoder_layers,
        num_heads=config.num_attention_heads,
        relative_attention_num_buckets=config.relative_attention_num_buckets,
        relative_attention_max_distance=config.relative_attention_max_distance,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=config.scale_decoder_outputs,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.T5ForConditionalGeneration(hf_config)
    if not config.tie_word_embeddings:
        # transformers 5 ties the head of a new model whatever its config contains.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    randomize_parameters(model, std=0.1, seed=seed)
    with torch.no_grad():
        # Larger, because the logits of 1.0 are divided by the square root of the width.
        for table in {model.shared.weight, model.lm_head.weight}:
            table.mul_(5.0)
    return model


@pytest.mark.parametrize("config", [SMALL, MEDIUM], ids=["small", "medium"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_outputs_cached_decoding_and_folders(tmp_path, config, version):
    config = config if version == "1.0" else version_1_1(config)
    check_seq2seq_model(torch_model(config), config, tmp_path)


def test_packed_rows_are_computed_as_if_alone():
    network = build_encoder_decoder_network(SMALL)
    params = network.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    source, target = rng.integers(2, 103, (1, 20)), rng.integers(2, 103, (1, 13))

    def forward(**fields: Any) -> np.ndarray:
        model = network.merge(params)
        return np.asarray(model.logits(model(**fields).last_hidden_state))[0]

    together = forward(
        input_ids=source,
        attention_mask=np.array([[1] * 18 + [0] * 2]),
        decoder_input_ids=target,
        packing_ids=np.array([[1] * 11 + [2] * 7 + [0] * 2]),
        decoder_packing_ids=np.array([[1] * 5 + [2] * 6 + [0] * 2]),
    )
    first = forward(input_ids=source[:, :11], decoder_input_ids=target[:, :5])
    second = forward(input_ids=source[:, 11:18], decoder_input_ids=target[:, 5:11])
    np.testing.assert_allclose(together[:11], np.concatenate([first, second]), atol=1e-5)
    assert np.isfinite(together).all()
