"""Reads the sparse and the multi-vector head of a folder in the layout of BGE-M3.

sparse_linear.pt     "weight" [1, D], "bias" [1]: the weight of each token of a text
colbert_linear.pt    "weight" [E, D], "bias" [E]: the vector of each token of a text

The encoder, the tokenizer and the pooling of the dense vector are a folder of sentence-transformers
beside them. Files with the ending .safetensors are read without PyTorch. Imports no jax.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.interop.weight_files import read_weights
from bert_jax.params.name_table import check_floating_point

M3_HEADS: dict[EmbeddingKind, str] = {"sparse": "sparse_linear", "multi_vector": "colbert_linear"}
"""The names of the files."""


def m3_heads_of(folder: Path) -> tuple[EmbeddingKind, ...]:
    """Returns the heads whose files a folder has, without reading them."""
    return tuple(kind for kind in M3_HEADS if _find_file(folder, kind) is not None)


def _find_file(folder: Path, kind: EmbeddingKind) -> Path | None:
    files = [folder / f"{M3_HEADS[kind]}{suffix}" for suffix in (".safetensors", ".pt")]
    return next(filter(Path.is_file, files), None)


def read_m3_head(folder: Path, kind: EmbeddingKind, hidden_size: int) -> dict[str, Any]:
    """Returns the linear layer of a head: {"kernel": float32 [D, E], "bias": float32 [E]}.

    Args:
      kind: a key of `M3_HEADS`; E is 1 for "sparse".
      hidden_size: D of the encoder.

    Raises:
      UserError: there is no such file, it is damaged, or its tensors are of another model.
    """
    file = _find_file(folder, kind)
    if file is None:
        raise UserError(
            f"{folder} has no {M3_HEADS[kind]}.pt, the {kind.replace('_', '-')} head of BGE-M3; "
            "expected a folder in the layout of BGE-M3; otherwise ask only for heads that it has"
        )
    tensors = read_weights(file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    size = 1 if kind == "sparse" else shapes.get("bias", (0,))[0]
    if not size or shapes != {"weight": (size, hidden_size), "bias": (size,)}:
        raise UserError(
            f"{file}: has the tensors {shapes}; expected 'weight' "
            f"[{1 if kind == 'sparse' else 'E'}, {hidden_size}] and 'bias', a linear layer over "
            "the hidden states of the encoder"
        )
    for name, tensor in tensors.items():
        check_floating_point(tensor, name, str(file))
    return {
        "kernel": np.asarray(tensors["weight"].T, np.float32),
        "bias": np.asarray(tensors["bias"], np.float32),
    }
