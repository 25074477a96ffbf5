"""Describes a family's part of the Hugging Face format: config.json fields and tensor names.

Each family has a `HuggingFaceFormat` in its `huggingface.py`; `bert_jax/interop/` reads and writes
folders with it. Hugging Face's linear weights are [out, in], the kernels here are [in, out].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from bert_jax.errors import ConfigError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.layers.config import Activation, RotaryPositions
from bert_jax.params.name_table import Ignored, NameMapping, NameTable, Packed

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""The activations by Hugging Face's names; of two names for one, the first is written."""

ReadField = Callable[[str, Any], Any]
"""Reads a field of config.json by name; the second argument is the default.

The value must have the type of the default; None stands for an integer that is required.
"""

FIXED_FIELDS: dict[str, Any] = {
    # Relative positions of old BERT files would need other parameters; such a file is refused
    # instead of being computed differently.
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
"""Fields of every family, and the default that most of Hugging Face's classes have."""


@dataclass(frozen=True)
class SupportedValues:
    """Lists the values of a field of config.json that are supported, and why others are not.

    Attributes:
      values: the supported values.
      default: the value of Hugging Face's class if the field is absent.
      reason: the end of the error message for another value.
    """

    values: tuple[Any, ...]
    default: Any = field(kw_only=True)
    reason: str = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class MaskedLMNames:
    """Holds Hugging Face's names of a masked-LM head.

    Attributes:
      token_embeddings: the tensor that `decoder` repeats in a file with tied embeddings.
      decoder: the tensor of the head's own token embeddings.
      bias, decoder_bias: two names of the bias, both of which untied files need; the same if there
        is one name.
      transform, norm: the modules before the decoder; None if other rows of the table name them.
    """

    token_embeddings: str
    decoder: str
    bias: str
    decoder_bias: str
    transform: str | None = None
    norm: str | None = None

    @property
    def tied_copies(self) -> dict[str, str]:
        """Returns the tensors that repeat another one in a file with tied embeddings."""
        copies = {self.decoder: self.token_embeddings}
        if self.decoder_bias != self.bias:
            copies[self.decoder_bias] = self.bias
        return copies

    def mappings(self) -> list[NameMapping]:
        """Maps the parameters of the head except its own token embeddings."""
        transform = dense_names("masked_lm/transform", self.transform) if self.transform else []
        norm = norm_names("masked_lm/norm", self.norm) if self.norm else []
        return [*transform, *norm, NameMapping("masked_lm/bias", self.bias)]


def bert_masked_lm(prefix: str) -> MaskedLMNames:
    """Returns the names of BERT's masked-LM head; `prefix` as for `tying_tables`."""
    return MaskedLMNames(
        token_embeddings=f"{prefix}.embeddings.word_embeddings.weight",
        decoder="cls.predictions.decoder.weight",
        bias="cls.predictions.bias",
        decoder_bias="cls.predictions.decoder.bias",
        transform="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
    )


def roberta_masked_lm(prefix: str) -> MaskedLMNames:
    """Returns the names of RoBERTa's masked-LM head; `prefix` as for `tying_tables`."""
    return MaskedLMNames(
        token_embeddings=f"{prefix}.embeddings.word_embeddings.weight",
        decoder="lm_head.decoder.weight",
        bias="lm_head.bias",
        decoder_bias="lm_head.decoder.bias",
        transform="lm_head.dense",
        norm="lm_head.layer_norm",
    )


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat:
    """Describes the Hugging Face format of one family.

    Attributes:
      class_prefixes: prefix of the class names by `model_type`, as {"bert": "Bert"}.
      heads: the heads of each class without a task head, by the end of its name; a file may lack
        some of them.
      fixed_fields: fields of config.json that must be absent or have this value, or one of
        `SupportedValues`.
      read_config: makes the config from the activation and a function that reads other fields.
      config_fields: the fields of config.json that other families do not have, or have otherwise.
      names: returns the table of tensor names for a config and a task head or None.
      field_names: Hugging Face's name of a field of `TransformerConfig` where it is another one,
        None if its config.json has no such field.
      default_activation: the activation of a config.json without one.
      canonical: renames tensors of old files and of bare encoders to today's names.
      joined: tensors of old files that contain several of today's, one after another on the first
        axis: the end of the name after `canonical`, and the ends of today's names.
      masked_lm: the names of the masked-LM head; None if files have each of its tensors once.
      refused_model_types: similar models that are not supported, with the reason.
      missing_task_classes: the ends of the names of task classes that transformers lacks.
    """

    class_prefixes: Mapping[str, str]
    heads: Mapping[str, tuple[str, ...]]
    read_config: Callable[[Activation, ReadField], EncoderConfig]
    config_fields: Callable[[Any], dict[str, Any]]
    names: Callable[[Any, TaskHead | None], NameTable]
    canonical: Callable[[str], str]
    masked_lm: MaskedLMNames | None = None
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed_fields: Mapping[str, Any] = field(default_factory=dict)
    field_names: Mapping[str, str | None] = field(default_factory=dict)
    default_activation: str = "gelu"
    refused_model_types: Mapping[str, str] = field(default_factory=dict)
    missing_task_classes: tuple[str, ...] = ()

    def model_type(self, config: Any) -> str:
        """Returns the `model_type` of a config, a field of those that have several."""
        return getattr(config, "model_type", next(iter(self.class_prefixes)))

    def field_name(self, name: str) -> str | None:
        """Returns Hugging Face's name of a field of `TransformerConfig`; None if it has none."""
        return self.field_names.get(name, name)


def read_transformer_fields(
    read: ReadField,
    field_names: Mapping[str, str | None] = MappingProxyType({}),
    **defaults: Any,
) -> dict[str, Any]:
    """Reads the fields of `TransformerConfig` except the activation and the positions.

    Args:
      field_names: see `HuggingFaceFormat`; a field with the name None is not read.
      defaults: the defaults of the family's class in Hugging Face that differ from BERT's.
    """
    named = ((name, field_names.get(name, name)) for name in _TRANSFORMER_FIELDS)
    fields = _TRANSFORMER_FIELDS | defaults
    return {name: read(external, fields[name]) for name, external in named if external is not None}


def read_rope_theta(read: ReadField, default: float) -> float:
    """Reads the base of the rotation angles that are the same in all layers.

    Args:
      default: the base if the file has none in `rope_parameters`, where transformers 5 has it.

    Raises:
      ConfigError: the angles are scaled, or the base is no number.
    """
    rope = read("rope_parameters", {})
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(f"rope_parameters is {rope!r}; only the rope_type 'default' is supported")
    theta = rope.get("rope_theta", default)
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise ConfigError(f"rope_parameters.rope_theta is {theta!r}; expected a number")
    return float(theta)


def read_rotary_positions(read: ReadField, length: int, theta: float) -> RotaryPositions:
    """Reads rotary positions with one base for all layers.

    Args:
      length, theta: `max_position_embeddings` and the base if the file has none.

    Raises:
      ConfigError: as `read_rope_theta`.
    """
    return RotaryPositions(
        max_position_embeddings=read("max_position_embeddings", length),
        rope_theta=read_rope_theta(read, read("rope_theta", theta)),
    )


def rope_fields(theta: float) -> dict[str, Any]:
    """Returns the base of the rotation angles as transformers 5 writes it to config.json."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def transformer_fields(config: EncoderConfig, family_format: HuggingFaceFormat) -> dict[str, Any]:
    """Returns the content of config.json that comes from fields of `TransformerConfig`."""
    values = {name: getattr(config, name) for name in _TRANSFORMER_FIELDS}
    values["hidden_act"] = next(n for n, kind in ACTIVATIONS.items() if kind == config.hidden_act)
    values["max_position_embeddings"] = config.positions.max_position_embeddings
    named = ((family_format.field_name(name), value) for name, value in values.items())
    return {name: value for name, value in named if name is not None}


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


@dataclass(frozen=True, kw_only=True)
class BlockNames:
    """Holds Hugging Face's names of the modules in a layer; default values are BERT's."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    output: str = "output.dense"
    output_norm: str = "output.LayerNorm"


def block_names(
    internal: str,
    external: str,
    names: BlockNames = BlockNames(),
) -> list[NameMapping]:
    """Maps the parameters of a `PostNormBlock`.

    Args:
      internal, external: the path of the layers and the start of their names in files, with `*` for
        the number of the layer: "encoder/layers/*" and "bert.encoder.layer.*".
    """
    return [
        *dense_names(f"{internal}/attention/query", f"{external}.{names.query}"),
        *dense_names(f"{internal}/attention/key", f"{external}.{names.key}"),
        *dense_names(f"{internal}/attention/value", f"{external}.{names.value}"),
        *dense_names(f"{internal}/attention/output", f"{external}.{names.attention_output}"),
        *norm_names(f"{internal}/attention_norm", f"{external}.{names.attention_norm}"),
        *dense_names(f"{internal}/feed_forward/intermediate", f"{external}.{names.intermediate}"),
        *dense_names(f"{internal}/feed_forward/output", f"{external}.{names.output}"),
        *norm_names(f"{internal}/feed_forward_norm", f"{external}.{names.output_norm}"),
    ]


SEQUENCE_CLASSIFIER = [
    *dense_names("classifier/dense", "classifier.dense"),
    *dense_names("classifier/out_proj", "classifier.out_proj"),
]
"""The names of RoBERTa's classifier of two layers."""


def embedding_names(
    prefix: str,
    tables: Sequence[str] = ("word_embeddings", "position_embeddings", "token_type_embeddings"),
) -> list[NameMapping]:
    """Maps the embedding tables and their LayerNorm, whose tensors start with `prefix`."""
    internal, external = "encoder/embeddings", f"{prefix}.embeddings"
    return [
        *(
            NameMapping(f"{internal}/{name}/embedding", f"{external}.{name}.weight")
            for name in tables
        ),
        *norm_names(f"{internal}/norm", f"{external}.LayerNorm"),
    ]


def bert_encoder_names(prefix: str) -> list[NameMapping]:
    """Maps the parameters of an encoder with BERT's tensor names, and of the pooler."""
    return [
        *embedding_names(prefix),
        *block_names("encoder/layers/*", f"{prefix}.encoder.layer.*"),
        *dense_names("pooler/dense", f"{prefix}.pooler.dense"),
    ]


class TyingTables(NamedTuple):
    """Holds the tables of tensor names of a family, for tied and for untied token embeddings.

    With tied ones, the masked-LM head has no matrix of its own; a file may repeat the embeddings.
    """

    tied: NameTable
    untied: NameTable

    def names(self, config: TransformerConfig, head: TaskHead | None = None) -> NameTable:
        """Returns the table of a config, which is the same for all task heads."""
        del head
        return self.tied if config.tie_word_embeddings else self.untied


def tying_tables(
    title: str,
    prefix: str,
    names: Sequence[NameMapping | Packed],
    masked_lm: MaskedLMNames,
    *,
    ignored: Sequence[Ignored] = (),
) -> TyingTables:
    """Makes the tables of a family, with and without tied token embeddings.

    Args:
      title: name of the tables in messages.
      prefix: first part of the names of the encoder's tensors.
      names: the encoder and all heads except the masked-LM head.
      ignored: further tensors that are not parameters of the model.
    """
    names = [*names, *masked_lm.mappings()]
    ignored = [
        *ignored,
        Ignored(f"{prefix}.embeddings.position_ids", "0, 1, 2, ... as a buffer, in old files"),
        Ignored(f"{prefix}.embeddings.token_type_ids", "zeros as a buffer, in old files"),
    ]
    bias, decoder_bias = masked_lm.bias, masked_lm.decoder_bias
    if decoder_bias != bias:
        ignored.append(Ignored(decoder_bias, f"a second copy of {bias}"))
    decoder = masked_lm.decoder
    tied_ignored = [*ignored, Ignored(decoder, f"a second copy of {masked_lm.token_embeddings}")]
    untied_names = [*names, NameMapping("masked_lm/decoder", decoder)]
    return TyingTables(
        tied=NameTable(title, names, tied_ignored, separator="."),
        untied=NameTable(f"{title}, untied", untied_names, ignored, separator="."),
    )


# First segments of the names in a file of the bare encoder; "transformer" is DistilBERT's and
# "embeddings_project" is ELECTRA's.
_BARE_ENCODER_NAMES = ("embeddings", "embeddings_project", "encoder", "transformer", "pooler")


def canonical_name(name: str, prefix: str) -> str:
    """Returns today's name of a tensor from an old file or from a file of the bare encoder."""
    if name.split(".")[0] in _BARE_ENCODER_NAMES:
        name = f"{prefix}.{name}"
    # Files converted from TensorFlow by the first releases keep TensorFlow's names of the norms.
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def rename(name: str, prefix: str, bare_names: Sequence[str], old_names: Mapping[str, str]) -> str:
    """Returns today's name of a tensor from an old file or from a file of the bare encoder.

    Args:
      prefix: the first part of the names of the encoder's tensors.
      bare_names: the first parts of these names in a file of the bare encoder, without the prefix.
      old_names: parts of names in old files, with the points around them, and today's.
    """
    if name.split(".")[0] in bare_names:
        name = f"{prefix}.{name}"
    for old, new in old_names.items():
        name = name.replace(old, new)
    return name


def joined_projections(end: str, *kinds: str) -> dict[str, tuple[str, ...]]:
    """Returns the row of `HuggingFaceFormat.joined` for joint projections of q, k and v.

    Args:
      end: the end of the name of the joint layer, such as ".attn.Wqkv".
      kinds: "weight", and "bias" if the layer has one.
    """
    return {
        f"{end}.{kind}": tuple(f".self_attn.{each}_proj.{kind}" for each in "qkv") for kind in kinds
    }


ROTARY_BLOCK = BlockNames(
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    intermediate="mlp.gate_proj",
    output="mlp.down_proj",
    output_norm="post_mlp_layernorm",
)
"""The names of transformers 5 in post-norm layers with rotary positions and a gate."""
