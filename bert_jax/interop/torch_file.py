"""Reads PyTorch weight files (`pytorch_model.bin`) without running code that is in them."""

from pathlib import Path

import numpy as np

from bert_jax.errors import UserError


def read_torch_file(file: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a state dict by name.

    A `.bin` file is a pickle, which may contain any code; `weights_only` rebuilds only tensors. No
    other module of this package imports torch.

    Raises:
      UserError: torch is absent, the file is damaged, or it contains anything but named tensors.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{file}: reading a .bin file needs PyTorch, which is not installed; install it, or "
            "convert the file to model.safetensors (`save_pretrained` of transformers does so)"
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
