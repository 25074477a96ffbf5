"""Reads and writes what a folder of sentence-transformers has besides the encoder. Imports no jax.

modules.json                        the modules and their folders
config_sentence_transformers.json   prompts, similarity, truncate_dim
sentence_bert_config.json           max_seq_length
1_Pooling/config.json               the pooling
2_Dense/config.json, model.safetensors
2_Normalize/                        empty in old folders

The encoder and the tokenizer are a Hugging Face folder: this one, or in old models "0_Transformer".
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interop.sentence_transformers import modules as module_configs
from bert_jax.interop.sentence_transformers.modules import MODULES, POOLING, ModuleEntry
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.json_io import format_json, read_json_object
from bert_jax.models.sentence_encoder.config import (
    SIMILARITIES,
    Dense,
    PoolingMode,
    Prompt,
    SentenceEncoderConfig,
    SentenceModule,
)
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer

logger = logging.getLogger(__name__)

MODEL_CONFIG = "config_sentence_transformers.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
_TRANSFORMER_CONFIGS = (
    TRANSFORMER_CONFIG,
    *(
        f"sentence_{family}_config.json"
        for family in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
_CONFIG = "config.json"
_WRITTEN_VERSIONS = {"sentence_transformers": "3.0.0", "transformers": "4.41.0", "pytorch": "2.3.0"}
"""Old versions that read what is written here: newer ones warn if a folder is newer than they."""


class SentenceHead(NamedTuple):
    """Holds what follows the encoder.

    Attributes:
      config: the pooling, the modules after it, and how texts are read.
      params: parameters by path, such as "dense/0/kernel", float32.
    """

    config: SentenceEncoderConfig
    params: dict[str, np.ndarray]


def is_sentence_folder(folder: Path) -> bool:
    """Returns whether a folder is one of sentence-transformers."""
    return (folder / MODULES).is_file()


def transformer_folder(folder: Path) -> Path:
    """Returns the folder with the encoder, which is `folder` itself except in old models."""
    if (folder / _CONFIG).is_file() or not is_sentence_folder(folder):
        return folder
    return folder / module_configs.read_modules(folder)[0].path


def read_sentence_head(
    folder: Path, hidden_size: int, tokenizer: Tokenizer | None = None
) -> SentenceHead:
    """Reads what a folder of sentence-transformers has besides the encoder.

    Without a pooling, the mean over all tokens is assumed, as sentence-transformers does, with a
    warning.

    Args:
      hidden_size: D of the encoder.
      tokenizer: that of the folder, if it has one.

    Raises:
      UserError: a file is damaged, a module is not supported, the model is sparse or multi-vector,
        or sizes disagree.
    """
    model_config = _read_if_there(folder / MODEL_CONFIG)
    module_configs.check_model_type(folder, model_config)
    entries = module_configs.read_modules(folder)
    pooling, include_prompt = _read_pooling(folder, entries, hidden_size)
    modules: list[SentenceModule] = []
    params: dict[str, np.ndarray] = {}
    for entry in entries[1:]:
        if entry.class_name == POOLING:
            continue
        file = folder / entry.path / _CONFIG
        module = module_configs.module_from_json(entry.class_name, _read_if_there(file), file)
        if isinstance(module, Dense):
            index = sum(isinstance(other, Dense) for other in modules)
            params |= _read_dense(file.parent, module, f"dense/{index}")
        modules.append(module)
    config = SentenceEncoderConfig(
        pooling=pooling,
        include_prompt=include_prompt,
        modules=tuple(modules),
        max_seq_length=_read_max_seq_length(folder / entries[0].path, tokenizer),
        **_model_fields(model_config, folder / MODEL_CONFIG),
    )
    try:
        config.embedding_size(hidden_size)
    except UserError as error:
        raise UserError(f"{folder}: {error}; its files disagree, export the model again") from None
    return SentenceHead(config, params)


def _read_pooling(
    folder: Path, entries: list[ModuleEntry], hidden_size: int
) -> tuple[tuple[PoolingMode, ...], bool]:
    file = None
    if len(entries) > 1 and entries[1].class_name == POOLING:
        file = folder / entries[1].path / _CONFIG
    if file is None or not file.is_file():
        absent = (
            f"has no {file.relative_to(folder)}" if file else f"lists no {POOLING} in {MODULES}"
        )
        logger.warning(
            "%s %s, so the pooling is assumed to be the mean over all tokens", folder, absent
        )
        return ("mean",), True
    return module_configs.pooling_from_json(read_json_object(file), file, hidden_size)


def _read_dense(folder: Path, module: Dense, path: str) -> dict[str, np.ndarray]:
    """Returns the parameters of a dense layer by path, after checking their shapes."""
    file = find_weights(folder)
    tensors = read_weights(file)
    expected: dict[str, tuple[int, ...]] = {
        "linear.weight": (module.out_features, module.in_features)
    }
    if module.bias:
        expected["linear.bias"] = (module.out_features,)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != expected:
        raise UserError(
            f"{file}: has the tensors {shapes}, but {_CONFIG} beside it describes {expected}; use "
            "the files that were saved together"
        )
    params = {f"{path}/kernel": np.asarray(tensors["linear.weight"].T, np.float32)}
    if module.bias:
        params[f"{path}/bias"] = np.asarray(tensors["linear.bias"], np.float32)
    return params


def _read_max_seq_length(folder: Path, tokenizer: Tokenizer | None) -> int | None:
    """Reads how many tokens of a text are read; None if no file limits them."""
    configs = (folder / name for name in _TRANSFORMER_CONFIGS)
    file = next((file for file in configs if file.is_file()), folder / TRANSFORMER_CONFIG)
    config = _read_if_there(file)
    task = config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise UserError(
            f"{file}: transformer_task is {task!r}; expected 'feature-extraction', the task of a "
            "sentence encoder"
        )
    if (
        config.get("do_lower_case")
        and tokenizer
        and tokenizer.encode("NET") != tokenizer.encode("net")
    ):
        raise UserError(
            f"{file}: do_lower_case is true, but the tokenizer distinguishes upper case; set "
            '"do_lower_case" in tokenizer_config.json instead'
        )
    length = config.get("max_seq_length")
    if length is None:
        length = _read_if_there(folder / TOKENIZER_CONFIG_FILE).get("model_max_length")
        # Hugging Face writes 10^30 for a tokenizer without a limit.
        return length if type(length) is int and length < 2**24 else None
    if type(length) is not int or length < 3:
        raise UserError(f"{file}: max_seq_length is {length!r}, expected a number of at least 3")
    return length


def _model_fields(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Returns the fields of `SentenceEncoderConfig` that config_sentence_transformers.json has."""
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        text is None or isinstance(text, str) for text in prompts.values()
    ):
        raise UserError(f"{file}: prompts is {prompts!r:.80}, expected a text for each name")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise UserError(
            f"{file}: default_prompt_name is {default!r}, but prompts has {sorted(prompts)}"
        )
    truncate_dim = config.get("truncate_dim")
    if truncate_dim is not None and (type(truncate_dim) is not int or truncate_dim < 1):
        raise UserError(f"{file}: truncate_dim is {truncate_dim!r}, expected a number above 0")
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        raise UserError(
            f"{file}: similarity_fn_name is {similarity!r}, expected one of "
            f"{', '.join(SIMILARITIES)}"
        )
    return {
        "prompts": tuple(Prompt(name=name, text=text or "") for name, text in prompts.items()),
        "default_prompt_name": default,
        "truncate_dim": truncate_dim,
        "similarity": similarity,
    }


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def write_sentence_head(
    folder: Path, head: SentenceHead, hidden_size: int, max_length: int
) -> None:
    """Writes all files but those of the encoder and the tokenizer into an existing folder.

    Args:
      hidden_size: D of the encoder.
      max_length: the longest length of the encoder, in tokens.

    Raises:
      UserError: the config has something for which sentence-transformers has no name.
    """
    config, params = head
    modules = module_configs.modules_to_json(config.modules)
    model_config: dict[str, Any] = {
        "__version__": _WRITTEN_VERSIONS,
        "model_type": "SentenceTransformer",
        "prompts": {prompt.name: prompt.text for prompt in config.prompts},
        "default_prompt_name": config.default_prompt_name,
        "similarity_fn_name": config.similarity,
    }
    if config.truncate_dim is not None:
        model_config["truncate_dim"] = config.truncate_dim
    # Each server has another default, so the length is never left out.
    length = min(config.max_seq_length or max_length, max_length)
    pooling = module_configs.pooling_to_json(config.pooling, config.include_prompt, hidden_size)
    files: dict[str, Any] = {
        MODULES: modules,
        MODEL_CONFIG: model_config,
        TRANSFORMER_CONFIG: {"max_seq_length": length, "do_lower_case": False},
        f"{module_configs.POOLING_FOLDER}/{_CONFIG}": pooling,
    }
    dense_index = 0
    for index, module in enumerate(config.modules):
        name = module_configs.module_folder(index, module)
        files[f"{name}/{_CONFIG}"] = module_configs.module_to_json(module)
        if isinstance(module, Dense):
            path = f"dense/{dense_index}"
            tensors = {"linear.weight": np.ascontiguousarray(params[f"{path}/kernel"].T)}
            if module.bias:
                tensors["linear.bias"] = np.ascontiguousarray(params[f"{path}/bias"])
            (folder / name).mkdir()
            save_file(tensors, folder / name / WEIGHTS, metadata={"format": "pt"})
            dense_index += 1
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(format_json(content), "utf-8")
