"""Describes the Hugging Face format of jina-embeddings-v3: config.json fields and tensor names.

transformers 5 has a class for it, and writes the tensor names of the code in the folder that was
published first. Both kinds of names are read; exports have the names of the class. The LoRA
adapters of its five tasks are folders of peft.
"""

import dataclasses

from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    ROTARY_BLOCK,
    SEQUENCE_CLASSIFIER,
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
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.layers.config import Activation

_MASKED_LM = roberta_masked_lm("roberta")

_NAMES = [
    *embedding_names("roberta", ("word_embeddings", "token_type_embeddings")),
    *block_names(
        "encoder/layers/*",
        "roberta.layers.*",
        dataclasses.replace(ROTARY_BLOCK, intermediate="mlp.fc1", output="mlp.fc2"),
    ),
    *dense_names("pooler/dense", "roberta.pooler.dense"),
    *dense_names("classifier", "classifier"),
    *SEQUENCE_CLASSIFIER,
    *dense_names("span", "qa_outputs"),
]
TABLES = tying_tables("Hugging Face jina-embeddings-v3", "roberta", _NAMES, _MASKED_LM)
_BARE_NAMES = ("emb_ln", "embeddings", "encoder", "layers", "pooler")
_OLD_NAMES = {
    ".emb_ln.": ".embeddings.LayerNorm.",
    ".encoder.layers.": ".layers.",
    ".mixer.out_proj.": ".self_attn.o_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}


def _read_config(activation: Activation, read: ReadField) -> JinaEmbeddingsV3Config:
    fields = read_transformer_fields(
        read,
        vocab_size=250002,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    return JinaEmbeddingsV3Config(
        **fields,
        hidden_act=activation,
        positions=read_rotary_positions(read, 8194, 20_000.0),
    )


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"jina_embeddings_v3": "JinaEmbeddingsV3"},
    heads={"Model": ("pooler",), "ForMaskedLM": ("masked_lm",)},
    fixed_fields={**FIXED_FIELDS, "rope_scaling": None},
    read_config=_read_config,
    config_fields=lambda config: rope_fields(config.positions.rope_theta),
    names=TABLES.names,
    canonical=lambda name: rename(name, "roberta", _BARE_NAMES, _OLD_NAMES),
    joined=joined_projections(".mixer.Wqkv", "weight", "bias"),
    masked_lm=_MASKED_LM,
    missing_task_classes=("ForMultipleChoice",),
)
