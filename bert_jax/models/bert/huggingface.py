"""Describes BERT's Hugging Face format: config.json fields and tensor names."""

import functools
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    HuggingFaceFormat,
    ReadField,
    bert_encoder_names,
    bert_masked_lm,
    canonical_name,
    dense_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, AlibiPositions, LearnedPositions

_MASKED_LM = bert_masked_lm("bert")

_NAMES = [
    *bert_encoder_names("bert"),
    *dense_names("next_sentence", "cls.seq_relationship"),
    *dense_names("classifier", "classifier"),
    *dense_names("span", "qa_outputs"),
]

TABLES = tying_tables("Hugging Face BERT", "bert", _NAMES, _MASKED_LM)


def _read_config(activation: Activation, read: ReadField) -> BertConfig:
    return BertConfig(
        positions=LearnedPositions(max_position_embeddings=read("max_position_embeddings", None)),
        hidden_act=activation,
        **read_transformer_fields(read),
    )


def _config_fields(config: BertConfig) -> dict[str, Any]:
    if isinstance(config.positions, AlibiPositions):
        raise UserError(
            "transformers has no BERT with AlibiPositions, so it cannot be exported to a Hugging "
            "Face folder; use the run folder with bert_jax, or train with LearnedPositions"
        )
    return {}


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"bert": "Bert"},
    heads={
        "Model": ("pooler",),
        "ForMaskedLM": ("masked_lm",),
        "ForNextSentencePrediction": ("pooler", "next_sentence"),
        "ForPreTraining": ("pooler", "masked_lm", "next_sentence"),
    },
    fixed_fields={**FIXED_FIELDS, "embedding_size": None},
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=functools.partial(canonical_name, prefix="bert"),
    masked_lm=_MASKED_LM,
)
