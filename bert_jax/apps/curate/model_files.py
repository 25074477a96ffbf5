"""Stores small models of curation as safetensors files, with a description in the header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path


def save_arrays(
    path: Path, kind: str, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]
) -> None:
    """Writes arrays as one safetensors file, atomically.

    Args:
      kind: what the file is, such as "quality classifier".
      info: JSON values for the header.
    """
    from safetensors.numpy import save_file

    # One entry, because safetensors writes several in random order: the bytes would differ.
    metadata = {"bert_jax": json.dumps({"kind": kind, "info": info}, sort_keys=True)}
    with atomic_path(path) as tmp_path:
        # safetensors writes the memory of an array as it is, also of a strided view.
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(contiguous, tmp_path, metadata)


def load_arrays(
    path: str | Path, kind: str, command: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays and the info of a file.

    Args:
      kind: what the file must be.
      command: the verb that writes such files, for messages.

    Raises:
      UserError: there is no such file, or it is something else.
    """
    from safetensors import SafetensorError, safe_open

    advice = f"make one with `bert-jax {command}`"
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("bert_jax", "{}"))
            if header.get("kind") != kind:
                raise UserError(f"{path}: not a {kind}; {advice}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as a {kind} ({error}); {advice}") from None
    return arrays, header["info"]
