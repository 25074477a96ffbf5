"""Covers bert_jax/pretrained/longformer.py and the flags of `convert`: a longer model."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import random_parameters
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.heads.config import RegressionHead
from bert_jax.models.layers.config import LearnedPositions, PaddingOffsetPositions
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.model import run_forward
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.pretrained.longformer import make_longformer

SIZES: Any = {
    "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12,
}  # fmt: skip
ROBERTA = RobertaConfig(**SIZES, positions=PaddingOffsetPositions(max_position_embeddings=22))
BERT = BertConfig(**SIZES, positions=LearnedPositions(max_position_embeddings=20))


def loaded(config: Any, **fields: Any) -> LoadedModel:
    params = random_parameters(config, seed=1)
    return LoadedModel(
        params=paths.unflatten(params), config=config, tokenizer=None, path="source", missing=(),
        **fields,
    )  # fmt: skip


@pytest.mark.parametrize("config", [ROBERTA, BERT], ids=["roberta", "bert"])
def test_longformer_computes_the_same_where_the_window_has_all_tokens(config):
    source = loaded(config)
    longer = make_longformer(source, max_length=50, attention_window=40)
    assert longer.config.max_length == 50 and "masked_lm" in longer.params
    assert isinstance(longer.config, LongformerConfig)
    pad = longer.config.positions.pad_token_id
    ids = np.random.default_rng(0).integers(5, 40, (2, 20)).astype(np.int32)
    mask = (np.arange(20) < np.array([[20], [13]])).astype(np.int32)
    batch = {
        "input_ids": np.where(mask > 0, ids, pad),
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": mask,
    }
    expected = run_forward(source.params, config, batch)
    found = run_forward(longer.params, longer.config, batch)
    for name in ("masked_lm", "hidden_states"):
        a, b = (np.asarray(outputs[name])[..., mask > 0, :] for outputs in (found, expected))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_positions_repeat_and_global_projections_are_copies():
    source = loaded(ROBERTA)
    flat = paths.flatten(make_longformer(source, max_length=50, attention_window=4).params)
    name = "encoder/embeddings/position_embeddings/embedding"
    table, old = flat[name], paths.flatten(source.params)[name]
    assert len(table) == 52
    np.testing.assert_array_equal(table[:22], old)
    np.testing.assert_array_equal(table[22:42], old[2:])
    np.testing.assert_array_equal(table[42:], old[2:12])
    layer = "encoder/layers/1/attention"
    for each in ("query", "key", "value"):
        np.testing.assert_array_equal(
            flat[f"{layer}/{each}_global/kernel"], flat[f"{layer}/{each}/kernel"]
        )


def test_convert_writes_a_longformer(tmp_path, capsys):
    export(dataclasses.replace(loaded(ROBERTA), path=str(tmp_path)), tmp_path / "roberta")
    arguments = ["--longformer", "64", "--window", "8"]
    output = str(tmp_path / "long")
    assert main(["convert", str(tmp_path / "roberta"), "--output", output, *arguments]) == 0
    config = load_encoder(output).config
    assert isinstance(config, LongformerConfig)
    assert config.max_length == 64 and config.attention_window == (8, 8)


def test_models_that_cannot_become_a_longformer_are_refused():
    with pytest.raises(UserError, match="source is fine-tuned for a task"):
        make_longformer(loaded(ROBERTA, head=RegressionHead()))
    with pytest.raises(UserError, match="length of the Longformer is 10, but source takes 20"):
        make_longformer(loaded(ROBERTA), max_length=10)
    albert = AlbertConfig(
        **SIZES, positions=LearnedPositions(max_position_embeddings=20), hidden_act="gelu"
    )
    with pytest.raises(UserError, match="source as a Longformer: the weights are not those"):
        make_longformer(loaded(albert), attention_window=4)
