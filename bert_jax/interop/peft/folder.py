"""Reads and writes adapter folders in the format of the peft library.

adapter_config.json         the method, the layers, the base and the task (adapter_config.py)
adapter_model.safetensors   the adapter (lora.py, methods.py) and the parameters that were trained
                            completely, such as the head; names.py finds layers by name
bert_jax_adapter.json       ours: the fingerprint of the base, and the labels of the head
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interop.peft import adapter_config as peft_config
from bert_jax.interop.peft import lora, methods
from bert_jax.interop.peft.adapter_config import AdapterConfig, PeftAdapter
from bert_jax.interop.peft.lora import ModuleNames, is_saved
from bert_jax.interop.weight_files import read_weights
from bert_jax.models.adapters.config import (
    IA3,
    HoulsbyAdapter,
    LoRA,
    PfeifferAdapter,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.adapters.modules import group_adapter
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead, head_param_name
from bert_jax.params import paths
from bert_jax.tasks.registry import head_from_config

_PREFIX, _PROMPT_PREFIX = "base_model.model.", "base_model."
"""What the names of tensors start with; in prompt and prefix tuning they have no "model."."""
_SUFFIXES = (*lora.MATRICES, *lora.EMBEDDING_MATRICES, methods.IA3_VECTOR)


# peft stores neither a fingerprint of the base nor the labels, hence `bert_jax_adapter.json`. A
# prefix encoder is not written, only its keys and values, as in peft.
def write_adapter_folder(
    folder: Path, adapter: PeftAdapter, config: EncoderConfig, version: str
) -> None:
    """Writes the files of an adapter into an existing folder.

    Args:
      config: the config of the base's encoder.
      version: the version of this package.

    Raises:
      UserError: peft has no format for the method, or not for this family.
    """
    names = ModuleNames(config, adapter.head)
    in_encoder = {p: leaf for p, leaf in adapter.params.items() if p.startswith("encoder/")}
    others = {p: leaf for p, leaf in adapter.params.items() if p not in in_encoder}
    peft_type, fields, tensors = _method_to_peft(adapter, in_encoder, names, config)
    is_prompt = peft_type in (peft_config.PROMPT_TUNING, peft_config.PREFIX_TUNING)
    prefix = _PROMPT_PREFIX if is_prompt else _PREFIX
    tensors |= names.table.to_external(others)
    named = {
        name if name == methods.PROMPT else f"{prefix}{name}": np.ascontiguousarray(tensor)
        for name, tensor in tensors.items()
    }
    data = {
        **peft_config.common_fields(adapter, config),
        **fields,
        "peft_type": peft_type,
        "modules_to_save": sorted({names.part(path) for path in others}) or None,
    }
    file = folder / peft_config.ADAPTER_CONFIG
    file.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", "utf-8")
    save_file(named, folder / peft_config.ADAPTER_WEIGHTS, metadata={"format": "pt"})
    # safetensors gives permissions to the owner only, whatever the umask.
    shutil.copymode(file, folder / peft_config.ADAPTER_WEIGHTS)
    (folder / peft_config.BASE_FILE).write_text(
        peft_config.format_base_file(adapter, version), "utf-8"
    )


def _method_to_peft(
    adapter: PeftAdapter,
    in_encoder: Mapping[str, np.ndarray],
    names: ModuleNames,
    config: EncoderConfig,
) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    modules = group_adapter(paths.unflatten(adapter.adapter))
    match adapter.method:
        case LoRA() as method:
            return peft_config.LORA, *lora.lora_to_peft(method, modules, names)
        case IA3():
            return peft_config.IA3, *methods.ia3_to_peft(modules, names)
        case PromptTuning() as method:
            kind = peft_config.PROMPT_TUNING
            return kind, *methods.virtual_tokens_to_peft(method, modules, names, config)
        case PrefixTuning() as method:
            kind = peft_config.PREFIX_TUNING
            return kind, *methods.virtual_tokens_to_peft(method, modules, names, config)
        case None:
            return peft_config.LN_TUNING, *methods.norms_to_peft(in_encoder, names)
        case HoulsbyAdapter() | PfeifferAdapter() as method:
            raise UserError(
                f"the method is {type(method).__name__}, for which peft has no format; use the run "
                "folder itself"
            )


def read_adapter_folder(
    folder: Path, config: EncoderConfig, base_head: TaskHead | None
) -> PeftAdapter:
    """Reads the adapter in a folder.

    Args:
      config: the config of the base's encoder.
      base_head: the head of the base, whose labels the adapter may have.

    Raises:
      UserError: a file is missing or damaged; the method or a setting is not supported; or the
        tensors are not those of the config and of a model of the base's family, which are named.
    """
    adapter_config = peft_config.read_adapter_config(folder)
    file = folder / peft_config.ADAPTER_WEIGHTS
    if not file.is_file():
        raise UserError(
            f"{folder} has {peft_config.ADAPTER_CONFIG}, but no {file.name}; adapters in other "
            "formats, such as adapter_model.bin, are not supported: save it again with peft"
        )
    suffix = adapter_config.class_suffix
    # A first head without labels, which is enough for the names of its tensors; the number of
    # labels follows from the shape of its bias.
    head = None if suffix is None else head_from_config(suffix, {}, adapter_config.file)
    names = ModuleNames(config, head)
    modules, saved_tensors = _split_tensors(read_weights(file), adapter_config, names, str(file))
    params = names.table.from_external(saved_tensors, str(file))
    params = {path: np.asarray(leaf, np.float32) for path, leaf in params.items()}
    _check_saved_modules(adapter_config, saved_tensors, names, str(file))
    if head is not None:
        name = head_param_name(head)
        bias = params.get(f"{name}/bias", params.get(f"{name}/out_proj/bias"))
        count = bias.size if bias is not None else 0
        head = peft_config.read_head(adapter_config, count, base_head)
    method, adapter = _method_from_peft(adapter_config, modules, params, names, config)
    return PeftAdapter(
        method=method,
        adapter={path: np.asarray(leaf, np.float32) for path, leaf in adapter.items()},
        params=params,
        head=head,
        base=adapter_config.base,
        fingerprint=adapter_config.fingerprint,
    )


def _split_tensors(
    tensors: Mapping[str, np.ndarray], config: AdapterConfig, names: ModuleNames, file: str
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns the adapter's tensors by module and own name, and parameters by tensor name.

    Raises:
      UserError: a tensor does not belong to a layer of the model, or not to the method.
    """
    modules: dict[str, dict[str, np.ndarray]] = {}
    saved_tensors: dict[str, np.ndarray] = {}
    known = set(names.tensors)
    for raw, tensor in tensors.items():
        if raw == methods.PROMPT:
            modules.setdefault("", {})[raw] = tensor
            continue
        # Prompt and prefix tuning leave "model." out of the prefix of the tensors.
        name = names.canonical(raw.removeprefix(_PROMPT_PREFIX).removeprefix("model."))
        suffix = next((each for each in _SUFFIXES if name.endswith(f".{each}")), None)
        if suffix is not None:
            module = name.removesuffix(f".{suffix}")
            if not names.paths(module):
                raise _unknown_layer(raw, file, names)
            modules.setdefault(module, {})[suffix] = tensor
            continue
        # peft wraps an adapted layer and keeps the original one as `base_layer` inside.
        for part in (f".{methods.NORM_WEIGHTS}.", ".base_layer."):
            name = name.replace(part, ".")
        if name not in known:
            raise _unknown_layer(raw, file, names)
        saved_tensors[name] = tensor
    _check_method_tensors(modules, config, file)
    return modules, saved_tensors


def _unknown_layer(name: str, file: str, names: ModuleNames) -> UserError:
    return UserError(
        f"{file}: the tensor {name!r} belongs to no layer of the base, whose layers are called "
        f"{names.modules[-1]!r} and similar; give the base that the adapter was trained on"
    )


def _check_method_tensors(
    modules: Mapping[str, Mapping[str, np.ndarray]], config: AdapterConfig, file: str
) -> None:
    allowed = {
        peft_config.LORA: (*lora.MATRICES, *lora.EMBEDDING_MATRICES),
        peft_config.IA3: (methods.IA3_VECTOR,),
        peft_config.PROMPT_TUNING: (methods.PROMPT,),
        peft_config.PREFIX_TUNING: (methods.PROMPT,),
        peft_config.LN_TUNING: (),
    }[config.peft_type]
    for module, leaves in modules.items():
        if unused := sorted(leaves.keys() - set(allowed)):
            raise UserError(
                f"{file}: the tensor {f'{module}.{unused[0]}'.lstrip('.')} is not one of the "
                f"method {config.peft_type}; use the {peft_config.ADAPTER_CONFIG} that was saved "
                "with it"
            )


def _check_saved_modules(
    config: AdapterConfig, saved_tensors: Mapping[str, np.ndarray], names: ModuleNames, file: str
) -> None:
    """Raises UserError if a module of `modules_to_save` has no tensors in the file."""
    saved = config.data["modules_to_save"]
    missing = [
        t for t in names.tensors if is_saved(t.rpartition(".")[0], saved) and t not in saved_tensors
    ]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(
            f"{file}: the tensor {missing[0]} is missing{more}, although the task trains it or "
            "modules_to_save has it; save the adapter again, with its task_type"
        )


def _method_from_peft(
    adapter_config: AdapterConfig,
    modules: Mapping[str, Mapping[str, np.ndarray]],
    params: Mapping[str, np.ndarray],
    names: ModuleNames,
    config: EncoderConfig,
) -> tuple[Any, dict[str, np.ndarray]]:
    match adapter_config.peft_type:
        case peft_config.LORA:
            return lora.lora_from_peft(adapter_config, modules, names)
        case peft_config.IA3:
            return methods.ia3_from_peft(adapter_config, modules, names, config)
        case peft_config.LN_TUNING:
            in_encoder = {p: leaf for p, leaf in params.items() if p.startswith("encoder/")}
            methods.check_norms(adapter_config, in_encoder, names)
            return None, {}
        case peft_type:
            return methods.virtual_tokens_from_peft(
                adapter_config,
                modules.get("", {}),
                names,
                config,
                prefix=peft_type == peft_config.PREFIX_TUNING,
            )
