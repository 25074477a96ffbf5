"""Describes Longformer's Hugging Face format: config.json fields and tensor names."""

import functools
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    SEQUENCE_CLASSIFIER,
    HuggingFaceFormat,
    ReadField,
    bert_encoder_names,
    canonical_name,
    dense_names,
    read_transformer_fields,
    roberta_masked_lm,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, PaddingOffsetPositions
from bert_jax.models.longformer.config import LongformerConfig

_MASKED_LM = roberta_masked_lm("longformer")

_GLOBAL_NAMES = [
    mapping
    for name in ("query_global", "key_global", "value_global")
    for mapping in dense_names(
        f"encoder/layers/*/attention/{name}", f"longformer.encoder.layer.*.attention.self.{name}"
    )
]
_NAMES = [
    *bert_encoder_names("longformer"),
    *_GLOBAL_NAMES,
    *dense_names("classifier", "classifier"),
    *SEQUENCE_CLASSIFIER,
    *dense_names("span", "qa_outputs"),
]

TABLES = tying_tables("Hugging Face Longformer", "longformer", _NAMES, _MASKED_LM)


def _read_config(activation: Activation, read: ReadField) -> LongformerConfig:
    # A field that is absent has the default of Hugging Face's class, which is not always the value
    # of the published models.
    fields = read_transformer_fields(read)
    return LongformerConfig(
        positions=PaddingOffsetPositions(
            max_position_embeddings=read("max_position_embeddings", 512),
            pad_token_id=read("pad_token_id", 1),
        ),
        hidden_act=activation,
        attention_window=read_windows(read, fields["num_hidden_layers"]),
        sep_token_id=read("sep_token_id", 2),
        # Not a field of Hugging Face's class, which keeps unknown fields and ignores them.
        max_global_tokens=read("max_global_tokens", LongformerConfig.max_global_tokens),
        **fields,
    )


def read_windows(read: ReadField, num_layers: int) -> tuple[int, ...]:
    """Reads the window of each layer, which is a list or one number for all."""
    try:
        return tuple(read("attention_window", [512] * num_layers))
    except UserError:  # not a list: one window for all layers
        return (read("attention_window", 512),) * num_layers


def _config_fields(config: LongformerConfig) -> dict[str, Any]:
    return {
        "pad_token_id": config.positions.pad_token_id,
        "sep_token_id": config.sep_token_id,
        "attention_window": list(config.attention_window),
        "max_global_tokens": config.max_global_tokens,
    }


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"longformer": "Longformer"},
    heads={"Model": ("pooler",), "ForMaskedLM": ("pooler", "masked_lm")},
    fixed_fields=FIXED_FIELDS,
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=functools.partial(canonical_name, prefix="longformer"),
    masked_lm=_MASKED_LM,
)
