"""Describes BigBird's Hugging Face format: config.json fields and tensor names.

The tensors have BERT's prefix, "bert."; the family is known by the `model_type` only.
"""

import functools
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong, FullAttention
from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    SEQUENCE_CLASSIFIER,
    HuggingFaceFormat,
    ReadField,
    bert_masked_lm,
    block_names,
    canonical_name,
    dense_names,
    embedding_names,
    norm_names,
    read_transformer_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, LearnedPositions

_MASKED_LM = bert_masked_lm("bert")

_NAMES = [
    *embedding_names("bert"),
    *block_names("encoder/layers/*", "bert.encoder.layer.*"),
    *dense_names("pooler/dense", "bert.pooler"),
    *dense_names("next_sentence", "cls.seq_relationship"),
    *dense_names("classifier", "classifier"),
    *SEQUENCE_CLASSIFIER,
    *dense_names("span/intermediate", "qa_classifier.intermediate.dense"),
    *dense_names("span/output", "qa_classifier.output.dense"),
    *norm_names("span/norm", "qa_classifier.output.LayerNorm"),
    *dense_names("span/out_proj", "qa_classifier.qa_outputs"),
]

TABLES = tying_tables("Hugging Face BigBird", "bert", _NAMES, _MASKED_LM)


def _read_config(activation: Activation, read: ReadField) -> BigBirdConfig:
    return BigBirdConfig(
        positions=LearnedPositions(max_position_embeddings=read("max_position_embeddings", 4096)),
        hidden_act=activation,
        attention=_read_attention(read),
        sep_token_id=read("sep_token_id", 66),
        **read_transformer_fields(read),
    )


def _read_attention(read: ReadField) -> FullAttention | BlockSparseWhenLong:
    attention_type = read("attention_type", "block_sparse")
    if attention_type == "original_full":
        return FullAttention()
    if attention_type != "block_sparse":
        raise ConfigError(
            f"attention_type is {attention_type!r}, expected 'block_sparse' or 'original_full'"
        )
    return BlockSparseWhenLong(
        block_size=read("block_size", 64), num_random_blocks=read("num_random_blocks", 3)
    )


def _config_fields(config: BigBirdConfig) -> dict[str, Any]:
    if isinstance(config.attention, FullAttention):
        return {"attention_type": "original_full", "sep_token_id": config.sep_token_id}
    return {
        "sep_token_id": config.sep_token_id,
        "attention_type": "block_sparse",
        "block_size": config.attention.block_size,
        "num_random_blocks": config.attention.num_random_blocks,
    }


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"big_bird": "BigBird"},
    heads={
        "Model": ("pooler",),
        "ForMaskedLM": ("pooler", "masked_lm"),
        "ForPreTraining": ("pooler", "masked_lm", "next_sentence"),
    },
    fixed_fields={
        **FIXED_FIELDS,
        "hidden_act": "gelu_new",
        "use_bias": True,
        "rescale_embeddings": False,
    },
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=functools.partial(canonical_name, prefix="bert"),
    masked_lm=_MASKED_LM,
)
