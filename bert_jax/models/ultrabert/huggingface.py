"""Describes UltraBERT's Hugging Face format: config.json fields and tensor names.

Folders of transformers 5, and the published ones, which name the window and the base of the
rotation angles of each layer (`attention_windows`, `rope_theta`).
"""

import functools
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import Pooling, TaskHead, head_param_name
from bert_jax.models.huggingface import (
    HuggingFaceFormat,
    ReadField,
    dense_names,
    read_transformer_fields,
)
from bert_jax.models.layers.config import Activation, NoPositions
from bert_jax.models.modernbert.huggingface import read_layer_theta, read_layer_types
from bert_jax.models.pre_norm.config import LayerType
from bert_jax.models.ultrabert.config import UltraBertConfig
from bert_jax.params.name_table import NameMapping, NameTable

_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "model.layers.*"
# The activation is applied to the output of `gate_proj`, which is `intermediate` here.
_KERNELS = {
    f"{_LAYER}/attention/query": f"{_EXTERNAL_LAYER}.self_attn.q_proj",
    f"{_LAYER}/attention/key": f"{_EXTERNAL_LAYER}.self_attn.k_proj",
    f"{_LAYER}/attention/value": f"{_EXTERNAL_LAYER}.self_attn.v_proj",
    f"{_LAYER}/attention/output": f"{_EXTERNAL_LAYER}.self_attn.o_proj",
    f"{_LAYER}/feed_forward/intermediate": f"{_EXTERNAL_LAYER}.mlp.gate_proj",
    f"{_LAYER}/feed_forward/gate": f"{_EXTERNAL_LAYER}.mlp.up_proj",
    f"{_LAYER}/feed_forward/output": f"{_EXTERNAL_LAYER}.mlp.down_proj",
    "masked_lm/linear1": "head.linear1",
    "masked_lm/linear2": "head.linear2",
}
_NORMS = {
    f"{_LAYER}/attention_norm": f"{_EXTERNAL_LAYER}.input_layernorm",
    f"{_LAYER}/feed_forward_norm": f"{_EXTERNAL_LAYER}.post_attention_layernorm",
    "encoder/final_norm": "model.norm",
}
_NAMES = [
    NameMapping("encoder/embeddings/word_embeddings/embedding", "model.embed_tokens.weight"),
    *(
        NameMapping(f"{internal}/kernel", f"{name}.weight", transposed=True)
        for internal, name in _KERNELS.items()
    ),
    *(NameMapping(f"{internal}/scale", f"{name}.weight") for internal, name in _NORMS.items()),
    NameMapping("masked_lm/decoder", "head.decoder.weight"),
]


@functools.cache
def _table(head_name: str) -> NameTable:
    head = dense_names(head_name, "qa_outputs" if head_name == "span" else "classifier")
    return NameTable("Hugging Face UltraBERT", [*_NAMES, *head], [], separator=".")


def _names(config: UltraBertConfig, head: TaskHead | None) -> NameTable:
    del config  # the names are the same for all
    return _table(head_param_name(head) if head else "classifier")


_FIELD_NAMES: dict[str, str | None] = {
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "rms_norm_eps",
    "type_vocab_size": None,
}
_POOLINGS: dict[str, Pooling] = {"cls": "first_token", "mean": "mean"}
_FULL, _LOCAL = "full_attention", "sliding_attention"


def _read_config(activation: Activation, read: ReadField) -> UltraBertConfig:
    fields = read_transformer_fields(
        read,
        _FIELD_NAMES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    pooling = read("classifier_pooling", "cls")
    if pooling not in _POOLINGS:
        raise ConfigError(f"classifier_pooling is {pooling!r}; expected 'cls' or 'mean'")
    windows = read("attention_windows", [])
    by_window: tuple[LayerType, ...] = tuple(_LOCAL if window else _FULL for window in windows)
    layers = fields["num_hidden_layers"]
    layer_types = read_layer_types(read) or by_window or UltraBertConfig.default_layer_types(layers)
    thetas = dict(zip(layer_types, read("rope_theta", []), strict=False))
    config = UltraBertConfig(
        **fields,
        hidden_act=activation,
        positions=NoPositions(max_position_embeddings=read("max_position_embeddings", 32_768)),
        num_key_value_heads=read("num_key_value_heads", fields["num_attention_heads"]),
        layer_types=layer_types,
        sliding_window=next(filter(None, windows), read("sliding_window", 128)),
        global_rope_theta=read_layer_theta(read, _FULL, thetas.get(_FULL, 2_560_000.0)),
        local_rope_theta=read_layer_theta(read, _LOCAL, thetas.get(_LOCAL, 10_000.0)),
        prediction_head_size=read("prediction_head_size", 768),
        classifier_pooling=_POOLINGS[pooling],
    )
    if (width := read("head_dim", config.head_width)) != config.head_width:
        raise ConfigError(
            f"head_dim is {width}; expected hidden_size / num_attention_heads, which is "
            f"{config.head_width}"
        )
    return config


def _config_fields(config: UltraBertConfig) -> dict[str, Any]:
    thetas = {_FULL: config.global_rope_theta, _LOCAL: config.local_rope_theta}
    pooling = next(name for name, kind in _POOLINGS.items() if kind == config.classifier_pooling)
    return {
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_width,
        "layer_types": list(config.layer_types),
        "sliding_window": config.sliding_window,
        "rope_parameters": {
            layer_type: {"rope_type": "default", "rope_theta": theta}
            for layer_type, theta in thetas.items()
        },
        "prediction_head_size": config.prediction_head_size,
        "classifier_pooling": pooling,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _canonical(name: str) -> str:
    """Returns today's name of a tensor of the published folders, or of a bare encoder."""
    start, *rest = name.split(".")
    if start == "ultrabert":
        return ".".join(["model", *rest])
    if start == "cls":
        return ".".join(["head.decoder", *rest])
    return f"model.{name}" if start in ("embed_tokens", "layers", "norm") else name


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"ultrabert": "Ultrabert"},
    heads={"Model": (), "ForMaskedLM": ("masked_lm",)},
    fixed_fields={"attention_bias": False, "mlp_bias": False},
    read_config=_read_config,
    config_fields=_config_fields,
    names=_names,
    canonical=_canonical,
    field_names=_FIELD_NAMES,
    default_activation="silu",
    missing_task_classes=("ForMultipleChoice",),
)
