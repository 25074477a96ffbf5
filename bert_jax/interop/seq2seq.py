"""Reads and writes folders of encoder-decoders in Hugging Face's format.

The files are as in `interop/huggingface.py`, and generation_config.json, which `generate` of
Hugging Face reads. The names of tensors are in models/<family>/huggingface.py.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.huggingface import (
    CONFIG,
    FlatParams,
    canonical_tensors,
    check_supported,
    check_weights_are_complete,
    read_field,
)
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.io.json_io import format_json, read_json_object
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.families import seq2seq_format_of, seq2seq_formats
from bert_jax.models.seq2seq.huggingface import (
    FORCED_TOKENS,
    NO_TOKEN,
    Seq2SeqFormat,
)

GENERATION_CONFIG = "generation_config.json"


class ImportedSeq2Seq(NamedTuple):
    """Holds an encoder-decoder as it was read from a folder: parameters by path, and config."""

    flat_params: FlatParams
    config: EncoderDecoderConfig


def read_seq2seq_folder(folder: Path) -> ImportedSeq2Seq:
    """Reads the model in a folder.

    Raises:
      UserError: a file is missing or damaged, or of a model that is not supported.
    """
    config = read_seq2seq_config(folder / CONFIG)
    family_format = seq2seq_format_of(config)
    file = find_weights(folder)
    # Old files of the bare model have the names of the model with a head.
    tensors = canonical_tensors(read_weights(file), family_format.canonical, file)
    _resolve_copies(tensors, family_format, file)
    # Read from the weights: transformers 5 takes `tie_word_embeddings: false` of T5 1.1 as "do not
    # scale the logits" and ties new models, so the field does not say whether the head is tied.
    head, shared = (tensors.get(name) for name in (family_format.lm_head, family_format.shared))
    is_tied = head is None or (shared is not None and np.array_equal(head, shared))
    if is_tied:
        tensors.pop(family_format.lm_head, None)
    config = dataclasses.replace(config, tie_word_embeddings=is_tied)
    flat = family_format.names(config).from_external(tensors, str(file))
    params = {path: np.asarray(tensor, np.float32) for path, tensor in flat.items()}
    return ImportedSeq2Seq(params, config)


def read_seq2seq_config(file: Path) -> EncoderDecoderConfig:
    """Reads a config.json, as that of a model with tied embeddings: the weights decide on that.

    Raises:
      UserError: the file is absent, damaged, or of a model that is not supported; names the field.
    """
    data = read_json_object(file)
    formats, model_type = seq2seq_formats(), data.get("model_type")
    if not isinstance(model_type, str) or model_type not in formats:
        reasons = [f.refused_model_types.get(str(model_type)) for f in formats.values()]
        reason = next((f" ({reason})" for reason in reasons if reason), "")
        raise UserError(
            f"{file}: model_type is {model_type!r}{reason}; supported encoder-decoders are "
            f"{', '.join(formats)}"
        )
    family_format = formats[model_type]
    for architecture in data.get("architectures") or ():
        if architecture not in family_format.architectures:
            raise UserError(
                f"{file}: the architecture is {architecture!r}; expected one of "
                f"{', '.join(family_format.architectures)}"
            )
    check_weights_are_complete(file, data)
    for field, supported in family_format.fixed_fields.items():
        check_supported(file, field, data, supported)
    # Only an explicit null: an absent field has the default of the family.
    if data.get("eos_token_id", 0) is None:
        raise UserError(
            f"{file}: eos_token_id is null; expected the id of the end token, without which "
            "generation would never end"
        )
    data |= _generation_ids(file.parent / GENERATION_CONFIG)
    # Hugging Face writes null for a field that has no value, such as num_decoder_layers.
    present = {name: value for name, value in data.items() if value is not None}
    present |= {name: NO_TOKEN for name in FORCED_TOKENS if data.get(name, 0) is None}

    def read(name: str, default: Any) -> Any:
        return read_field(file, present, name, default)

    try:
        return family_format.read_config(read)
    except ConfigError as error:
        raise UserError(f"{file}: {error}") from None


def _generation_ids(file: Path) -> dict[str, Any]:
    """Returns the token ids of generation_config.json, which Hugging Face reads before config.json.

    transformers 5 writes them only there.
    """
    if not file.is_file():
        return {}
    data = read_json_object(file)
    names = (*FORCED_TOKENS, "decoder_start_token_id")
    return {name: data[name] for name in names if isinstance(data.get(name), int)}


def write_seq2seq_folder(folder: Path, flat: FlatParams, config: EncoderDecoderConfig) -> None:
    """Writes config.json, generation_config.json and the weights into an existing folder."""
    family_format = seq2seq_format_of(config)
    data = {
        "architectures": [family_format.architectures[0]],
        "model_type": family_format.model_type,
        "dtype": "float32",
        **family_format.config_fields(config),
    }
    (folder / CONFIG).write_text(format_json(data), "utf-8")
    generation = {
        name: getattr(config, name)
        for name in (
            "pad_token_id",
            "eos_token_id",
            "decoder_start_token_id",
            "forced_bos_token_id",
            "forced_eos_token_id",
        )
        if getattr(config, name) is not None
    }
    (folder / GENERATION_CONFIG).write_text(format_json(generation), "utf-8")
    tensors = family_format.names(config).to_external(flat)
    for name in family_format.zeros:
        tensors[name] = np.zeros((1, config.vocab_size), np.float32)
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def _resolve_copies(
    tensors: dict[str, np.ndarray], family_format: Seq2SeqFormat, file: Path
) -> None:
    """Removes copies of the token embeddings and tensors of zeros, after checking that they are."""
    shared = family_format.shared
    for copy in family_format.copies:
        if copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if not np.array_equal(tensor, tensors.setdefault(shared, tensor)):
            raise UserError(
                f"{file}: {copy} differs from {shared}; expected one table of token embeddings "
                "for encoder and decoder"
            )
    if shared not in tensors and family_format.lm_head in tensors:
        # A tied model is sometimes saved with its head only.
        tensors[shared] = tensors[family_format.lm_head]
    for name in family_format.zeros:
        if name in tensors and np.any(tensors.pop(name)):
            raise UserError(
                f"{file}: {name} has values other than 0, but a bias of the logits is not "
                "supported (the published models have zeros), so this model cannot be read"
            )
