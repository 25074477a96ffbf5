"""Describes a family's part of the Hugging Face format: config.json fields and tensor names.

Each family has a `HuggingFaceFormat` in its `huggingface.py`; `bert_jax/interop/` reads and writes
folders with it. Hugging Face's linear weights are [out, in], the kernels here are [in, out].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_jax.models.encoder import FAMILIES, EncoderConfig, family_module
from bert_jax.models.layers.config import Activation, Gelu, GeluTanh
from bert_jax.params.name_table import Ignored, NameMapping, NameTable

ACTIVATIONS: dict[str, Activation] = {
    "gelu": Gelu(),
    "gelu_new": GeluTanh(),
    "gelu_pytorch_tanh": GeluTanh(),
}
"""The activations by Hugging Face's names; of two names for one, the first is written."""

ReadField = Callable[[str, Any], Any]
"""Reads a number from config.json by name; the second argument is the default, None if required."""

FIXED_FIELDS: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
}
"""Fields of config.json that no family here reads otherwise, and the value that each must have."""

_TRANSFORMER_FIELDS: dict[str, Any] = {
    "vocab_size": None,
    "hidden_size": None,
    "num_hidden_layers": None,
    "num_attention_heads": None,
    "intermediate_size": None,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
"""Fields with the same name here, and the default that Hugging Face's classes have."""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat:
    """Describes the Hugging Face format of one family.

    Attributes:
      class_prefixes: prefix of the class names by `model_type`, as {"bert": "Bert"}.
      heads: the heads of each class without a task head, by the end of its name; a file may lack
        some of them.
      fixed_fields: fields of config.json that must be absent or have this value.
      read_config: makes the config from `model_type`, the activation and a function that reads
        numbers.
      model_type: the `model_type` of a config.
      config_fields: the fields of config.json that other families do not have, or have otherwise.
      tied, untied: the tensor names, with and without tied token embeddings.
      canonical: renames tensors of old files and of bare encoders to today's names.
      tied_copies: tensors that repeat another one in a file with tied embeddings.
      decoder_bias, lm_bias: two names of the masked-LM bias; untied files need both.
    """

    class_prefixes: Mapping[str, str]
    heads: Mapping[str, tuple[str, ...]]
    read_config: Callable[[str, Activation, ReadField], EncoderConfig]
    model_type: Callable[[Any], str]
    config_fields: Callable[[Any], dict[str, Any]]
    tied: NameTable
    untied: NameTable
    canonical: Callable[[str], str]
    tied_copies: Mapping[str, str]
    decoder_bias: str
    lm_bias: str
    fixed_fields: Mapping[str, Any] = field(default_factory=dict)

    def names(self, config: EncoderConfig) -> NameTable:
        """Returns the table of tensor names for a config."""
        return self.tied if config.tie_word_embeddings else self.untied


def read_transformer_fields(read: ReadField) -> dict[str, Any]:
    """Reads the fields that every family has under the same name in its config."""
    return {name: read(name, default) for name, default in _TRANSFORMER_FIELDS.items()}


def transformer_fields(config: EncoderConfig) -> dict[str, Any]:
    """Returns the fields that every family writes under the same name."""
    return {name: getattr(config, name) for name in _TRANSFORMER_FIELDS}


def format_of(config: EncoderConfig) -> HuggingFaceFormat:
    """Returns the format of the family to which a config belongs."""
    return family_module(type(config), "huggingface").HUGGING_FACE


def formats() -> dict[str, HuggingFaceFormat]:
    """Returns the formats of all families by `model_type`."""
    found: dict[str, HuggingFaceFormat] = {}
    for family in FAMILIES:
        family_format: HuggingFaceFormat = family_module(family, "huggingface").HUGGING_FACE
        found |= dict.fromkeys(family_format.class_prefixes, family_format)
    return found


def dense_names(internal: str, external: str) -> list[NameMapping]:
    """Maps the kernel and bias of a linear layer."""
    return [
        NameMapping(f"{internal}/kernel", f"{external}.weight", transposed=True),
        NameMapping(f"{internal}/bias", f"{external}.bias"),
    ]


def norm_names(internal: str, external: str) -> list[NameMapping]:
    """Maps the scale and bias of a LayerNorm."""
    return [
        NameMapping(f"{internal}/scale", f"{external}.weight"),
        NameMapping(f"{internal}/bias", f"{external}.bias"),
    ]


def encoder_names(prefix: str) -> list[NameMapping]:
    """Maps the parameters of an encoder with BERT's layers, whose tensors start with `prefix`."""
    layer, external = "encoder/layers/*", f"{prefix}.encoder.layer.*"
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return [
        *(
            NameMapping(
                f"encoder/embeddings/{name}/embedding", f"{prefix}.embeddings.{name}.weight"
            )
            for name in tables
        ),
        *norm_names("encoder/embeddings/norm", f"{prefix}.embeddings.LayerNorm"),
        *dense_names(f"{layer}/attention/query", f"{external}.attention.self.query"),
        *dense_names(f"{layer}/attention/key", f"{external}.attention.self.key"),
        *dense_names(f"{layer}/attention/value", f"{external}.attention.self.value"),
        *dense_names(f"{layer}/attention/output", f"{external}.attention.output.dense"),
        *norm_names(f"{layer}/attention_norm", f"{external}.attention.output.LayerNorm"),
        *dense_names(f"{layer}/feed_forward/intermediate", f"{external}.intermediate.dense"),
        *dense_names(f"{layer}/feed_forward/output", f"{external}.output.dense"),
        *norm_names(f"{layer}/feed_forward_norm", f"{external}.output.LayerNorm"),
        *dense_names("pooler/dense", f"{prefix}.pooler.dense"),
    ]


def tied_and_untied_tables(
    title: str,
    prefix: str,
    names: Sequence[NameMapping],
    *,
    decoder: str,
    decoder_bias: str,
    lm_bias: str,
) -> tuple[NameTable, NameTable]:
    """Returns the tables of a model with BERT's layers, with and without tied token embeddings.

    Args:
      title: name of the tables in messages.
      prefix: first part of the names of the encoder's tensors.
      names: the heads; the encoder is added.
      decoder: tensor of the masked-LM head's own token embeddings; a tied model has a copy at most.
      decoder_bias: a second copy of the masked-LM bias.
      lm_bias: the masked-LM bias.
    """
    token_embeddings = f"{prefix}.embeddings.word_embeddings.weight"
    names = [*encoder_names(prefix), *names]
    ignored = [
        Ignored(f"{prefix}.embeddings.position_ids", "0, 1, 2, ... as a buffer, in old files"),
        Ignored(f"{prefix}.embeddings.token_type_ids", "zeros as a buffer, in old files"),
        Ignored(decoder_bias, f"a second copy of {lm_bias}"),
    ]
    tied_ignored = [*ignored, Ignored(decoder, f"a second copy of {token_embeddings}")]
    untied_names = [*names, NameMapping("masked_lm/decoder", decoder)]
    return (
        NameTable(title, names, tied_ignored, separator="."),
        NameTable(f"{title}, untied", untied_names, ignored, separator="."),
    )


def canonical_name(name: str, prefix: str) -> str:
    """Returns today's name of a tensor from an old file or from a file of the bare encoder."""
    if name.split(".")[0] in ("embeddings", "encoder", "pooler"):  # a file of the bare encoder
        name = f"{prefix}.{name}"
    # Files converted from TensorFlow by the first releases keep TensorFlow's names of the norms.
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name
