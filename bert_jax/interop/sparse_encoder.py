"""Reads and writes sparse models (SPLADE) of sentence-transformers' `SparseEncoder`.

Written is the spelling of version 5, which later versions read, too:

    modules.json             MLMTransformer, SpladePooling
    1_SpladePooling/         pooling_strategy, activation_function, word_embedding_dimension

With static queries, both and the weights of queries belong to routes of a `Router`:

    router_config.json                types and order of the modules below
    document_0_MLMTransformer/        encoder and tokenizer
    document_1_SpladePooling/
    query_0_SparseStaticEmbedding/    model.safetensors: "weight" [V]; tokenizer

The other files are those of all kinds of models, see `sentence_folder.py`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import find_tokenizer
from bert_jax.interop.sentence_folder import (
    CONFIG,
    MODEL_CONFIG,
    MODULES,
    OLD_PACKAGE,
    ROUTER_CONFIG,
    TRANSFORMER,
    TRANSFORMER_CONFIG,
    WRITTEN_VERSIONS,
    ModuleEntry,
    is_router,
    kind_of_folder,
    modules_to_json,
    other_kind,
    read_choice,
    read_if_there,
    read_max_seq_length,
    read_modules,
    read_prompts,
    read_routes,
    read_size,
    write_json_files,
)
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.io.json_io import format_json, read_json_object
from bert_jax.models.sentence_encoder.config import (
    SIMILARITIES,
    SPARSE_ACTIVATIONS,
    SPARSE_POOLINGS,
    Similarity,
    SparseEncoderConfig,
)
from bert_jax.params.name_table import check_floating_point
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer

_MLM_TRANSFORMER, _SPLADE_POOLING = "MLMTransformer", "SpladePooling"
_STATIC_EMBEDDING = "SparseStaticEmbedding"
_SPARSE_PACKAGE = "sentence_transformers.sparse_encoder.models"
QUERY_WEIGHTS = "query_weights"
_DOCUMENT_FOLDER = f"document_0_{_MLM_TRANSFORMER}"
# The first is the default of sentence-transformers.
_SIMILARITIES: tuple[Similarity, ...] = tuple(sorted(SIMILARITIES, key=lambda name: name != "dot"))


class SparseHead(NamedTuple):
    """Holds what a sparse model has besides the encoder and its masked-LM head.

    Attributes:
      config: the pooling, and how texts are read.
      params: {"query_weights": float32 [V]} with static queries, else {}.
    """

    config: SparseEncoderConfig
    params: dict[str, np.ndarray]


def read_sparse_head(folder: Path, vocab_size: int, tokenizer: Tokenizer | None) -> SparseHead:
    """Reads what the folder of a sparse model has besides the encoder.

    Args:
      vocab_size: V of the encoder.
      tokenizer: the tokenizer of documents, if the folder has one.

    Raises:
      UserError: a file is damaged, a module is missing, doubled or not supported, or the vocabulary
        of a module is not that of the encoder.
    """
    if (kind := kind_of_folder(folder)) != "sparse":
        raise other_kind(folder, kind, "sparse")
    file = folder / MODEL_CONFIG
    model_config = read_if_there(file)
    entries = read_modules(folder)
    static: Path | None = None
    base = folder
    if is_router(entries[0]):
        _check_single(folder, entries)
        base = folder / entries[0].path
        entries, static = _read_router(base)
    transformer, pooling = _check_sequence(folder, entries)
    pooling_file = base / pooling.path / CONFIG
    pooling_config = read_json_object(pooling_file)
    size = read_size(
        {"word_embedding_dimension": pooling_config.get("embedding_dimension"), **pooling_config},
        "word_embedding_dimension",
        pooling_file,
    )
    if size not in (None, vocab_size):
        raise UserError(
            f"{pooling_file}: the vectors have {size} components, but the vocabulary of the "
            f"encoder has {vocab_size} tokens; the files are of different models"
        )
    params: dict[str, np.ndarray] = {}
    query_length = None
    if static is not None:
        params = {QUERY_WEIGHTS: _read_query_weights(static, vocab_size, tokenizer)}
        query_length = read_max_seq_length(static, None)
    config = SparseEncoderConfig(
        pooling=read_choice(pooling_config, "pooling_strategy", SPARSE_POOLINGS, pooling_file),
        activation=read_choice(
            pooling_config, "activation_function", SPARSE_ACTIVATIONS, pooling_file
        ),
        has_static_queries=static is not None,
        query_length=query_length,
        max_seq_length=read_max_seq_length(base / transformer.path, tokenizer, "fill-mask"),
        max_active_dims=read_size(model_config, "max_active_dims", file),
        similarity=read_choice(model_config, "similarity_fn_name", _SIMILARITIES, file),
        **read_prompts(model_config, file),
    )
    return SparseHead(config, params)


def _check_single(folder: Path, entries: list[ModuleEntry]) -> None:
    if len(entries) > 1:
        names = ", ".join(entry.class_name for entry in entries)
        raise UserError(
            f"{folder / MODULES}: the modules are {names}; expected nothing after the Router"
        )


def _read_router(folder: Path) -> tuple[list[ModuleEntry], Path | None]:
    """Returns the modules of documents, and the folder of the static weights of queries."""
    routes = read_routes(folder)
    query, document = routes["query"], routes["document"]
    if query == document:
        return document, None
    if [entry.class_name for entry in query] != [_STATIC_EMBEDDING]:
        names = ", ".join(entry.class_name for entry in query)
        raise UserError(
            f"{folder / ROUTER_CONFIG}: the modules of queries are {names}; supported is "
            f"{_STATIC_EMBEDDING} alone, or the modules of documents"
        )
    return document, folder / query[0].path


def _check_sequence(folder: Path, entries: list[ModuleEntry]) -> tuple[ModuleEntry, ModuleEntry]:
    """Returns the Transformer and the pooling; UserError for any other modules."""
    names = [entry.class_name for entry in entries]
    if names not in ([_MLM_TRANSFORMER, _SPLADE_POOLING], [TRANSFORMER, _SPLADE_POOLING]):
        raise UserError(
            f"{folder}: the modules of the sparse model are {', '.join(names)}; supported are "
            f"{TRANSFORMER} (or {_MLM_TRANSFORMER}) and then {_SPLADE_POOLING}, each once"
        )
    return entries[0], entries[1]


def _read_query_weights(folder: Path, vocab_size: int, tokenizer: Tokenizer | None) -> np.ndarray:
    config = read_if_there(folder / CONFIG)
    if config.get("path"):
        raise UserError(
            f"{folder / CONFIG}: the weights of queries are in {config['path']!r}; open and save "
            f"the model with sentence-transformers, which writes them into {WEIGHTS}"
        )
    file = find_weights(folder)
    tensors = read_weights(file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {"weight": (vocab_size,)}:
        raise UserError(
            f"{file}: has the tensors {shapes}, but the vocabulary of the encoder has {vocab_size} "
            "tokens; expected one weight for each in 'weight'"
        )
    check_floating_point(tensors["weight"], "weight", str(file))
    own = find_tokenizer(folder)
    if own is not None and tokenizer is not None and own.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{folder} has another tokenizer than the encoder of documents; expected the same "
            "tokens for queries and documents"
        )
    return np.asarray(tensors["weight"], np.float32)


def sparse_encoder_folder(folder: Path, config: SparseEncoderConfig) -> Path:
    """Returns the folder inside `folder` into which encoder and tokenizer are written."""
    return folder / _DOCUMENT_FOLDER if config.has_static_queries else folder


def write_sparse_head(
    folder: Path, head: SparseHead, tokenizer: Tokenizer, vocab_size: int
) -> None:
    """Writes all files but those of `sparse_encoder_folder` into an existing folder.

    Args:
      head: with all lengths that it can have.
      tokenizer: written once more for static queries.
      vocab_size: V of the encoder.

    Raises:
      UserError: the model has static queries, and its vocabulary is not that of the tokenizer.
    """
    config, params = head
    # Version 5 has this key under its old name, which later versions read, too.
    pooling: dict[str, Any] = {
        "pooling_strategy": config.pooling,
        "activation_function": config.activation,
        "word_embedding_dimension": vocab_size,
    }
    transformer = {"max_seq_length": config.max_seq_length, "do_lower_case": False}
    model_config: dict[str, Any] = {
        "__version__": WRITTEN_VERSIONS,
        "model_type": "SparseEncoder",
        "prompts": {prompt.name: prompt.text for prompt in config.prompts},
        "default_prompt_name": config.default_prompt_name,
        "similarity_fn_name": config.similarity,
    }
    if config.max_active_dims is not None:
        model_config["max_active_dims"] = config.max_active_dims
    files: dict[str, Any] = {MODEL_CONFIG: model_config}
    splade = f"{_SPARSE_PACKAGE}.{_SPLADE_POOLING}"
    masked_lm = f"{_SPARSE_PACKAGE}.{_MLM_TRANSFORMER}"
    if not config.has_static_queries:
        files |= {
            MODULES: modules_to_json([("", masked_lm), (f"1_{_SPLADE_POOLING}", splade)]),
            TRANSFORMER_CONFIG: transformer,
            f"1_{_SPLADE_POOLING}/{CONFIG}": pooling,
        }
        write_json_files(folder, files)
        return
    if vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"the encoder has {vocab_size} rows of token embeddings, but its tokenizer has "
            f"{tokenizer.vocab_size} tokens; sentence-transformers needs equal numbers for static "
            "queries"
        )
    query, document = f"query_0_{_STATIC_EMBEDDING}", f"document_1_{_SPLADE_POOLING}"
    files |= {
        MODULES: modules_to_json([("", f"{OLD_PACKAGE}.Router")]),
        ROUTER_CONFIG: {
            "types": {
                query: f"{_SPARSE_PACKAGE}.{_STATIC_EMBEDDING}",
                _DOCUMENT_FOLDER: masked_lm,
                document: splade,
            },
            "structure": {"query": [query], "document": [_DOCUMENT_FOLDER, document]},
            "parameters": {"default_route": "document", "allow_empty_key": True},
        },
        f"{_DOCUMENT_FOLDER}/{TRANSFORMER_CONFIG}": transformer,
        f"{document}/{CONFIG}": pooling,
        f"{query}/{CONFIG}": {"frozen": False},
    }
    write_json_files(folder, files)
    tokenizer.save(folder / query)
    # The length of a static query has no other place.
    tokenizer_file = folder / query / TOKENIZER_CONFIG_FILE
    tokenizer_config = read_json_object(tokenizer_file)
    tokenizer_config["model_max_length"] = config.query_length
    tokenizer_file.write_text(format_json(tokenizer_config), "utf-8")
    weight = np.ascontiguousarray(params[QUERY_WEIGHTS])
    save_file({"weight": weight}, folder / query / WEIGHTS, metadata={"format": "pt"})
