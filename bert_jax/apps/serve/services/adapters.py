"""Serves adapters of one base: a batch may have a different adapter for each sequence."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.engine import Buckets, Engine, JaxBackend
from bert_jax.apps.serve.services.task import TaskService, make_processor, outputs_of
from bert_jax.errors import UserError
from bert_jax.interop.peft.adapter_config import is_adapter_folder
from bert_jax.predict.adapter_set import AdapterSet, set_key
from bert_jax.predict.batching import require_tokenizer
from bert_jax.pretrained.adapter_folder import read_peft_adapter
from bert_jax.pretrained.base_model import TrainedAdapter, read_adapter, restore_run
from bert_jax.pretrained.load import LoadedModel, RunCheckpoint
from bert_jax.runs import run_folder

_INDEX = "adapter_index"
"""Field of a batch: the index of the adapter of each sequence, int32 [B]."""


def make_adapter_services(
    name: str, base: LoadedModel, folders: Mapping[str, str], config: ServerConfig
) -> dict[str, TaskService]:
    """Returns the service of each adapter; adapters of the same method and kind share an engine.

    Args:
      name: the name of the base, for messages.
      folders: name of an adapter -> run folder or adapter folder of peft.

    Raises:
      UserError: a folder has no adapter, or one of another base.
    """
    read: dict[str, tuple[TrainedAdapter, LoadedModel]] = {}
    groups: dict[Any, dict[str, TrainedAdapter]] = {}
    for adapter_name, folder in folders.items():
        adapter, model = _read(Path(folder), base)
        outputs_of(adapter.head, folder)
        read[adapter_name] = adapter, model
        groups.setdefault(set_key(adapter), {})[adapter_name] = adapter
    services: dict[str, TaskService] = {}
    for adapters in groups.values():
        adapter_set = AdapterSet(base, adapters)
        max_length = max(make_processor(read[each][1], config).max_length for each in adapters)
        engine = Engine(
            f"the adapters {', '.join(adapters)} of {name}",
            _backend(adapter_set),
            Buckets(max_length, config.max_batch_tokens, config.max_batch_rows),
            pad_id=require_tokenizer(base).pad_id,
            extra={_INDEX: np.array(0, np.int32)},
        )
        for each in adapters:
            extra = {_INDEX: np.array(adapter_set.index(each), np.int32)}
            services[each] = TaskService(read[each][1], engine, config, extra)
    return services


def _backend(adapter_set: AdapterSet) -> JaxBackend:
    def compute(params: Any, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        encoder, stacked = params
        fields = {field: value for field, value in batch.items() if field != _INDEX}
        return adapter_set.compute(encoder, stacked, fields, batch[_INDEX])

    return JaxBackend(compute, adapter_set.parameters)


def _read(folder: Path, base: LoadedModel) -> tuple[TrainedAdapter, LoadedModel]:
    """Returns an adapter, and the base with the head and the settings of the adapter."""
    if is_adapter_folder(folder):
        adapter = read_peft_adapter(folder, base)
        return adapter, dataclasses.replace(base, head=adapter.head, run=None, path=str(folder))
    if not run_folder.is_run_folder(folder):
        raise UserError(
            f"--adapter {folder}: expected the folder of a fine-tuning run with an adapter, such "
            "as --method lora, or an adapter folder of peft"
        )
    adapter = read_adapter(folder)
    _, info, step = restore_run(folder, None)
    run = RunCheckpoint(folder=folder, step=step, info=info)
    return adapter, dataclasses.replace(base, head=adapter.head, run=run, path=str(folder))
