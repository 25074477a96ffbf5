"""Describes the Hugging Face format of jina-embeddings-v3: config.json fields and tensor names.

transformers 5 has a class for it, and writes the tensor names of the code in the folder that was
published first. Both kinds of names are read; exports have the names of the class. The LoRA
adapters of its five tasks are folders of peft.
"""

import dataclasses

from bert_jax.models.huggingface import (
    FIXED_FIELDS,
    ROTARY_BLOCK,
    HuggingFaceFormat,
    ReadField,
    block_names,
    dense_names,
    embedding_names,
    joined_projections,
    norm_names,
    read_rotary_positions,
    read_transformer_fields,
    rename,
    rope_fields,
    tying_tables,
)
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.layers.config import Activation
from bert_jax.params.name_table import NameMapping

_DECODER, _DECODER_BIAS = "lm_head.decoder.weight", "lm_head.decoder.bias"
_TOKEN_EMBEDDINGS, _LM_BIAS = "roberta.embeddings.word_embeddings.weight", "lm_head.bias"

_NAMES = [
    *embedding_names("roberta", ("word_embeddings", "token_type_embeddings")),
    *block_names(
        "encoder/layers/*",
        "roberta.layers.*",
        dataclasses.replace(ROTARY_BLOCK, intermediate="mlp.fc1", output="mlp.fc2"),
    ),
    *dense_names("pooler/dense", "roberta.pooler.dense"),
    *dense_names("masked_lm/transform", "lm_head.dense"),
    *norm_names("masked_lm/norm", "lm_head.layer_norm"),
    NameMapping("masked_lm/bias", _LM_BIAS),
    *dense_names("classifier", "classifier"),
    *dense_names("classifier/dense", "classifier.dense"),
    *dense_names("classifier/out_proj", "classifier.out_proj"),
    *dense_names("span", "qa_outputs"),
]
TABLES = tying_tables(
    "Hugging Face jina-embeddings-v3",
    "roberta",
    _NAMES,
    decoder=_DECODER,
    decoder_bias=_DECODER_BIAS,
    lm_bias=_LM_BIAS,
)
_BARE_NAMES = ("emb_ln", "embeddings", "encoder", "layers", "pooler")
_OLD_NAMES = {
    ".emb_ln.": ".embeddings.LayerNorm.",
    ".encoder.layers.": ".layers.",
    ".mixer.out_proj.": ".self_attn.o_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}


def _read_config(
    model_type: str, activation: Activation, read: ReadField
) -> JinaEmbeddingsV3Config:
    del model_type  # there is only one
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
    model_type=lambda config: "jina_embeddings_v3",
    config_fields=lambda config: rope_fields(config.positions.rope_theta),
    names=TABLES.names,
    canonical=lambda name: rename(name, "roberta", _BARE_NAMES, _OLD_NAMES),
    joined=joined_projections(".mixer.Wqkv", "weight", "bias"),
    tied_copies={_DECODER: _TOKEN_EMBEDDINGS, _DECODER_BIAS: _LM_BIAS},
    decoder_bias=_DECODER_BIAS,
    lm_bias=_LM_BIAS,
    missing_task_classes=("ForMultipleChoice",),
)
