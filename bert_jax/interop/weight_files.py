"""Reads weight files: safetensors, and `pytorch_model.bin` without running code in it.

model.safetensors               all tensors
model.safetensors.index.json    the shard of each tensor, as {"weight_map": {tensor: file name}};
                                `save_pretrained` splits models above its `max_shard_size`
pytorch_model.bin               all tensors as a pickle, in old folders
pytorch_model.bin.index.json    the same index for pickles

The first of these files that exists is read, in this order, which is as in `from_pretrained`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object


def read_torch_file(file: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a state dict by name.

    A `.bin` or `.pt` file is a pickle, which may contain any code; `weights_only` rebuilds only
    tensors. No other module of this package imports torch.

    Raises:
      UserError: torch is absent, the file is damaged, or it contains anything but named tensors.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{file}: reading a {file.suffix} file needs PyTorch, which is not installed; install "
            "it, or convert the file to safetensors (`save_pretrained` of transformers does so)"
        ) from None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zipfile and torch raise a dozen types
        reason = str(error).split("\n")[0].split(". ")[0]
        raise UserError(
            f"{file}: not read, because it is damaged or contains objects other than tensors, "
            f"which could run code ({type(error).__name__}: {reason}); use model.safetensors"
        ) from None
    if not isinstance(state, dict):
        raise UserError(f"{file}: expected named tensors, found a {type(state).__name__}")
    tensors: dict[str, np.ndarray] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise UserError(
                f"{file}: {name!r} is a {type(value).__name__}; expected a state dict, which has "
                "only tensors with names"
            )
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            kind = "quantized" if value.is_quantized else "empty" if value.is_meta else "sparse"
            raise UserError(
                f"{file}: {name} is a {kind} tensor; save the model with dense float32 tensors, "
                "as `save_pretrained` of transformers does"
            )
        # `detach`: a Parameter requires a gradient, which NumPy arrays do not have.
        array = value.detach()
        tensors[name] = (array.float() if array.is_floating_point() else array).numpy()
    return tensors


WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"
_INDEX_SUFFIX = ".index.json"
# NumPy has no dtypes of 8 bits and fewer for floating-point numbers.
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")

Tensors = dict[str, np.ndarray]


def find_weights(folder: Path) -> Path:
    """Returns the file with the weights of a folder, or the index file of its shards.

    Raises:
      UserError: the folder has none of the four files.
    """
    for name in (WEIGHTS, TORCH_WEIGHTS):
        for file in (folder / name, folder / f"{name}{_INDEX_SUFFIX}"):
            if file.is_file():
                return file
    file_names = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise UserError(
        f"{folder}: expected {WEIGHTS} or {TORCH_WEIGHTS} in it, or {WEIGHTS}{_INDEX_SUFFIX} and "
        f"its shards; found {file_names}"
    )


def read_weights(file: Path) -> Tensors:
    """Reads all tensors of a file, or of the shards of an index, by name.

    Raises:
      UserError: a file is damaged; or, with an index, a shard is absent or outside of the folder,
        or the shards do not contain exactly the tensors of the index, each once.
    """
    is_safetensors = file.name.removesuffix(_INDEX_SUFFIX).endswith(".safetensors")
    reader = _read_safetensors if is_safetensors else read_torch_file
    if not file.name.endswith(_INDEX_SUFFIX):
        return reader(file)
    return _read_shards(file, reader)


def _read_shards(index: Path, reader: Callable[[Path], Tensors]) -> Tensors:
    weight_map = _read_weight_map(index)
    shards = sorted(set(weight_map.values()))
    # Unlike `Path.is_file`, this is False for a name that is too long for the file system.
    missing = [name for name in shards if not os.path.isfile(index.parent / name)]
    if missing:
        raise UserError(
            f"{index.parent}: the shard {missing[0]} is missing; {index.name} lists {len(shards)} "
            f"shards, of which {len(missing)} are absent; download the absent files into the folder"
        )
    tensors: Tensors = {}
    shard_of: dict[str, str] = {}
    for shard in shards:
        for name, tensor in reader(index.parent / shard).items():
            if name in tensors:
                raise UserError(
                    f"{index.parent}: the tensor {name!r} is in two shards, {shard_of[name]} and "
                    f"{shard}; expected each tensor in one; download the folder again"
                )
            tensors[name], shard_of[name] = tensor, shard
    for name in sorted(weight_map.keys() ^ tensors.keys()):
        source, other = (
            (index.name, weight_map[name]) if name in weight_map else (shard_of[name], index.name)
        )
        raise UserError(
            f"{index.parent}: the tensor {name!r} is in {source}, but not in {other}; the files "
            "are of different models or versions; download the folder again"
        )
    return tensors


def _read_weight_map(index: Path) -> Mapping[str, str]:
    """Returns the name of the shard of each tensor.

    Raises:
      UserError: the index is damaged, or names something other than a file in its own folder.
    """
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(
            f'{index}: expected "weight_map" with the shard of each tensor, found {weight_map!r}'
        )
    for tensor, shard in weight_map.items():
        # An index is a downloaded file; it must not make us read files elsewhere on the machine.
        if not _is_file_name(shard):
            raise UserError(
                f"{index}: the shard of {tensor!r} is {shard!r}; expected the name of a file in "
                f"{index.parent}"
            )
    return weight_map


def _is_file_name(value: object) -> bool:
    if not isinstance(value, str) or value in ("", "..") or "\0" in value:
        return False
    return Path(value).name == value


def _read_safetensors(file: Path) -> Tensors:
    """Returns all tensors of a file by name; UserError if it is truncated or of another format."""
    try:
        with safe_open(file, framework="numpy") as reader:
            names = list(reader.keys())
            for name in names:
                if (dtype := reader.get_slice(name).get_dtype()) not in _DTYPES:
                    raise UserError(
                        f"{file}: {name} has dtype {dtype}; expected one of {', '.join(_DTYPES)}"
                    )
            return {name: reader.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{file}: damaged or not in the safetensors format ({error}); fetch or write it again"
        ) from None
