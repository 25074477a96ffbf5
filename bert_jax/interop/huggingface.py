"""Reads and writes model folders in Hugging Face's format.

config.json          the architecture (huggingface_config.py), the task head (huggingface_heads.py)
model.safetensors    the tensors, also as shards or as pytorch_model.bin (weight_files.py); their
                     names are in models/<family>/huggingface.py
tokenizer files      see bert_jax.text
"""

import json
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interop.huggingface_config import read_config, to_hf_config
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import HuggingFaceFormat, format_of
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

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


def read_folder(folder: Path) -> ImportedModel:
    """Reads the model in a folder.

    Raises:
      UserError: a file is missing or damaged, or of a model that is not supported.
    """
    config, head = read_config(folder / CONFIG)
    return ImportedModel(_read_weights(folder, config, head), config, find_tokenizer(folder), head)


def _read_weights(folder: Path, config: EncoderConfig, head: TaskHead | None) -> FlatParams:
    """Returns the parameters in a folder by path, float32.

    Raises:
      UserError: no weights, damaged ones, or tensors that the family does not have (named).
    """
    file = find_weights(folder)
    family_format = format_of(config)
    tensors = canonical_tensors(read_weights(file), family_format.canonical, file)
    if config.tie_word_embeddings:
        _check_tied_copies(tensors, family_format.tied_copies, file)
    elif family_format.decoder_bias in tensors:
        tensors[family_format.lm_bias] = tensors[family_format.decoder_bias]
    flat = family_format.names(config, head).from_external(tensors, str(file))
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
    if not config.tie_word_embeddings and family_format.lm_bias in tensors:
        # Hugging Face reads the bias of an untied decoder from this name.
        tensors[family_format.decoder_bias] = tensors[family_format.lm_bias]
    # The writer takes the bytes of an array as they lie in memory, so a transposed view is copied.
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
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
    (folder / CONFIG).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", "utf-8")
