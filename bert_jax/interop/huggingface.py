"""Folders in Hugging Face's format: weights and configuration, both ways.

config.json          the architecture (huggingface_config.py), the task (huggingface_heads.py)
model.safetensors    the tensors, by Hugging Face's names (huggingface_names.py)
tokenizer files      see bert_jax.text
"""

import json
from collections.abc import Set
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interop import huggingface_heads as heads
from bert_jax.interop.huggingface_config import (
    PRETRAINING_ARCHITECTURES,
    read_config,
    read_head,
    to_hf_config,
)
from bert_jax.interop.imported_model import ImportedModel, find_tokenizer
from bert_jax.interop.torch_file import read_torch_file
from bert_jax.models.bert import huggingface as names
from bert_jax.models.config import BertConfig, TaskHead

CONFIG, WEIGHTS, TORCH_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"

FlatParams = dict[str, np.ndarray]
"""Parameters by path, {"encoder/layers/0/attention/query/kernel": float32 array}."""


def read_folder(folder: Path) -> ImportedModel:
    """The model in a folder.

    Raises:
      UserError: a file is missing or damaged, or describes another model.
    """
    config, head = read_config(folder / CONFIG), read_head(folder / CONFIG)
    return ImportedModel(_read_weights(folder, config), config, find_tokenizer(folder), head)


def _read_weights(folder: Path, config: BertConfig) -> FlatParams:
    """The parameters in a folder, by our paths, float32.

    Raises:
      UserError: no weights, damaged ones, or tensors that BERT does not have (named).
    """
    file = next((folder / n for n in (WEIGHTS, TORCH_WEIGHTS) if (folder / n).is_file()), None)
    if file is None:
        file_names = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise UserError(
            f"{folder}: expected {WEIGHTS} or {TORCH_WEIGHTS} in it, found {file_names}"
        )
    raw = _read_safetensors(file) if file.name == WEIGHTS else read_torch_file(file)
    tensors = {names.canonical(name): tensor for name, tensor in raw.items()}
    tied = config.tie_word_embeddings
    _resolve_tied(tensors, tied, file)
    flat = (names.TIED if tied else names.UNTIED).from_external(tensors, str(file))
    return {path: np.asarray(tensor, np.float32) for path, tensor in flat.items()}


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """All tensors of a file by name; UserError when it is truncated or of another format."""
    try:
        with safe_open(file, framework="numpy") as reader:
            return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{file}: damaged or not in the safetensors format ({error}); fetch or write it again"
        ) from None


def write_weights(folder: Path, flat: FlatParams, config: BertConfig) -> None:
    """Writes parameters by path as `model.safetensors` in a folder that nobody reads yet."""
    tied = config.tie_word_embeddings
    tensors = (names.TIED if tied else names.UNTIED).to_external(flat)
    if not tied and names.LM_BIAS in tensors:  # an untied decoder reads its bias from here
        tensors[names.DECODER_BIAS] = tensors[names.LM_BIAS]
    # The writer takes the bytes of an array as they lie, so a transposed view must be laid out.
    laid_out = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(laid_out, folder / WEIGHTS, metadata={"format": "pt"})


def write_config(
    folder: Path, config: BertConfig, parts: Set[str], pad_id: int, head: TaskHead | None = None
) -> None:
    """Writes `config.json` for a model that has `parts`, in a folder that nobody reads yet."""
    architecture = heads.architecture_of_head(head) if head else smallest_hf_class(parts)
    data = to_hf_config(config, architecture=architecture, pad_token_id=pad_id)
    data |= heads.head_to_config(head) if head else {}
    (folder / CONFIG).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", "utf-8")


def smallest_hf_class(parts: Set[str]) -> str:
    """The smallest of their architectures, without a task's head, that has all of `parts`."""
    fitting = [
        name for name, heads in PRETRAINING_ARCHITECTURES.items() if parts <= {"encoder", *heads}
    ]
    return min(fitting, key=lambda name: len(PRETRAINING_ARCHITECTURES[name]))


def _resolve_tied(tensors: dict[str, np.ndarray], tied: bool, file: Path) -> None:
    """Files may hold a tied tensor twice; the copies must agree before one is dropped."""
    if not tied:
        if names.DECODER_BIAS in tensors:
            tensors[names.LM_BIAS] = tensors[names.DECODER_BIAS]
        return
    copies = {names.DECODER: names.DECODER_TABLE, names.DECODER_BIAS: names.LM_BIAS}
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
