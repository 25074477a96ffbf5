"""Describes ESM-2's Hugging Face format: config.json fields and tensor names.

ESM-1b and ESMFold have the same `model_type` and are refused by the fields in which they differ.
"""

import dataclasses
import re
from typing import Any

from bert_jax.models.esm.config import EsmConfig
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    SEQUENCE_CLASSIFIER,
    BlockNames,
    HuggingFaceFormat,
    ReadField,
    SupportedValues,
    block_names,
    canonical_name,
    dense_names,
    norm_names,
    read_transformer_fields,
    roberta_masked_lm,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, NoPositions
from bert_jax.params.name_table import Ignored, NameMapping

_MASKED_LM = dataclasses.replace(roberta_masked_lm("esm"), decoder_bias="lm_head.bias")
_FREQUENCIES = "esm.rotary_embeddings.inv_freq"
_FREQUENCIES_OF_LAYER = "esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"
# The first layer of published files; transformers 5 writes an asterisk for the number.
_OLD_FREQUENCIES = re.compile(re.escape(_FREQUENCIES_OF_LAYER).replace(r"\*", r"(0|\*)"))

# Both norms are in front of what has the name here.
_BLOCK = BlockNames(attention_norm="attention.LayerNorm", output_norm="LayerNorm")
_NAMES = [
    NameMapping("encoder/embeddings/word_embeddings/embedding", _MASKED_LM.token_embeddings),
    NameMapping("encoder/untrained/inverse_frequencies", _FREQUENCIES),
    *block_names("encoder/layers/*", "esm.encoder.layer.*", _BLOCK),
    *norm_names("encoder/final_norm", "esm.encoder.emb_layer_norm_after"),
    NameMapping(
        "encoder/untrained/contact_kernel", "esm.contact_head.regression.weight", transposed=True
    ),
    NameMapping("encoder/untrained/contact_bias", "esm.contact_head.regression.bias"),
    *dense_names("pooler/dense", "esm.pooler.dense"),
    *dense_names("classifier", "classifier"),
    *SEQUENCE_CLASSIFIER,
]
TABLES = tying_tables(
    "Hugging Face ESM-2",
    "esm",
    _NAMES,
    _MASKED_LM,
    ignored=[
        Ignored("esm.embeddings.position_embeddings.weight", "unused, in published files"),
        Ignored(_FREQUENCIES_OF_LAYER, "the same in every layer"),
    ],
)
_FIELD_NAMES: dict[str, str | None] = {"hidden_act": None, "type_vocab_size": None}


def _read_config(activation: Activation, read: ReadField) -> EsmConfig:
    return EsmConfig(
        **read_transformer_fields(read, _FIELD_NAMES),
        hidden_act=activation,
        positions=NoPositions(max_position_embeddings=read("max_position_embeddings", 1026)),
        rope_theta=read("rope_theta", 10_000.0),
        token_dropout=read("token_dropout", False),
        mask_token_id=read("mask_token_id", None),
    )


def _config_fields(config: EsmConfig) -> dict[str, Any]:
    return {
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "rope_theta": config.rope_theta,
        "token_dropout": config.token_dropout,
        "mask_token_id": config.mask_token_id,
    }


def _canonical(name: str) -> str:
    """Returns today's name of a tensor from an old file or from a file of the bare encoder."""
    if name.split(".")[0] in ("contact_head", "rotary_embeddings"):
        name = f"esm.{name}"
    name = canonical_name(name, "esm")
    return _FREQUENCIES if _OLD_FREQUENCIES.fullmatch(name) else name


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"esm": "Esm"},
    heads={"Model": ("pooler",), "ForMaskedLM": ("masked_lm",)},
    fixed_fields={
        **FIXED_FIELDS,
        "position_embedding_type": SupportedValues(
            ("rotary",), default="absolute", reason="ESM-1b has learned positions"
        ),
        "emb_layer_norm_before": SupportedValues(
            (False, None), default=None, reason="ESM-1b has a norm before its layers"
        ),
        "is_folding_model": False,
    },
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=_canonical,
    masked_lm=_MASKED_LM,
    field_names=_FIELD_NAMES,
    missing_task_classes=("ForQuestionAnswering", "ForMultipleChoice"),
)
