"""Reads and writes sentence encoders of sentence-transformers: dense vectors. Imports no jax.

Folders have one of two spellings, and both are read. Written is the old one, which every version of
sentence-transformers and other servers read:

                    until 5.3                                  since 5.4
    type            sentence_transformers.models.Pooling       sentence_transformers.
                                                               sentence_transformer.modules.
                                                               pooling.Pooling
    size            word_embedding_dimension                   embedding_dimension
    pooling         pooling_mode_mean_tokens: true, ...        pooling_mode: "mean" or a list

1_Pooling/config.json               the pooling
2_Dense/config.json, model.safetensors
2_Normalize/                        empty in old folders

The other files are those of all kinds of models, see `sentence_folder.py`.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.sentence_folder import (
    CONFIG,
    DENSE,
    MODEL_CONFIG,
    MODULES,
    NORMALIZE,
    OLD_PACKAGE,
    PACKAGE,
    TRANSFORMER,
    TRANSFORMER_CONFIG,
    WRITTEN_VERSIONS,
    ModuleEntry,
    kind_of_folder,
    modules_to_json,
    other_kind,
    read_choice,
    read_if_there,
    read_max_seq_length,
    read_modules,
    read_prompts,
    read_size,
    read_vector_modules,
    write_json_files,
    write_vector_modules,
)
from bert_jax.io.json_io import read_json_object
from bert_jax.models.sentence_encoder.config import (
    POOLING_MODES,
    SIMILARITIES,
    PoolingMode,
    SentenceEncoderConfig,
)
from bert_jax.text.tokenizer import Tokenizer

POOLING, POOLING_FOLDER = "Pooling", "1_Pooling"
_SENTENCE_EMBEDDING = "sentence_embedding"

logger = logging.getLogger(__name__)

_POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The old spelling of pooling modes, in the order in which their vectors are concatenated."""


def pooling_from_json(
    config: Mapping[str, Any], file: Path, hidden_size: int
) -> tuple[tuple[PoolingMode, ...], bool]:
    """Returns the pooling modes and whether the tokens of a prompt are pooled.

    Args:
      file: the path of the config, for messages.
      hidden_size: D of the encoder.

    Raises:
      UserError: a mode is unknown, or the sizes disagree.
    """
    size = config.get("embedding_dimension", config.get("word_embedding_dimension", hidden_size))
    if size != hidden_size:
        raise UserError(
            f"{file}: the pooling reads vectors of size {size}, but the encoder has hidden_size "
            f"{hidden_size}; the files are of different models"
        )
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise UserError(f"{file}: include_prompt is {include_prompt!r}, expected true or false")
    if "pooling_mode" in config:
        value = config["pooling_mode"]
        names: list[Any] = value if isinstance(value, list) else [value]
    else:
        # sentence-transformers pools by the mean if no flag is set.
        names = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    modes: dict[Any, PoolingMode] = {mode: mode for mode in POOLING_MODES}
    if not names or any(not isinstance(name, str) or name not in modes for name in names):
        raise UserError(
            f"{file}: pooling_mode is {config.get('pooling_mode')!r}, expected one of "
            f"{', '.join(POOLING_MODES)}, or a list of these"
        )
    return tuple(modes[name] for name in names), include_prompt


def pooling_to_json(
    pooling: tuple[PoolingMode, ...], include_prompt: bool, hidden_size: int
) -> dict[str, Any]:
    """Returns the config of a pooling in the old spelling.

    Raises:
      UserError: the modes are in another order than that of sentence-transformers.
    """
    in_order = tuple(mode for mode in _POOLING_FLAGS.values() if mode in pooling)
    # The old spelling has flags, which have no order of their own.
    if in_order != pooling:
        raise UserError(
            f"pooling is {', '.join(pooling)}; folders of sentence-transformers have the vectors "
            f"of several modes in the order {', '.join(in_order)}"
        )
    flags = {flag: mode in pooling for flag, mode in _POOLING_FLAGS.items()}
    return {"word_embedding_dimension": hidden_size, **flags, "include_prompt": include_prompt}


class SentenceHead(NamedTuple):
    """Holds what follows the encoder.

    Attributes:
      config: the pooling, the modules after it, and how texts are read.
      params: parameters by path, such as "dense/0/kernel", float32.
    """

    config: SentenceEncoderConfig
    params: dict[str, np.ndarray]


def read_sentence_head(
    folder: Path, hidden_size: int, tokenizer: Tokenizer | None = None
) -> SentenceHead:
    """Reads what a folder of sentence-transformers has besides the encoder.

    Without a pooling, the mean over all tokens is assumed, as sentence-transformers does, with a
    warning.

    Args:
      hidden_size: D of the encoder.
      tokenizer: the tokenizer of the folder, if it has one.

    Raises:
      UserError: a file is damaged, a module is not supported, the model is sparse or multi-vector,
        or sizes disagree.
    """
    if (kind := kind_of_folder(folder)) != "dense":
        raise other_kind(folder, kind, "dense")
    file = folder / MODEL_CONFIG
    model_config = read_if_there(file)
    entries = _read_entries(folder)
    pooling, include_prompt = _read_pooling(folder, entries, hidden_size)
    vector_entries = [entry for entry in entries[1:] if entry.class_name != POOLING]
    modules, params = read_vector_modules(folder, vector_entries)
    config = SentenceEncoderConfig(
        pooling=pooling,
        include_prompt=include_prompt,
        modules=modules,
        max_seq_length=read_max_seq_length(folder / entries[0].path, tokenizer),
        truncate_dim=read_size(model_config, "truncate_dim", file),
        similarity=read_choice(model_config, "similarity_fn_name", SIMILARITIES, file),
        **read_prompts(model_config, file),
    )
    try:
        config.embedding_size(hidden_size)
    except UserError as error:
        raise UserError(f"{folder}: {error}; its files disagree, export the model again") from None
    return SentenceHead(config, params)


def _read_entries(folder: Path) -> list[ModuleEntry]:
    """Reads modules.json of a dense model; UserError if it has other modules or another order."""
    file = folder / MODULES
    entries = read_modules(folder)
    for index, entry in enumerate(entries):
        known = (POOLING, DENSE, NORMALIZE) if index else (TRANSFORMER,)
        if entry.package.split(".")[0] != PACKAGE or entry.class_name not in known:
            raise UserError(
                f"{file}: module {index} is {entry.package}.{entry.class_name}; supported are "
                f"{TRANSFORMER} first, and then {POOLING}, {DENSE} and {NORMALIZE} of "
                "sentence-transformers"
            )
        config = read_if_there(folder / entry.path / CONFIG) if index else {}
        for field in ("module_input_name", "module_output_name"):
            if config.get(field, _SENTENCE_EMBEDDING) not in (_SENTENCE_EMBEDDING, None):
                raise other_kind(folder / entry.path, "multi_vector", "dense")
    poolings = [index for index, entry in enumerate(entries) if entry.class_name == POOLING]
    if poolings not in ([], [1]):
        raise UserError(
            f"{file}: {POOLING} is at {poolings}; expected one, after {TRANSFORMER}, at 1"
        )
    return entries


def _read_pooling(
    folder: Path, entries: list[ModuleEntry], hidden_size: int
) -> tuple[tuple[PoolingMode, ...], bool]:
    file = None
    if len(entries) > 1 and entries[1].class_name == POOLING:
        file = folder / entries[1].path / CONFIG
    if file is None or not file.is_file():
        absent = (
            f"has no {file.relative_to(folder)}" if file else f"lists no {POOLING} in {MODULES}"
        )
        logger.warning(
            "%s %s, so the pooling is assumed to be the mean over all tokens", folder, absent
        )
        return ("mean",), True
    return pooling_from_json(read_json_object(file), file, hidden_size)


def write_sentence_head(
    folder: Path, head: SentenceHead, hidden_size: int, max_length: int
) -> None:
    """Writes all files but the encoder's and the tokenizer's into an existing folder.

    Args:
      hidden_size: D of the encoder.
      max_length: the longest length of the encoder, in tokens.

    Raises:
      UserError: the config has something for which sentence-transformers has no name.
    """
    config, params = head
    names = [f"{index}_{type(each).__name__}" for index, each in enumerate(config.modules, 2)]
    classes = [TRANSFORMER, POOLING, *(type(each).__name__ for each in config.modules)]
    model_config: dict[str, Any] = {
        "__version__": WRITTEN_VERSIONS,
        "model_type": "SentenceTransformer",
        "prompts": {prompt.name: prompt.text for prompt in config.prompts},
        "default_prompt_name": config.default_prompt_name,
        "similarity_fn_name": config.similarity,
    }
    if config.truncate_dim is not None:
        model_config["truncate_dim"] = config.truncate_dim
    # Each server has another default, so the length is never left out.
    length = min(config.max_seq_length or max_length, max_length)
    pooling = pooling_to_json(config.pooling, config.include_prompt, hidden_size)
    modules = list(zip(names, config.modules, strict=True))
    entries = zip(("", POOLING_FOLDER, *names), classes, strict=True)
    write_json_files(
        folder,
        {
            MODULES: modules_to_json([(path, f"{OLD_PACKAGE}.{name}") for path, name in entries]),
            MODEL_CONFIG: model_config,
            # Lower case is a rule of the tokenizer here, and its own files have it.
            TRANSFORMER_CONFIG: {"max_seq_length": length, "do_lower_case": False},
            f"{POOLING_FOLDER}/{CONFIG}": pooling,
            **write_vector_modules(folder, modules, params),
        },
    )
