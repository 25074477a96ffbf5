"""Describes NomicBERT's Hugging Face format: config.json fields and tensor names.

transformers 5 has another class than the code in the published folders, with other fields. It
still writes the tensor names of the published folders. Both are read; exports have the names of
the class. Variants of the published code (other norms, biases) are refused by their fields.
"""

import dataclasses
from typing import Any

from bert_jax.models.huggingface import (
    ROTARY_BLOCK,
    HuggingFaceFormat,
    ReadField,
    bert_masked_lm,
    block_names,
    dense_names,
    embedding_names,
    joined_projections,
    read_rope_theta,
    read_transformer_fields,
    rename,
    rope_fields,
    tying_tables,
)
from bert_jax.models.layers.config import Activation, RotaryPositions
from bert_jax.models.nomic_bert.config import NomicBertConfig

_MASKED_LM = dataclasses.replace(
    bert_masked_lm("nomic_bert"), norm="cls.predictions.transform.layer_norm"
)
_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "nomic_bert.layers.*"

_NAMES = [
    *embedding_names("nomic_bert", ("word_embeddings", "token_type_embeddings")),
    *block_names(_LAYER, _EXTERNAL_LAYER, ROTARY_BLOCK),
    *dense_names(f"{_LAYER}/feed_forward/gate", f"{_EXTERNAL_LAYER}.mlp.up_proj"),
    *dense_names("pooler/dense", "nomic_bert.pooler.dense"),
    *dense_names("classifier", "classifier"),
]
TABLES = tying_tables("Hugging Face NomicBERT", "nomic_bert", _NAMES, _MASKED_LM)
_BARE_NAMES = ("emb_ln", "embeddings", "encoder", "layers", "pooler")
_OLD_NAMES = {
    ".emb_ln.": ".embeddings.LayerNorm.",
    ".encoder.layers.": ".layers.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".mlp.fc11.": ".mlp.up_proj.",
    ".mlp.fc12.": ".mlp.gate_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}


def _read_config(activation: Activation, read: ReadField) -> NomicBertConfig:
    length = read("max_position_embeddings", read("max_trained_positions", 2048))
    theta = read_rope_theta(read, read("rotary_emb_base", 1000.0))
    fields = read_transformer_fields(
        read,
        vocab_size=30528,
        hidden_size=read("n_embd", 768),
        num_hidden_layers=read("n_layer", 12),
        num_attention_heads=read("n_head", 12),
        intermediate_size=read("n_inner", 3072),
        hidden_dropout_prob=read("resid_pdrop", 0.0),
        attention_probs_dropout_prob=read("attn_pdrop", 0.0),
        layer_norm_eps=read("layer_norm_epsilon", 1e-12),
    )
    return NomicBertConfig(
        **fields,
        hidden_act=activation,
        positions=RotaryPositions(max_position_embeddings=length, rope_theta=theta),
    )


def _config_fields(config: NomicBertConfig) -> dict[str, Any]:
    return {
        **rope_fields(config.positions.rope_theta),
        "head_dim": config.head_width,
    }


def _canonical(name: str) -> str:
    # The published masked-LM folder has BERT's prefix.
    name = f"nomic_{name}" if name.startswith("bert.") else name
    return rename(name, "nomic_bert", _BARE_NAMES, _OLD_NAMES)


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"nomic_bert": "NomicBert"},
    # The published masked-LM folder has a class that transformers lacks.
    heads={"Model": (), "ForMaskedLM": ("masked_lm",), "ForPreTraining": ("masked_lm",)},
    fixed_fields={
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "use_rms_norm": False,
    },
    read_config=_read_config,
    config_fields=_config_fields,
    names=TABLES.names,
    canonical=_canonical,
    joined=joined_projections(".attn.Wqkv", "weight"),
    masked_lm=_MASKED_LM,
    default_activation="silu",
    missing_task_classes=("ForQuestionAnswering", "ForMultipleChoice"),
)
