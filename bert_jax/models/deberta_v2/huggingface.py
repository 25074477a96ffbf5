"""Describes DeBERTa's Hugging Face format: config.json fields and tensor names.

The published files of DeBERTa-v3 also contain tensors of its pretraining. The head that detects
replaced tokens is read and written, although no class of Hugging Face has it. The others are
ignored: they are remains of the generator.
"""

import functools
from typing import Any

from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.heads.config import DenseClassifier, TaskHead, classifier_layers
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    BlockNames,
    HuggingFaceFormat,
    ReadField,
    SupportedValues,
    TyingTables,
    bert_masked_lm,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    norm_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, NoPositions
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_MASKED_LM = bert_masked_lm("deberta")

_BLOCK = BlockNames(
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
)
_NAMES = [
    *embedding_names("deberta", ("word_embeddings",)),
    NameMapping("encoder/relative_embeddings/embedding", "deberta.encoder.rel_embeddings.weight"),
    *norm_names("encoder/relative_norm", "deberta.encoder.LayerNorm"),
    *block_names("encoder/layers/*", "deberta.encoder.layer.*", _BLOCK),
    *norm_names("replaced_token/norm", "mask_predictions.LayerNorm"),
    *dense_names("replaced_token/dense", "mask_predictions.dense"),
    *dense_names("replaced_token/output", "mask_predictions.classifier"),
    *dense_names("span", "qa_outputs"),
]
# The tensor "classifier.weight" is the whole head of a tagger, and the last layer of the others.
_TOKEN_CLASSIFIER = dense_names("classifier", "classifier")
_SEQUENCE_CLASSIFIER = [
    *dense_names("classifier/dense", "pooler.dense"),
    *dense_names("classifier/out_proj", "classifier"),
]
_IGNORED = [
    Ignored("lm_predictions.**", "a head for DeBERTa-v3's generator, which is not in the file"),
    Ignored(
        "deberta.embeddings.position_embeddings.weight",
        "absolute positions, which only the decoder of the pretraining reads",
    ),
]

_UNSUPPORTED = "its attention is not implemented here; DeBERTa-v3 models have the supported value"
FIXED: dict[str, Any] = {
    **FIXED_FIELDS,
    "relative_attention": SupportedValues((True,), default=False, reason=_UNSUPPORTED),
    "share_att_key": SupportedValues((True,), default=False, reason=_UNSUPPORTED),
    "norm_rel_ebd": SupportedValues(("layer_norm",), default="none", reason=_UNSUPPORTED),
    "pos_att_type": SupportedValues(
        ("p2c|c2p", "c2p|p2c", ["p2c", "c2p"], ["c2p", "p2c"]), default=None, reason=_UNSUPPORTED
    ),
    "conv_kernel_size": SupportedValues(
        (0,), default=0, reason="DeBERTa-v2-xlarge's convolution is not implemented here"
    ),
    "position_biased_input": SupportedValues((False,), default=True, reason=_UNSUPPORTED),
    "type_vocab_size": 0,
    "pooler_hidden_act": "gelu",
    "pooler_dropout": 0,
}
_FIELD_NAMES: dict[str, str | None] = {"type_vocab_size": None}


@functools.cache
def _tables(*, dense_classifier: bool) -> TyingTables:
    return tying_tables(
        "Hugging Face DeBERTa",
        "deberta",
        [*_NAMES, *(_SEQUENCE_CLASSIFIER if dense_classifier else _TOKEN_CLASSIFIER)],
        _MASKED_LM,
        ignored=_IGNORED,
    )


def names(config: DebertaV2Config, head: TaskHead | None) -> NameTable:
    """Returns the table of tensor names of a model with a task head, or without one."""
    layers = None if head is None else classifier_layers(head, config)
    return _tables(dense_classifier=isinstance(layers, DenseClassifier)).names(config)


def _canonical(name: str) -> str:
    # "pooler" is a part of the task heads here, not of the encoder.
    return name if name.startswith("pooler.") else canonical_name(name, "deberta")


def _read_config(activation: Activation, read: ReadField) -> DebertaV2Config:
    max_position_embeddings = read("max_position_embeddings", 512)
    max_relative_positions = read("max_relative_positions", -1)
    return DebertaV2Config(
        positions=NoPositions(max_position_embeddings=max_position_embeddings),
        hidden_act=activation,
        position_buckets=read("position_buckets", -1),
        max_relative_positions=(
            max_relative_positions if max_relative_positions > 0 else max_position_embeddings
        ),
        **read_transformer_fields(read, _FIELD_NAMES, layer_norm_eps=1e-7),
        type_vocab_size=0,
    )


def _config_fields(config: DebertaV2Config) -> dict[str, Any]:
    return {
        "relative_attention": True,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "position_buckets": config.position_buckets,
        "max_relative_positions": config.max_relative_positions,
        "type_vocab_size": 0,
        "pooler_hidden_size": config.hidden_size,
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0,
        "legacy": True,  # Hugging Face's masked-LM head with the names above
    }


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"deberta-v2": "DebertaV2"},
    # These classes ignore the head that detects replaced tokens.
    heads={"Model": ("replaced_token",), "ForMaskedLM": ("masked_lm", "replaced_token")},
    fixed_fields=FIXED,
    read_config=_read_config,
    config_fields=_config_fields,
    names=names,
    canonical=_canonical,
    masked_lm=_MASKED_LM,
    field_names=_FIELD_NAMES,
    refused_model_types={
        "deberta": "DeBERTa v1 has another attention, which is not implemented here; use a "
        "DeBERTa-v3 model, whose model_type is deberta-v2"
    },
)
