"""Describes GTE's Hugging Face format: config.json fields and tensor names.

transformers 5 has a class for it, and writes the tensor names of the code in the folders that were
published first. Both kinds of names are read; exports have the names of the class.
"""

import dataclasses

from bert_jax.models.gte.config import GteConfig
from bert_jax.models.huggingface import (
    ROTARY_BLOCK,
    HuggingFaceFormat,
    ReadField,
    block_names,
    dense_names,
    embedding_names,
    joined_projections,
    read_rotary_positions,
    read_transformer_fields,
    rename,
    roberta_masked_lm,
    rope_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation

_MASKED_LM = dataclasses.replace(roberta_masked_lm("gte"), bias="lm_head.decoder.bias")
_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "gte.layers.*"

_NAMES = [
    *embedding_names("gte", ("word_embeddings", "token_type_embeddings")),
    *block_names(_LAYER, _EXTERNAL_LAYER, ROTARY_BLOCK),
    *dense_names(f"{_LAYER}/feed_forward/gate", f"{_EXTERNAL_LAYER}.mlp.up_proj"),
    *dense_names("pooler/dense", "gte.pooler.dense"),
    *dense_names("classifier", "classifier"),
]
TABLES = tying_tables("Hugging Face GTE", "gte", _NAMES, _MASKED_LM)
_BARE_NAMES = ("embeddings", "encoder", "layers", "pooler")
_OLD_NAMES = {
    ".encoder.layer.": ".layers.",
    ".attention.o_proj.": ".self_attn.o_proj.",
    ".attn_ln.": ".post_attention_layernorm.",
    ".mlp_ln.": ".post_mlp_layernorm.",
    "lm_head.norm.": "lm_head.layer_norm.",
}


def _read_config(activation: Activation, read: ReadField) -> GteConfig:
    fields = read_transformer_fields(
        read,
        vocab_size=250048,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        attention_probs_dropout_prob=0.0,
        type_vocab_size=1,
    )
    return GteConfig(
        **fields,
        hidden_act=activation,
        positions=read_rotary_positions(read, 8192, 160_000.0),
    )


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"gte": "Gte"},
    heads={"Model": (), "ForMaskedLM": ("masked_lm",)},
    fixed_fields={"rope_scaling": None},
    read_config=_read_config,
    config_fields=lambda config: rope_fields(config.positions.rope_theta),
    names=TABLES.names,
    canonical=lambda name: rename(name, "gte", _BARE_NAMES, _OLD_NAMES),
    joined={
        **joined_projections(".attention.qkv_proj", "weight", "bias"),
        ".mlp.up_gate_proj.weight": (".mlp.up_proj.weight", ".mlp.gate_proj.weight"),
    },
    masked_lm=_MASKED_LM,
    refused_model_types={
        "new": "GTE in the format of its own code, which scales rotations; use a folder of "
        "transformers' class, model_type 'gte'"
    },
    missing_task_classes=("ForQuestionAnswering", "ForMultipleChoice"),
)
