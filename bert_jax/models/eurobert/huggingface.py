"""Describes EuroBERT's Hugging Face format: config.json fields and tensor names.

Folders of transformers 5, and the published ones, whose code is in the folder: they have the fields
`rope_theta` and `clf_pooling`.
"""

import functools
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.heads.config import (
    DenseClassifier,
    Pooling,
    TaskHead,
    classifier_layers,
    head_param_name,
)
from bert_jax.models.huggingface import (
    HuggingFaceFormat,
    ReadField,
    dense_names,
    read_rope_theta,
    read_transformer_fields,
    rope_fields,
)
from bert_jax.models.layers.config import Activation, NoPositions
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "model.layers.*"
# The activation is applied to the output of `gate_proj`, which is `intermediate` here.
_KERNELS = {
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "feed_forward/intermediate": "mlp.gate_proj",
    "feed_forward/gate": "mlp.up_proj",
    "feed_forward/output": "mlp.down_proj",
}
_NORMS = {
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}
_NAMES = [
    NameMapping("encoder/embeddings/word_embeddings/embedding", "model.embed_tokens.weight"),
    *(
        NameMapping(
            f"{_LAYER}/{internal}/kernel", f"{_EXTERNAL_LAYER}.{name}.weight", transposed=True
        )
        for internal, name in _KERNELS.items()
    ),
    *(
        NameMapping(f"{_LAYER}/{internal}/scale", f"{_EXTERNAL_LAYER}.{name}.weight")
        for internal, name in _NORMS.items()
    ),
    NameMapping("encoder/final_norm/scale", "model.norm.weight"),
    NameMapping("masked_lm/decoder", "lm_head.weight"),
]
_BUFFERS = [
    Ignored(f"{prefix}rotary_emb.inv_freq", "a buffer, in old files")
    for prefix in ("model.", "model.layers.*.self_attn.")
]


@functools.cache
def _table(head_name: str, *, dense_classifier: bool) -> NameTable:
    head = dense_names(head_name, "classifier")
    if dense_classifier:
        head = [
            *dense_names("classifier/dense", "dense"),
            *dense_names("classifier/out_proj", "classifier"),
        ]
    return NameTable("Hugging Face EuroBERT", [*_NAMES, *head], _BUFFERS, separator=".")


def names(config: EuroBertConfig, head: TaskHead | None) -> NameTable:
    """Returns the table of tensor names of a model with a task head, or without one."""
    if head is None:
        return _table("classifier", dense_classifier=False)
    layers = classifier_layers(head, config)
    return _table(head_param_name(head), dense_classifier=isinstance(layers, DenseClassifier))


_FIELD_NAMES: dict[str, str | None] = {
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "rms_norm_eps",
    "type_vocab_size": None,
}
_POOLINGS: dict[str, Pooling] = {"bos": "first_token", "mean": "mean", "late": "late"}


def _read_config(activation: Activation, read: ReadField) -> EuroBertConfig:
    fields = read_transformer_fields(
        read,
        _FIELD_NAMES,
        vocab_size=128_256,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    pooling = read("classifier_pooling", read("clf_pooling", "late"))
    if pooling not in _POOLINGS:
        raise ConfigError(
            f"classifier_pooling is {pooling!r}; expected {', '.join(map(repr, _POOLINGS))}"
        )
    config = EuroBertConfig(
        **fields,
        hidden_act=activation,
        positions=NoPositions(max_position_embeddings=read("max_position_embeddings", 8192)),
        num_key_value_heads=read("num_key_value_heads", fields["num_attention_heads"]),
        rope_theta=read_rope_theta(read, read("rope_theta", 10_000.0)),
        classifier_pooling=_POOLINGS[pooling],
    )
    if (width := read("head_dim", config.head_width)) != config.head_width:
        raise ConfigError(
            f"head_dim is {width}; expected hidden_size / num_attention_heads, which is "
            f"{config.head_width}"
        )
    return config


def _config_fields(config: EuroBertConfig) -> dict[str, Any]:
    pooling = next(name for name, kind in _POOLINGS.items() if kind == config.classifier_pooling)
    return {
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_width,
        **rope_fields(config.rope_theta),
        "classifier_pooling": pooling,
        "attention_bias": False,
        "mlp_bias": False,
        # The code of the published folders reads these.
        "rope_theta": config.rope_theta,
        "clf_pooling": pooling,
    }


def _canonical(name: str) -> str:
    """Returns the name of a tensor with the prefix that files of the bare encoder lack."""
    is_bare = name.split(".")[0] in ("embed_tokens", "layers", "norm", "rotary_emb")
    return f"model.{name}" if is_bare else name


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"eurobert": "EuroBert"},
    heads={"Model": (), "ForMaskedLM": ("masked_lm",)},
    fixed_fields={
        "attention_bias": False,
        "mlp_bias": False,
        "is_decoder": False,
        "rope_scaling": None,
    },
    read_config=_read_config,
    config_fields=_config_fields,
    names=names,
    canonical=_canonical,
    field_names=_FIELD_NAMES,
    default_activation="silu",
    missing_task_classes=("ForQuestionAnswering", "ForMultipleChoice"),
)
