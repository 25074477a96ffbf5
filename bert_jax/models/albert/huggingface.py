"""Describes ALBERT's Hugging Face format: config.json fields and tensor names.

`classifier_dropout_prob` is not a field of the model here: it is `objective.classifier_dropout`,
whose default value is the same, 0.1.
"""

import functools
from typing import Any

from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    BlockNames,
    HuggingFaceFormat,
    MaskedLMNames,
    ReadField,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, LearnedPositions

_MASKED_LM = MaskedLMNames(
    token_embeddings="albert.embeddings.word_embeddings.weight",
    decoder="predictions.decoder.weight",
    bias="predictions.bias",
    decoder_bias="predictions.decoder.bias",
    transform="predictions.dense",
    norm="predictions.LayerNorm",
)

_BLOCK = BlockNames(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    intermediate="ffn",
    output="ffn_output",
    output_norm="full_layer_layer_norm",
)
_NAMES = [
    *embedding_names("albert"),
    *dense_names("encoder/embedding_projection", "albert.encoder.embedding_hidden_mapping_in"),
    *block_names(
        "encoder/groups/*/layers/*",
        "albert.encoder.albert_layer_groups.*.albert_layers.*",
        _BLOCK,
    ),
    *dense_names("pooler/dense", "albert.pooler"),
    *dense_names("sentence_order", "sop_classifier.classifier"),
    *dense_names("classifier", "classifier"),
    *dense_names("span", "qa_outputs"),
]

TABLES = tying_tables("Hugging Face ALBERT", "albert", _NAMES, _MASKED_LM)


def _read_config(activation: Activation, read: ReadField) -> AlbertConfig:
    # A field that is absent has the default of Hugging Face's class.
    return AlbertConfig(
        positions=LearnedPositions(max_position_embeddings=read("max_position_embeddings", 512)),
        hidden_act=activation,
        embedding_size=read("embedding_size", 128),
        num_hidden_groups=read("num_hidden_groups", 1),
        inner_group_num=read("inner_group_num", 1),
        **read_transformer_fields(read, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    )


def _config_fields(config: AlbertConfig) -> dict[str, Any]:
    return {
        "embedding_size": config.embedding_size,
        "num_hidden_groups": config.num_hidden_groups,
        "inner_group_num": config.inner_group_num,
    }


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"albert": "Albert"},
    heads={
        "Model": ("pooler",),
        "ForMaskedLM": ("pooler", "masked_lm"),  # without the pooler in today's files
        "ForPreTraining": ("pooler", "masked_lm", "sentence_order"),
    },
    fixed_fields=FIXED_FIELDS,
    default_activation="gelu_new",
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=functools.partial(canonical_name, prefix="albert"),
    masked_lm=_MASKED_LM,
)
