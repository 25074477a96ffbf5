"""Describes MPNet's Hugging Face format: config.json fields and tensor names."""

import functools
from typing import Any

from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    SEQUENCE_CLASSIFIER,
    BlockNames,
    HuggingFaceFormat,
    ReadField,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    read_transformer_fields,
    roberta_masked_lm,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, PaddingOffsetPositions
from bert_jax.models.mpnet.config import PAD_TOKEN_ID, MPNetConfig
from bert_jax.params.name_table import NameMapping

_MASKED_LM = roberta_masked_lm("mpnet")
_FIELD_NAMES: dict[str, str | None] = {"type_vocab_size": None}
# Hugging Face's code always computes 32 buckets, so a table of another size is a mistake.
_BUCKETS = {"relative_attention_num_buckets": 32}

_BLOCK = BlockNames(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)

_NAMES = [
    *embedding_names("mpnet", ("word_embeddings", "position_embeddings")),
    *block_names("encoder/layers/*", "mpnet.encoder.layer.*", _BLOCK),
    NameMapping(
        "encoder/relative_attention_bias/bias", "mpnet.encoder.relative_attention_bias.weight"
    ),
    *dense_names("pooler/dense", "mpnet.pooler.dense"),
    *dense_names("classifier", "classifier"),
    *SEQUENCE_CLASSIFIER,
    *dense_names("span", "qa_outputs"),
]

TABLES = tying_tables("Hugging Face MPNet", "mpnet", _NAMES, _MASKED_LM)


def _read_config(activation: Activation, read: ReadField) -> MPNetConfig:
    # A field that is absent has the default of Hugging Face's class, which is not always the value
    # of the published model.
    return MPNetConfig(
        positions=PaddingOffsetPositions(
            max_position_embeddings=read("max_position_embeddings", 512), pad_token_id=PAD_TOKEN_ID
        ),
        hidden_act=activation,
        **read_transformer_fields(read, _FIELD_NAMES),
    )


def _config_fields(config: MPNetConfig) -> dict[str, Any]:
    return {**_BUCKETS, "pad_token_id": config.positions.pad_token_id}


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"mpnet": "MPNet"},
    heads={"Model": ("pooler",), "ForMaskedLM": ("pooler", "masked_lm")},
    fixed_fields=FIXED_FIELDS | _BUCKETS,
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=functools.partial(canonical_name, prefix="mpnet"),
    masked_lm=_MASKED_LM,
    field_names=_FIELD_NAMES,
)
