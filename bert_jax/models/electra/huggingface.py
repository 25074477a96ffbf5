"""Describes ELECTRA's Hugging Face format: config.json fields and tensor names.

A discriminator (`ElectraForPreTraining`) and a generator (`ElectraForMaskedLM`) are two folders.
"""

import functools

from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    HuggingFaceFormat,
    ReadField,
    TyingTables,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    norm_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, LearnedPositions
from bert_jax.params.name_table import NameMapping, NameTable

_DECODER, _LM_BIAS = "generator_lm_head.weight", "generator_lm_head.bias"
_TOKEN_EMBEDDINGS = "electra.embeddings.word_embeddings.weight"
_NAMES = [
    *embedding_names("electra"),
    *dense_names("encoder/embedding_projection", "electra.embeddings_project"),
    *block_names("encoder/layers/*", "electra.encoder.layer.*"),
    *dense_names("replaced_token/dense", "discriminator_predictions.dense"),
    *dense_names("replaced_token/output", "discriminator_predictions.dense_prediction"),
    *dense_names("masked_lm/transform", "generator_predictions.dense"),
    *norm_names("masked_lm/norm", "generator_predictions.LayerNorm"),
    NameMapping("masked_lm/bias", _LM_BIAS),
    *dense_names("span", "qa_outputs"),
]
# The tensor "classifier.weight" is the whole head of a tagger, and the last layer for choices.
_CLASSIFIERS = [
    *dense_names("classifier", "classifier"),
    *dense_names("classifier/dense", "classifier.dense"),
    *dense_names("classifier/out_proj", "classifier.out_proj"),
]
_CHOICE_CLASSIFIER = [
    *dense_names("classifier/dense", "sequence_summary.summary"),
    *dense_names("classifier/out_proj", "classifier"),
]


@functools.cache
def _tables(*, multiple_choice: bool) -> TyingTables:
    return tying_tables(
        "Hugging Face ELECTRA",
        "electra",
        [*_NAMES, *(_CHOICE_CLASSIFIER if multiple_choice else _CLASSIFIERS)],
        decoder=_DECODER,
        decoder_bias=_LM_BIAS,
        lm_bias=_LM_BIAS,
    )


def names(config: ElectraConfig, head: TaskHead | None) -> NameTable:
    """Returns the table of tensor names of a model with a task head, or without one."""
    return _tables(multiple_choice=head is not None and head.scope == "choices").names(config)


def _read_config(model_type: str, activation: Activation, read: ReadField) -> ElectraConfig:
    del model_type  # there is only one
    return ElectraConfig(
        embedding_size=read("embedding_size", None),
        positions=LearnedPositions(max_position_embeddings=read("max_position_embeddings", 512)),
        hidden_act=activation,
        **read_transformer_fields(read),
    )


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"electra": "Electra"},
    heads={"Model": (), "ForPreTraining": ("replaced_token",), "ForMaskedLM": ("masked_lm",)},
    fixed_fields={
        **FIXED_FIELDS,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    read_config=_read_config,
    model_type=lambda config: "electra",
    config_fields=lambda config: {"embedding_size": config.embedding_size},
    names=names,
    canonical=functools.partial(canonical_name, prefix="electra"),
    tied_copies={_DECODER: _TOKEN_EMBEDDINGS},
    decoder_bias=_LM_BIAS,
    lm_bias=_LM_BIAS,
)
