"""Describes ELECTRA's Hugging Face format: config.json fields and tensor names.

A discriminator (`ElectraForPreTraining`) and a generator (`ElectraForMaskedLM`) are two folders.
"""

import functools

from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    SEQUENCE_CLASSIFIER,
    HuggingFaceFormat,
    MaskedLMNames,
    ReadField,
    TyingTables,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, LearnedPositions
from bert_jax.params.name_table import NameTable

_MASKED_LM = MaskedLMNames(
    token_embeddings="electra.embeddings.word_embeddings.weight",
    decoder="generator_lm_head.weight",
    bias="generator_lm_head.bias",
    decoder_bias="generator_lm_head.bias",
    transform="generator_predictions.dense",
    norm="generator_predictions.LayerNorm",
)
_NAMES = [
    *embedding_names("electra"),
    *dense_names("encoder/embedding_projection", "electra.embeddings_project"),
    *block_names("encoder/layers/*", "electra.encoder.layer.*"),
    *dense_names("replaced_token/dense", "discriminator_predictions.dense"),
    *dense_names("replaced_token/output", "discriminator_predictions.dense_prediction"),
    *dense_names("span", "qa_outputs"),
]
# The tensor "classifier.weight" is the whole head of a tagger, and the last layer for choices.
_CLASSIFIERS = [*dense_names("classifier", "classifier"), *SEQUENCE_CLASSIFIER]
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
        _MASKED_LM,
    )


def names(config: ElectraConfig, head: TaskHead | None) -> NameTable:
    """Returns the table of tensor names of a model with a task head, or without one."""
    return _tables(multiple_choice=head is not None and head.scope == "choices").names(config)


def _read_config(activation: Activation, read: ReadField) -> ElectraConfig:
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
    config_fields=lambda config: {"embedding_size": config.embedding_size},
    names=names,
    canonical=functools.partial(canonical_name, prefix="electra"),
    masked_lm=_MASKED_LM,
)
