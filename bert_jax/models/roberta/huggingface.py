"""Describes RoBERTa's Hugging Face format: config.json fields and tensor names.

XLM-RoBERTa and CamemBERT have the same fields and names, and classes of their own.
"""

import functools
from typing import Any, cast

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
from bert_jax.models.roberta.config import RobertaConfig, RobertaModelType

_MASKED_LM = roberta_masked_lm("roberta")

_NAMES = [
    *bert_encoder_names("roberta"),
    *dense_names("classifier", "classifier"),
    *SEQUENCE_CLASSIFIER,
    *dense_names("span", "qa_outputs"),
]

TABLES = tying_tables("Hugging Face RoBERTa", "roberta", _NAMES, _MASKED_LM)


def _read_config(activation: Activation, read: ReadField) -> RobertaConfig:
    # A field that is absent has the default of Hugging Face's class, which is not always the value
    # of the published models.
    return RobertaConfig(
        positions=PaddingOffsetPositions(
            max_position_embeddings=read("max_position_embeddings", 512),
            pad_token_id=read("pad_token_id", 1),
        ),
        hidden_act=activation,
        **read_transformer_fields(read),
        model_type=cast(RobertaModelType, read("model_type", "roberta")),
    )


def _config_fields(config: RobertaConfig) -> dict[str, Any]:
    return {"pad_token_id": config.positions.pad_token_id}


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    heads={"Model": ("pooler",), "ForMaskedLM": ("pooler", "masked_lm")},
    fixed_fields=FIXED_FIELDS,
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=functools.partial(canonical_name, prefix="roberta"),
    masked_lm=_MASKED_LM,
)
