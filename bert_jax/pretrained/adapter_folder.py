"""Combines an adapter folder in the format of peft with its base."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer
from bert_jax.interop.peft.adapter_config import PeftAdapter, read_adapter_config
from bert_jax.interop.peft.folder import read_adapter_folder
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.adapters.network import can_be_merged, merge_adapter
from bert_jax.models.heads.config import task_parts
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.pretrained.base_model import Base, TrainedAdapter
from bert_jax.pretrained.folder import resolve_model_folder

logger = logging.getLogger(__name__)


class AdaptedModel(NamedTuple):
    """Holds a base with an adapter; the fields are as in `LoadedModel`.

    Attributes:
      imported: the parameters, with the adapter merged into them if that is possible.
      adapter: the adapter if it cannot be merged, else None.
      adapter_params: its parameters; {} without adapter.
    """

    imported: ImportedModel
    adapter: Adapter | None
    adapter_params: dict[str, Any]


def read_with_base(
    folder: Path, base_path: str | Path | None, load_encoder: Callable[[Path], Any]
) -> AdaptedModel:
    """Reads an adapter folder and its base.

    Args:
      base_path: the base; None for that in the adapter's config.
      load_encoder: returns the model at a path, a `LoadedModel`.

    Raises:
      UserError: there is no base, or the adapter was trained on another one; or as
        `read_adapter_folder`.
    """
    base = load_encoder(_find_base(folder, base_path))
    if base.adapter is not None:
        raise UserError(
            f"{base.path} has an adapter that cannot be merged, {type(base.adapter).__name__}, so "
            f"it cannot be the base of {folder}; give a model without adapter with --base"
        )
    found = read_for_base(folder, base)
    flat = {**paths.flatten({"encoder": base.params["encoder"]}), **found.params}
    parts = ("pooler",) if found.head is None else task_parts(found.head, base.config)
    for part in parts:
        if any(path.startswith(f"{part}/") for path in found.params):
            continue
        if part in base.params:
            flat |= paths.flatten({part: base.params[part]})
        elif found.head is not None:
            raise UserError(
                f"{folder}: the head needs {part}, which neither the adapter nor the base "
                f"{base.path} has; peft saves it only if modules_to_save has it when the adapter "
                "is trained"
            )
    adapter_params = paths.unflatten(found.adapter)
    method = found.method
    if method is not None and can_be_merged(method):
        merged = merge_adapter(method, {**paths.unflatten(flat), ADAPTER: adapter_params})
        flat = {path: np.asarray(leaf) for path, leaf in paths.flatten(merged).items()}
        method, adapter_params = None, {}
    # peft writes no tokenizer files; a folder has some only if its user put them there.
    tokenizer = find_tokenizer(folder) or base.tokenizer
    imported = ImportedModel(flat, base.config, tokenizer, found.head)
    return AdaptedModel(imported=imported, adapter=method, adapter_params=adapter_params)


def _find_base(folder: Path, base_path: str | Path | None) -> Path:
    name = base_path or read_adapter_config(folder).base
    if not name:
        raise UserError(
            f"{folder}: base_model_name_or_path is null in its config; give the model that the "
            "adapter was trained on with --base (in Python: load_model(..., base=...))"
        )
    try:
        return resolve_model_folder(name)
    except UserError as error:
        source = "--base" if base_path else "the base of the adapter"
        raise UserError(
            f"{folder}: {source} cannot be read: {error}; give a copy of that model with --base "
            "(in Python: load_model(..., base=...))"
        ) from None


def read_for_base(folder: Path, base: Any) -> PeftAdapter:
    """Reads an adapter folder, and checks that it was trained on `base`, a `LoadedModel`.

    Raises:
      UserError: it was trained on another base; or as `read_adapter_folder`.
    """
    found = read_adapter_folder(folder, base.config, base.head)
    fingerprint = paths.fingerprint(base.params["encoder"])
    if found.fingerprint is None:
        logger.warning(
            "%s has no fingerprint of its base, so it is not known whether it was trained on %s",
            folder,
            base.path,
        )
    elif found.fingerprint != fingerprint:
        raise UserError(
            f"{folder} was trained on the base {found.base} with the fingerprint "
            f"{found.fingerprint[:12]}, but {base.path} has {fingerprint[:12]}; give the model "
            "that it was trained on with --base"
        )
    return found


def read_peft_adapter(folder: str | Path, base: Any) -> TrainedAdapter:
    """Reads an adapter folder for use in an `AdapterSet` over `base`, a `LoadedModel`.

    Raises:
      UserError: the folder has no adapter with a head; or as `read_for_base`.
    """
    folder = resolve_model_folder(folder)
    found = read_for_base(folder, base)
    if found.method is None or found.head is None:
        raise UserError(
            f"{folder} has no adapter with the head of a task; expected LoRA, IA3, prompt tuning "
            "or prefix tuning, and a task type of peft"
        )
    head_params = paths.unflatten(found.params)
    for part in task_parts(found.head, base.config):
        if part not in head_params and part in base.params:
            head_params[part] = base.params[part]
    return TrainedAdapter(
        method=found.method,
        params=paths.unflatten(found.adapter),
        head=found.head,
        head_params=head_params,
        base=Base(path=found.base, fingerprint=paths.fingerprint(base.params["encoder"])),
        path=str(folder),
    )
