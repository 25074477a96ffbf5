"""Reads and writes Hugging Face's config.json: the encoder of any family and its task head."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_jax.errors import ConfigError, UserError
from bert_jax.interop import huggingface_heads as heads
from bert_jax.io.json_io import read_json_object
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import (
    ACTIVATIONS,
    HuggingFaceFormat,
    SupportedValues,
    format_of,
    formats,
    transformer_fields,
)
from bert_jax.models.layers.config import Activation
from bert_jax.models.seq2seq.huggingface import seq2seq_formats

_SENTENCE_TRANSFORMERS_CONFIG = "config_sentence_transformers.json"


def read_config(
    file: Path,
    default_model_type: str = "bert",
    activations: Mapping[str, Activation] = MappingProxyType(ACTIVATIONS),
) -> tuple[EncoderConfig, TaskHead | None]:
    """Reads the encoder and the task head from a `config.json`, or from one of Google's configs.

    The head is None if the file describes a model without a task head.

    Args:
      default_model_type: the `model_type` of a file that has none, as Google's.
      activations: the activations by their names in the file.

    Raises:
      UserError: the file is absent, damaged, or of a model that is not supported; names the field.
    """
    data = read_json_object(file)
    model_type = data.get("model_type", default_model_type)
    if not isinstance(model_type, str) or model_type not in formats():
        reasons = [f.refused_model_types.get(str(model_type)) for f in formats().values()]
        if str(model_type) in seq2seq_formats():
            reasons.append("an encoder-decoder, which `bert-jax generate` runs")
        reason = next((f" ({reason})" for reason in reasons if reason), "")
        raise UserError(
            f"{file}: model_type is {model_type!r}{reason}; supported are {', '.join(formats())}"
        )
    family_format = formats()[model_type]
    prefix = family_format.class_prefixes[model_type]
    suffix = _class_suffix(file, data, family_format, prefix)
    for field, supported in family_format.fixed_fields.items():
        check_supported(file, field, data, supported)
    activation_field = family_format.field_name("hidden_act") or "hidden_act"
    act = data.get(activation_field, family_format.default_activation)
    if not isinstance(act, str) or act not in activations:
        raise UserError(
            f"{file}: {activation_field} is {act!r}; supported are "
            f"{', '.join(map(repr, activations))}"
        )
    try:
        config = family_format.read_config(
            model_type,
            activations[act],
            lambda name, default: read_field(file, data, name, default),
        )
    except ConfigError as error:
        raise UserError(f"{file}: {error}") from None
    if suffix is None:
        return config, None
    return config, heads.head_from_config(suffix, _with_cross_encoder_fields(file, data), str(file))


def _with_cross_encoder_fields(file: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds the activation of a `CrossEncoder`, which sentence-transformers 6 has in another file.

    Earlier versions have it in config.json, where it is ignored if there is such a file.
    """
    extra_file = file.parent / _SENTENCE_TRANSFORMERS_CONFIG
    if not extra_file.is_file():
        return data
    extra = read_json_object(extra_file)
    if extra.get("model_type") != "CrossEncoder" or "activation_fn" not in extra:
        return data
    return {**data, "sentence_transformers": {"activation_fn": extra["activation_fn"]}}


def check_supported(file: Path, field: str, data: Mapping[str, Any], supported: Any) -> None:
    """Raises a UserError unless a field has a supported value; see `HuggingFaceFormat`."""
    if not isinstance(supported, SupportedValues):
        supported = SupportedValues((supported,), default=supported, reason="")
    if data.get(field, supported.default) in supported.values:
        return
    found = repr(data[field]) if field in data else f"absent, which means {supported.default!r}"
    reason = f": {supported.reason}" if supported.reason else ""
    raise UserError(
        f"{file}: {field} is {found}; only {supported.values[0]!r} is supported{reason}"
    )


def _class_suffix(
    file: Path, data: Mapping[str, Any], family_format: HuggingFaceFormat, prefix: str
) -> str | None:
    """Returns the end of the class name that denotes a task head; None without a task head."""
    known = [f"{prefix}{suffix}" for suffix in (*family_format.heads, *heads.CLASS_SUFFIXES)]
    architectures = data.get("architectures") or ()
    if not isinstance(architectures, Sequence) or isinstance(architectures, str):
        raise UserError(f"{file}: architectures is {architectures!r}; expected a list of names")
    for architecture in architectures:
        if architecture not in known:
            raise UserError(
                f"{file}: the architecture is {architecture!r}; expected one of {', '.join(known)}"
            )
    suffixes = [name.removeprefix(prefix) for name in architectures]
    return next((suffix for suffix in suffixes if suffix in heads.CLASS_SUFFIXES), None)


def to_hf_config(
    config: EncoderConfig, parts: Set[str], *, pad_token_id: int, head: TaskHead | None = None
) -> dict[str, Any]:
    """Returns the content of the `config.json` of a model.

    Args:
      parts: the encoder and the heads that the weights have; they decide on the class.
      pad_token_id: the tokenizer's; a family whose positions depend on the id has its own.

    Raises:
      UserError: transformers has no class with this task head for the family.
    """
    family_format = format_of(config)
    model_type = family_format.model_type(config)
    suffix = heads.class_suffix(head) if head else _smallest_class(family_format, parts)
    class_name = family_format.class_prefixes[model_type] + suffix
    if suffix in family_format.missing_task_classes:
        raise UserError(
            f"transformers has no class {class_name}, so it cannot be exported to a Hugging Face "
            f"folder; use the run folder with bert_jax, or fine-tune another family than "
            f"{config.family}"
        )
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "dtype": "float32",
        "pad_token_id": pad_token_id,
        **transformer_fields(config),
        **family_format.config_fields(config),
        **(heads.head_to_config(head) if head else {}),
    }


def _smallest_class(family_format: HuggingFaceFormat, parts: Set[str]) -> str:
    """Returns the class without a task head that has all of `parts` and the fewest others."""
    fitting = [
        suffix for suffix, heads in family_format.heads.items() if parts <= {"encoder", *heads}
    ]
    return min(fitting, key=lambda suffix: len(family_format.heads[suffix]))


_TYPE_NAMES: dict[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def read_field(file: Path, data: Mapping[str, Any], field: str, default: Any) -> Any:
    """Returns a value of the type of its default, an integer without one.

    The default is returned if the field is absent and the default is not None.
    """
    value = data.get(field, default)
    kind = int if default is None else type(default)
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**53 else value
    if type(value) is not kind:  # not `isinstance`: True is an instance of int
        expected = _TYPE_NAMES[kind]
        found = f"found {value!r}" if field in data else "it is absent"
        raise UserError(f"{file}: expected {expected} in the field {field!r}; {found}")
    return value
