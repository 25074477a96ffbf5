"""Describes ModernBERT's Hugging Face format: config.json fields and tensor names.

transformers 5 replaced `global_attn_every_n_layers` by a list of layer types, and the two fields of
the rotations by `rope_parameters`. Both spellings are read, and both are written.
"""

import functools
from typing import Any, get_args

from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import (
    Pooling,
    TaskHead,
    head_param_name,
)
from bert_jax.models.huggingface import (
    HuggingFaceFormat,
    MaskedLMNames,
    ReadField,
    dense_names,
    read_transformer_fields,
)
from bert_jax.models.layers.config import Activation, NoPositions
from bert_jax.models.modernbert.config import (
    ModernBertConfig,
    alternating_layers,
)
from bert_jax.models.pre_norm.config import LayerType
from bert_jax.params.name_table import Ignored, NameMapping, NameTable, Packed

MASKED_LM = MaskedLMNames(
    token_embeddings="model.embeddings.tok_embeddings.weight",
    decoder="decoder.weight",
    bias="decoder.bias",
    decoder_bias="decoder.bias",
)
"""The names of the masked-LM head, whose layers are those of the prediction head."""

_LAYER, _EXTERNAL_LAYER = "encoder/layers/*", "model.layers.*"

_NAMES: list[NameMapping | Packed] = [
    NameMapping("encoder/embeddings/word_embeddings/embedding", MASKED_LM.token_embeddings),
    NameMapping("encoder/embeddings/norm/scale", "model.embeddings.norm.weight"),
    NameMapping(f"{_LAYER}/attention_norm/scale", f"{_EXTERNAL_LAYER}.attn_norm.weight"),
    Packed(
        tuple(f"{_LAYER}/attention/{name}/kernel" for name in ("query", "key", "value")),
        f"{_EXTERNAL_LAYER}.attn.Wqkv.weight",
        transposed=True,
    ),
    NameMapping(
        f"{_LAYER}/attention/output/kernel", f"{_EXTERNAL_LAYER}.attn.Wo.weight", transposed=True
    ),
    NameMapping(f"{_LAYER}/feed_forward_norm/scale", f"{_EXTERNAL_LAYER}.mlp_norm.weight"),
    # The activation is applied to the first half of Wi.
    Packed(
        (f"{_LAYER}/feed_forward/intermediate/kernel", f"{_LAYER}/feed_forward/gate/kernel"),
        f"{_EXTERNAL_LAYER}.mlp.Wi.weight",
        transposed=True,
    ),
    NameMapping(
        f"{_LAYER}/feed_forward/output/kernel", f"{_EXTERNAL_LAYER}.mlp.Wo.weight", transposed=True
    ),
    NameMapping("encoder/final_norm/scale", "model.final_norm.weight"),
    NameMapping("prediction_head/dense/kernel", "head.dense.weight", transposed=True),
    NameMapping("prediction_head/norm/scale", "head.norm.weight"),
    *MASKED_LM.mappings(),
]
_BUFFERS = [Ignored("model.layers.*.attn.rotary_emb.inv_freq", "a buffer, in old files")]


@functools.cache
def names(tied: bool, head_name: str) -> NameTable:
    """Returns the tensor names for tied or untied token embeddings and a task head's parameter.

    Hugging Face's heads are all called "classifier", for question answering, too.
    """
    rows = [*_NAMES, *dense_names(head_name, "classifier")]
    if tied:
        copy = Ignored(MASKED_LM.decoder, f"a second copy of {MASKED_LM.token_embeddings}")
        return NameTable("Hugging Face ModernBERT", rows, [*_BUFFERS, copy], separator=".")
    rows.append(NameMapping("masked_lm/decoder", MASKED_LM.decoder))
    return NameTable("Hugging Face ModernBERT, untied", rows, _BUFFERS, separator=".")


def _names(config: ModernBertConfig, head: TaskHead | None) -> NameTable:
    return names(config.tie_word_embeddings, head_param_name(head) if head else "classifier")


_FIELD_NAMES: dict[str, str | None] = {
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "embedding_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
    "type_vocab_size": None,
}
_POOLINGS: dict[str, Pooling] = {"cls": "first_token", "mean": "mean"}


def _read_config(activation: Activation, read: ReadField) -> ModernBertConfig:
    return ModernBertConfig(**read_fields(activation, read))


def read_fields(activation: Activation, read: ReadField) -> dict[str, Any]:
    """Reads the fields of a `ModernBertConfig`; the decoder has the same."""
    fields = read_transformer_fields(
        read,
        _FIELD_NAMES,
        vocab_size=50368,
        hidden_size=768,
        num_hidden_layers=22,
        num_attention_heads=12,
        intermediate_size=1152,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
    )
    pooling = read("classifier_pooling", "cls")
    if pooling not in _POOLINGS:
        raise ConfigError(f"classifier_pooling is {pooling!r}; expected 'cls' or 'mean'")
    every = read("global_attn_every_n_layers", 3)
    if every < 1:
        raise ConfigError(f"global_attn_every_n_layers is {every}; expected at least 1")
    return {
        **fields,
        "hidden_act": activation,
        "positions": NoPositions(max_position_embeddings=read("max_position_embeddings", 8192)),
        # Hugging Face has one rate for the weights and for the output of attention.
        "attention_output_dropout": read(
            "attention_output_dropout", fields["attention_probs_dropout_prob"]
        ),
        "mlp_dropout": read("mlp_dropout", 0.0),
        "layer_types": read_layer_types(read)
        or alternating_layers(fields["num_hidden_layers"], every),
        "local_attention": read("local_attention", 128),
        "global_rope_theta": read_layer_theta(
            read, "full_attention", read("global_rope_theta", 160_000.0)
        ),
        "local_rope_theta": read_layer_theta(
            read, "sliding_attention", read("local_rope_theta", 10_000.0)
        ),
        "classifier_pooling": _POOLINGS[pooling],
    }


def read_layer_types(read: ReadField) -> tuple[LayerType, ...]:
    """Reads the kind of attention of each layer; () if the file has no such field."""
    layer_types = tuple(read("layer_types", []))
    kinds = get_args(LayerType)
    for layer_type in layer_types:
        if layer_type not in kinds:
            raise ConfigError(f"layer_types contains {layer_type!r}; expected {' or '.join(kinds)}")
    return layer_types


def read_layer_theta(read: ReadField, layer_type: LayerType, default: float) -> float:
    """Reads the base of the rotation angles of one type of layers.

    Args:
      default: the base if the file has none in `rope_parameters`, where transformers 5 has it.
    """
    rope = read("rope_parameters", {}).get(layer_type) or {}
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise ConfigError(
            f"rope_parameters.{layer_type} is {rope!r}; only the rope_type 'default' is supported"
        )
    theta = rope.get("rope_theta")
    if theta is None:
        return default
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise ConfigError(
            f"rope_parameters.{layer_type}.rope_theta is {theta!r}; expected a number"
        )
    return float(theta)


def config_fields(config: ModernBertConfig) -> dict[str, Any]:
    """Returns the fields of config.json that other families do not have; the decoder has them."""
    thetas = {
        "full_attention": config.global_rope_theta,
        "sliding_attention": config.local_rope_theta,
    }
    pooling = next(name for name, kind in _POOLINGS.items() if kind == config.classifier_pooling)
    fields: dict[str, Any] = {
        "mlp_dropout": config.mlp_dropout,
        "local_attention": config.local_attention,
        "classifier_pooling": pooling,
        "layer_types": list(config.layer_types),
        "rope_parameters": {
            layer_type: {"rope_type": "default", "rope_theta": theta}
            for layer_type, theta in thetas.items()
        },
        # transformers 4 reads these.
        "global_rope_theta": config.global_rope_theta,
        "local_rope_theta": config.local_rope_theta,
    }
    for every in range(1, config.num_hidden_layers + 1):
        if alternating_layers(config.num_hidden_layers, every) == config.layer_types:
            fields["global_attn_every_n_layers"] = every
            break
    if config.attention_output_dropout != config.attention_probs_dropout_prob:
        # Hugging Face ignores this field: there, dropout has the rate `attention_dropout`.
        fields["attention_output_dropout"] = config.attention_output_dropout
    return fields


def _canonical(name: str) -> str:
    """Returns the name of a tensor with the prefix that files of the bare encoder lack."""
    is_bare = name.split(".")[0] in ("embeddings", "layers", "final_norm")
    return f"model.{name}" if is_bare else name


HUGGING_FACE = HuggingFaceFormat(
    class_prefixes={"modernbert": "ModernBert"},
    heads={"Model": (), "ForMaskedLM": ("prediction_head", "masked_lm")},
    fixed_fields={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "classifier_activation": "gelu",
    },
    read_config=_read_config,
    config_fields=config_fields,
    field_names=_FIELD_NAMES,
    names=_names,
    canonical=_canonical,
    masked_lm=MASKED_LM,
)
