"""Reads and writes peft's adapter_config.json, and our file about the base. Imports no jax.

An adapter folder has `adapter_config.json` and `adapter_model.safetensors` in the format of peft
0.21.2, and if bert_jax wrote it, `bert_jax_adapter.json` with what peft does not store: the
fingerprint of the base, and the labels of the head.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.errors import UserError
from bert_jax.io.hub import parse_model
from bert_jax.io.json_io import format_json, read_json_object
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import format_of
from bert_jax.models.heads.config import TaskHead, class_labels
from bert_jax.tasks.hugging_face import label_maps
from bert_jax.tasks.registry import HUGGING_FACE_CLASSES, KINDS, head_from_config, kind_of_head

logger = logging.getLogger(__name__)

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_FILE = "bert_jax_adapter.json"
PEFT_VERSION = "0.21.2"

LORA, IA3, LN_TUNING = "LORA", "IA3", "LN_TUNING"
PROMPT_TUNING, PREFIX_TUNING = "PROMPT_TUNING", "PREFIX_TUNING"
PEFT_TYPES = (LORA, IA3, LN_TUNING, PROMPT_TUNING, PREFIX_TUNING)

_FEATURE_EXTRACTION = "FEATURE_EXTRACTION"
_TASK_TYPES = {
    kind.hugging_face_class: kind.peft_task_type for kind in KINDS if kind.peft_task_type
}
_SAVED_BY_DEFAULT = {kind.peft_task_type: kind.peft_saved_modules for kind in KINDS}
"""The modules that peft adds to `modules_to_save`, by type of task."""


@dataclass(frozen=True, kw_only=True)
class PeftAdapter:
    """Holds what an adapter folder has.

    Attributes:
      method: how the adapter changes the base; None if it only replaces parameters of the base
        (LayerNorm tuning).
      adapter: the parameters that a network has under "adapter", by path without "adapter/".
      params: other trained parameters by path: the head, what it needs, and LayerNorms.
      head: the head of the task; None for an encoder without head.
      base: the model that it was trained on, a path or the name of a model.
      fingerprint: of the base's encoder; None if the folder does not have it.
    """

    method: Adapter | None
    adapter: dict[str, np.ndarray]
    params: dict[str, np.ndarray]
    head: TaskHead | None
    base: str
    fingerprint: str | None


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Holds the files of an adapter folder that describe it.

    Attributes:
      data: the content of adapter_config.json; `modules_to_save` has peft's additions.
      file: its path, for messages.
      peft_type: the method, out of `PEFT_TYPES`.
      base: the model that it was trained on, a path or the name of a model.
      class_suffix: the end of the name of Hugging Face's class of the task, None without head.
      fingerprint: of the base's encoder, None if the folder does not have it.
      head: the head in our file, None without the file.
    """

    data: dict[str, Any]
    file: str
    peft_type: str
    base: str
    class_suffix: str | None
    fingerprint: str | None
    head: TaskHead | None


def is_adapter_folder(folder: Path) -> bool:
    """Returns whether a folder has an adapter in the format of peft."""
    return (folder / ADAPTER_CONFIG).is_file()


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Reads the files of an adapter folder that describe it.

    Raises:
      UserError: a file is damaged, or the method or the task is not supported.
    """
    file = folder / ADAPTER_CONFIG
    data = read_json_object(file)
    peft_type, task_type = data.get("peft_type"), data.get("task_type")
    if peft_type not in PEFT_TYPES:
        raise UserError(
            f"{file}: peft_type is {peft_type!r}; supported are {', '.join(PEFT_TYPES)}"
        )
    base = data.get("base_model_name_or_path")
    if base is not None and not isinstance(base, str):
        raise UserError(
            f"{file}: base_model_name_or_path is {base!r}; expected the path or name of a model"
        )
    saved = data.get("modules_to_save") or []
    if not isinstance(saved, list):
        raise UserError(f"{file}: modules_to_save is {saved!r}; expected a list of names")
    # peft adds these for the type of task when it builds the model, whatever the config says.
    data["modules_to_save"] = [*saved, *_SAVED_BY_DEFAULT.get(task_type, ())]
    fingerprint, head = _read_base_file(folder / BASE_FILE)
    return AdapterConfig(
        data=data,
        file=str(file),
        peft_type=peft_type,
        base=_with_revision(base or "", data.get("revision")),
        class_suffix=_class_suffix(data, str(file)),
        fingerprint=fingerprint,
        head=head,
    )


def _class_suffix(data: Mapping[str, Any], file: str) -> str | None:
    task_type, mapping = data.get("task_type"), data.get("auto_mapping")
    if task_type == _FEATURE_EXTRACTION:
        return None
    for suffix, name in _TASK_TYPES.items():
        if task_type == name:
            return suffix
    # A model that peft wrapped without a task type names its class here.
    if task_type is None and isinstance(mapping, dict):
        class_name = str(mapping.get("base_model_class"))
        for suffix in HUGGING_FACE_CLASSES:
            if class_name.endswith(suffix):
                return suffix
        if class_name.endswith("Model"):
            return None
    supported = ", ".join((*_TASK_TYPES.values(), _FEATURE_EXTRACTION))
    raise UserError(
        f"{file}: task_type is {task_type!r} and auto_mapping is {mapping!r}; supported are the "
        f"task types {supported}, and null with an auto_mapping whose base_model_class is that of "
        "an encoder"
    )


def _read_base_file(file: Path) -> tuple[str | None, TaskHead | None]:
    if not file.is_file():
        return None, None
    data = read_json_object(file)
    base = data.get("base")
    fingerprint = base.get("fingerprint") if isinstance(base, dict) else None
    if not isinstance(fingerprint, str):
        raise UserError(
            f"{file}: base.fingerprint is {fingerprint!r}; expected 32 hexadecimal digits; export "
            "the adapter again"
        )
    return fingerprint, from_json(TaskHead | None, data.get("head"), f"{file}: head")


def read_head(config: AdapterConfig, num_outputs: int, base_head: TaskHead | None) -> TaskHead:
    """Returns the head of an adapter: that in our file, or of its class and size.

    peft stores no labels. The labels of the base's head are used if it has as many, as peft does.

    Raises:
      UserError: the file describes another class of head.
    """
    suffix = config.class_suffix
    assert suffix is not None
    if config.head is not None:
        if kind_of_head(config.head).hugging_face_class != suffix:
            raise UserError(
                f"{config.file}: the task is that of a class {suffix}, but {BASE_FILE} has a "
                f"{type(config.head).__name__}; export the adapter again"
            )
        return config.head
    fields: dict[str, Any] = {"num_labels": num_outputs}
    if base_head is not None and kind_of_head(base_head).hugging_face_class == suffix:
        # The base may have been fine-tuned on the same task before.
        labels = class_labels(base_head)
        fields = label_maps(labels) if len(labels) == num_outputs else fields
    return head_from_config(suffix, fields, config.file)


def common_fields(adapter: PeftAdapter, config: EncoderConfig) -> dict[str, Any]:
    """Returns the fields of adapter_config.json that all methods have, except the method."""
    task_type, mapping = None, None
    if adapter.head is None:
        task_type = _FEATURE_EXTRACTION
    else:
        suffix = kind_of_head(adapter.head).hugging_face_class
        task_type = _TASK_TYPES.get(suffix)
        if task_type is None:  # multiple choice, for which peft has no task type
            model_type = format_of(config).model_type(config)
            name = model_type.replace("-", "_")
            mapping = {
                "base_model_class": format_of(config).class_prefixes[model_type] + suffix,
                "parent_library": f"transformers.models.{name}.modeling_{name}",
            }
    model = parse_model(adapter.base)
    return {
        "auto_mapping": mapping,
        "base_model_name_or_path": model.id if model and model.revision else adapter.base,
        # As `save_pretrained` of peft writes it: an adapter is loaded frozen unless the user asks
        # for a trainable one.
        "inference_mode": True,
        "peft_version": PEFT_VERSION,
        "revision": model.revision if model else None,
        "task_type": task_type,
    }


def _with_revision(base: str, revision: object) -> str:
    """Returns the base with the revision that peft has beside it, "org/name@revision"."""
    model = parse_model(base)
    is_pinned = model is not None and model.revision is None and isinstance(revision, str)
    return f"{base}@{revision}" if is_pinned else base


def format_base_file(adapter: PeftAdapter, version: str) -> str:
    """Returns the content of our file: the base with its fingerprint, and the head."""
    return format_json(
        {
            "bert_jax_version": version,
            "base": {"path": adapter.base, "fingerprint": adapter.fingerprint},
            "head": to_json(adapter.head),
        }
    )
