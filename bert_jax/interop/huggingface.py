"""Reads and writes model folders in Hugging Face's format.

config.json          the architecture of any family, and the task head (see bert_jax/tasks)
model.safetensors    the tensors, also as shards or as pytorch_model.bin (weight_files.py); their
                     names are in models/<family>/huggingface.py
tokenizer files      see bert_jax.text
"""

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import ConfigError, UserError, did_you_mean
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.io.json_io import read_json_object
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import format_of, formats, seq2seq_formats
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import (
    ACTIVATIONS,
    HuggingFaceFormat,
    SupportedValues,
    transformer_fields,
)
from bert_jax.models.layers.config import Activation
from bert_jax.tasks.registry import HUGGING_FACE_CLASSES, head_from_config, kind_of_head
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

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
        # A family may know why a related model type is refused, such as another version of its
        # model.
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
    check_weights_are_complete(file, data)
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
            activations[act],
            lambda name, default: read_field(file, data, name, default),
        )
    except ConfigError as error:
        raise UserError(f"{file}: {error}") from None
    if suffix is None:
        return config, None
    return config, head_from_config(suffix, _with_cross_encoder_fields(file, data), str(file))


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


_WEIGHTS_AS_CONFIGURED = {
    "pruned_heads": SupportedValues(
        ({}, None), default={}, reason="the weights of the named heads are absent from the file"
    ),
    "quantization_config": SupportedValues(
        (None,), default=None, reason="save the model without quantization"
    ),
}


def check_weights_are_complete(file: Path, data: Mapping[str, Any]) -> None:
    """Raises a UserError if a config.json is of a model with quantized or pruned weights."""
    for field, supported in _WEIGHTS_AS_CONFIGURED.items():
        check_supported(file, field, data, supported)


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
    known = [f"{prefix}{suffix}" for suffix in (*family_format.heads, *HUGGING_FACE_CLASSES)]
    architectures = data.get("architectures") or ()
    if not isinstance(architectures, Sequence) or isinstance(architectures, str):
        raise UserError(f"{file}: architectures is {architectures!r}; expected a list of names")
    for architecture in architectures:
        if architecture not in known:
            raise UserError(
                f"{file}: the architecture is {architecture!r}; expected one of {', '.join(known)}"
            )
    suffixes = [name.removeprefix(prefix) for name in architectures]
    return next((suffix for suffix in suffixes if suffix in HUGGING_FACE_CLASSES), None)


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
    kind = kind_of_head(head) if head else None
    suffix = kind.hugging_face_class if kind else _smallest_class(family_format, parts)
    class_name = family_format.class_prefixes[model_type] + suffix
    # A folder of a class that transformers does not have would be written without an error, and
    # fail only when somebody loads it.
    if suffix in family_format.missing_task_classes:
        raise UserError(
            f"transformers has no class {class_name}, so it cannot be exported to a Hugging Face "
            f"folder; use the run folder with bert_jax, or fine-tune another family than "
            f"{config.family}"
        )
    return {
        "architectures": [class_name],
        "model_type": model_type,
        # transformers 5 loads a model in the dtype of this field, not in float32.
        "dtype": "float32",
        "pad_token_id": pad_token_id,
        **transformer_fields(config, family_format),
        **family_format.config_fields(config),
        **(kind.head_to_hugging_face(head) if kind else {}),
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
        # JSON writes 1.0 as 1 in many programs. Larger integers are not exact as a float, and are
        # refused.
        value = float(value) if abs(value) < 2**53 else value
    if type(value) is not kind:  # not `isinstance`: True is an instance of int
        expected = _TYPE_NAMES[kind]
        found = f"found {value!r}" if field in data else "it is absent"
        raise UserError(f"{file}: expected {expected} in the field {field!r}; {found}")
    return value


CONFIG = "config.json"
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")

FlatParams = dict[str, np.ndarray]
"""Parameters by path, {"encoder/layers/0/attention/query/kernel": float32 array}."""


class ImportedModel(NamedTuple):
    """Holds a model as it was read from a folder of another format.

    Attributes:
      flat_params: parameters by path, float32; only the parts that the folder has.
      config: the config of the encoder.
      tokenizer: None if the folder has no tokenizer files.
      head: the head of the task for which the model was fine-tuned; None for a pretrained model.
    """

    flat_params: FlatParams
    config: EncoderConfig
    tokenizer: Tokenizer | None
    head: TaskHead | None = None


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """Loads the tokenizer in a folder; None without tokenizer files, UserError if damaged."""
    if any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        return load_tokenizer(folder)
    return None


def read_folder(folder: Path, ignore: Sequence[str] = ()) -> ImportedModel:
    """Reads the model in a folder.

    Args:
      ignore: patterns of names of tensors that are not read, such as "cls.seq_relationship.*".

    Raises:
      UserError: a file is missing or damaged, or of a model that is not supported; or a pattern of
        `ignore` matches no tensor.
    """
    config, head = read_config(folder / CONFIG)
    flat_params = _read_weights(folder, config, head, ignore)
    return ImportedModel(flat_params, config, find_tokenizer(folder), head)


def _read_weights(
    folder: Path, config: EncoderConfig, head: TaskHead | None, ignore: Sequence[str]
) -> FlatParams:
    """Returns the parameters in a folder by path, float32.

    Raises:
      UserError: no weights, damaged ones, tensors that the family does not have (named), or a
        pattern of `ignore` that matches none.
    """
    file = find_weights(folder)
    family_format = format_of(config)
    tensors = canonical_tensors(read_weights(file), family_format.canonical, file)
    tensors = _split_joined(tensors, family_format.joined, file)
    for pattern in ignore:
        names = fnmatch.filter(tensors, pattern)
        if not names:
            hint = did_you_mean(pattern, tensors)
            raise UserError(
                f"{file}: no tensor matches the pattern to ignore, {pattern!r}; expected a name or "
                f"a pattern such as 'cls.*'{hint and f'; {hint}'}"
            )
        for name in names:
            del tensors[name]
    masked_lm = family_format.masked_lm
    if masked_lm is not None and config.tie_word_embeddings:
        _check_tied_copies(tensors, masked_lm.tied_copies, file)
    # Hugging Face has the bias of an untied decoder under this name, and the table of names has one
    # entry for both.
    elif masked_lm is not None and masked_lm.decoder_bias in tensors:
        tensors[masked_lm.bias] = tensors[masked_lm.decoder_bias]
    advice = ", or leave it out: `bert-jax convert --ignore NAME`, load_model(..., ignore=[NAME])"
    flat = family_format.names(config, head).from_external(tensors, str(file), advice)
    return {path: np.asarray(tensor, np.float32) for path, tensor in flat.items()}


def canonical_tensors(
    raw: Mapping[str, np.ndarray], canonical_name: Callable[[str], str], file: Path
) -> dict[str, np.ndarray]:
    """Returns tensors by today's names in the family's format, without prefixes of wrappers.

    Args:
      canonical_name: returns today's name of a tensor.

    Raises:
      UserError: two tensors have the same name without their prefixes.
    """
    original_names: dict[str, str] = {}
    for name in raw:
        canonical = canonical_name(_without_wrappers(name))
        if canonical in original_names:
            raise UserError(
                f"{file}: {original_names[canonical]!r} and {name!r} are both the tensor "
                f"{canonical!r}; save the weights of one model only"
            )
        original_names[canonical] = name
    return {canonical: raw[name] for canonical, name in original_names.items()}


def _split_joined(
    tensors: Mapping[str, np.ndarray], joined: Mapping[str, tuple[str, ...]], file: Path
) -> dict[str, np.ndarray]:
    """Splits tensors of old files that contain several of today's; see `HuggingFaceFormat`."""
    found: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        end = next((end for end in joined if name.endswith(end)), None)
        if end is None:
            found[name] = tensor
            continue
        ends = joined[end]
        if not tensor.ndim or len(tensor) % len(ends):
            raise UserError(
                f"{file}: the tensor {name!r} has shape {list(tensor.shape)}; expected a first "
                f"axis that can be split into {len(ends)} equal parts"
            )
        for new_end, part in zip(ends, np.split(tensor, len(ends)), strict=True):
            found[name.removesuffix(end) + new_end] = part
    return found


def _without_wrappers(name: str) -> str:
    """Removes what PyTorch's wrappers add to the names of tensors.

    `DataParallel` and `DistributedDataParallel` add the prefix "module."; `torch.compile` adds
    "_orig_mod." wherever the compiled module is in the model.
    """
    segments = [segment for segment in name.split(".") if segment != "_orig_mod"]
    while segments[:1] == ["module"]:
        segments.pop(0)
    return ".".join(segments)


def _check_tied_copies(
    tensors: dict[str, np.ndarray], copies: Mapping[str, str], file: Path
) -> None:
    """Checks that a tensor and its copy agree, and restores a tensor of which only a copy exists.

    The name table ignores the copies.
    """
    for copy, original in copies.items():
        if copy not in tensors:
            continue
        if original not in tensors:
            tensors[original] = tensors[copy]
        elif not np.array_equal(tensors[copy], tensors[original]):
            raise UserError(
                f"{file}: {copy} differs from {original}, though config.json ties them; "
                'set "tie_word_embeddings": false there if the model was trained untied'
            )


def write_weights(
    folder: Path, flat: FlatParams, config: EncoderConfig, head: TaskHead | None = None
) -> None:
    """Writes parameters by path, of a model with that task head, as `model.safetensors`.

    Always one file: `save_pretrained` begins to split at 50 GB, and encoders are smaller.
    """
    family_format: HuggingFaceFormat = format_of(config)
    tensors = family_format.names(config, head).to_external(flat)
    masked_lm = family_format.masked_lm
    if masked_lm is not None and not config.tie_word_embeddings and masked_lm.bias in tensors:
        # Hugging Face reads the bias of an untied decoder from this name.
        tensors[masked_lm.decoder_bias] = tensors[masked_lm.bias]
    # The writer takes the bytes of an array as they lie in memory, so a transposed view is copied.
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    # Earlier versions of transformers refuse a file whose metadata do not name the framework.
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def write_config(
    folder: Path,
    config: EncoderConfig,
    parts: Set[str],
    pad_token_id: int,
    head: TaskHead | None = None,
) -> None:
    """Writes `config.json` for a model whose weights have these parts, such as "encoder"."""
    data = to_hf_config(config, parts, pad_token_id=pad_token_id, head=head)
    # The same bytes as `save_pretrained` would write: two spaces, sorted keys, a newline at the
    # end.
    (folder / CONFIG).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", "utf-8")
