"""Reads and writes multi-vector models (ColBERT) of sentence-transformers and PyLate.

                    PyLate                                  sentence-transformers 6
    modules.json    Transformer, Dense, ...                 Transformer, Dense, ...,
                                                            MultiVectorMask, Normalize
    prefixes        query_prefix, document_prefix: tokens   prompts
    lengths         query_length, document_length           query_expansion, query_length,
                                                            document_length
    skipped tokens  skiplist_words                          2_MultiVectorMask/config.json
    settings in     config_sentence_transformers.json       sentence_bert_config.json

`MultiVectorEncoder` of sentence-transformers opens both, so PyLate's spelling is written if it can
express the model. The other files are those of all kinds of models, see `sentence_folder.py`.
"""

import string
from collections.abc import Mapping, Sequence
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
    read_transformer_config,
    read_vector_modules,
    write_json_files,
    write_vector_modules,
)
from bert_jax.models.sentence_encoder.config import (
    EXPANSION_STRATEGIES,
    LATE_INTERACTIONS,
    TEXT_ROLES,
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    Prompt,
    QueryExpansion,
    TextRole,
)
from bert_jax.text.tokenizer import Tokenizer

_MASK, _MODEL_TYPE = "MultiVectorMask", "MultiVectorEncoder"
_PYLATE, _PYLATE_DENSE = "ColBERT", "pylate.models.Dense.Dense"
_PREFIXES: dict[str, TextRole] = {"query_prefix": "query", "document_prefix": "document"}
_PYLATE_KEYS = (
    *_PREFIXES,
    *("query_length", "document_length", "do_query_expansion"),
    *("attend_to_expansion_tokens", "skiplist_words"),
)
_PYLATE_QUERY_LENGTH = 32
_TOKEN_EMBEDDINGS = "token_embeddings"


class MultiVectorHead(NamedTuple):
    """Holds what follows the encoder of a multi-vector model.

    Attributes:
      config: the modules, and how texts are read.
      params: parameters by path, such as "dense/0/kernel", float32.
    """

    config: MultiVectorEncoderConfig
    params: dict[str, np.ndarray]


def read_multi_vector_head(folder: Path, hidden_size: int, tokenizer: Tokenizer) -> MultiVectorHead:
    """Reads what the folder of a multi-vector model has besides the encoder.

    Args:
      hidden_size: D of the encoder.
      tokenizer: finds the ids of the tokens that the files name.

    Raises:
      UserError: a file is damaged, a module is missing, doubled or not supported, a token is not in
        the vocabulary, or sizes disagree.
    """
    if (kind := kind_of_folder(folder)) != "multi_vector":
        raise other_kind(folder, kind, "multi_vector")
    file = folder / MODEL_CONFIG
    model_config = read_if_there(file)
    is_pylate = model_config.get("model_type") != _MODEL_TYPE
    entries = read_modules(folder)
    _check_sequence(folder, entries, is_pylate)
    vector_entries = [entry for entry in entries[1:] if entry.class_name != _MASK]
    _check_token_level(folder, vector_entries)
    modules, params = read_vector_modules(folder, vector_entries)
    read_fields = _pylate_fields if is_pylate else _sentence_transformers_fields
    config = MultiVectorEncoderConfig(
        # PyLate normalizes without a module.
        modules=(*modules, Normalize()) if is_pylate else modules,
        max_seq_length=read_max_seq_length(folder / entries[0].path, tokenizer),
        **read_fields(folder, entries, model_config, tokenizer),
    )
    try:
        config.embedding_size(hidden_size)
    except UserError as error:
        raise UserError(f"{folder}: {error}; its files disagree, export the model again") from None
    return MultiVectorHead(config, params)


def _check_sequence(folder: Path, entries: Sequence[ModuleEntry], is_pylate: bool) -> None:
    """Raises a UserError if a module is missing, doubled or not supported."""
    names = [entry.class_name for entry in entries]
    known = (DENSE,) if is_pylate else (DENSE, NORMALIZE, _MASK)
    for index, entry in enumerate(entries):
        package = entry.package.split(".")[0]
        if package not in (PACKAGE, "pylate") or entry.class_name not in (
            known if index else (TRANSFORMER,)
        ):
            raise UserError(
                f"{folder / MODULES}: module {index} is {entry.package}.{entry.class_name}; "
                f"supported are {TRANSFORMER} first, and then {', '.join(known)}"
            )
    expected = int(not is_pylate)
    if names.count(_MASK) != expected:
        raise UserError(
            f"{folder / MODULES}: {_MASK} occurs {names.count(_MASK)} times among "
            f"{', '.join(names)}; expected it {expected} times"
        )


def _check_token_level(folder: Path, entries: Sequence[ModuleEntry]) -> None:
    for entry in entries:
        file = folder / entry.path / CONFIG
        config = read_if_there(file)
        # Until version 5.3, and in PyLate, a dense layer has no name of its input.
        default = None if entry.class_name == NORMALIZE else _TOKEN_EMBEDDINGS
        for field in ("module_input_name", "module_output_name"):
            value = config.get(field, default)
            if value is None and field == "module_output_name":
                continue
            if value != _TOKEN_EMBEDDINGS:
                raise UserError(
                    f"{file}: {field} is {value!r}; expected {_TOKEN_EMBEDDINGS!r}, because a "
                    "multi-vector model has a vector for each token"
                )


def _sentence_transformers_fields(
    folder: Path,
    entries: Sequence[ModuleEntry],
    model_config: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Returns the fields of the config that sentence-transformers' files have."""
    if used := [key for key in _PYLATE_KEYS if key in model_config]:
        raise UserError(
            f"{folder / MODEL_CONFIG}: {', '.join(used)} are settings of PyLate, but the modules "
            "are those of sentence-transformers; save the model with one of the two"
        )
    transformer, file = read_transformer_config(folder / entries[0].path)
    mask = next(entry for entry in entries if entry.class_name == _MASK)
    mask_file = folder / mask.path / CONFIG
    mask_config = read_if_there(mask_file)
    if mask_config.get("keep_only_token_ids"):
        raise UserError(
            f"{mask_file}: keep_only_token_ids is set, which is for images; expected null"
        )
    roles = mask_config.get("skiplist_tasks", ["document"])
    if not isinstance(roles, list) or any(role not in TEXT_ROLES for role in roles):
        raise UserError(f"{mask_file}: skiplist_tasks is {roles!r}, expected query or document")
    model_file = folder / MODEL_CONFIG
    return {
        "query_length": read_size(transformer, "query_length", file),
        "document_length": read_size(transformer, "document_length", file),
        "expansion": _read_expansion(transformer.get("query_expansion"), file, tokenizer),
        "skip_token_ids": _skip_ids(mask_config.get("skiplist_words"), mask_file, tokenizer),
        "skip_roles": tuple(role for role in TEXT_ROLES if role in roles),
        "similarity": read_choice(
            model_config, "similarity_fn_name", LATE_INTERACTIONS, model_file
        ),
        **read_prompts(model_config, model_file),
    }


def _read_expansion(value: Any, file: Path, tokenizer: Tokenizer) -> QueryExpansion | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UserError(f"{file}: query_expansion is {value!r:.60}, expected an object or null")
    length, attend = read_size(value, "length", file), value.get("attend", False)
    if length is None or not isinstance(attend, bool):
        raise UserError(
            f"{file}: query_expansion has the length {length} and attend {attend!r}; expected a "
            "number of tokens, and true or false"
        )
    token = value.get("token")
    if token is not None and token not in tokenizer:
        raise UserError(
            f"{file}: the token of query_expansion is {token!r}, which the vocabulary of "
            f"{tokenizer.vocab_size} tokens does not have"
        )
    return QueryExpansion(
        length=length,
        token_id=tokenizer.mask_id if token is None else tokenizer.token_to_id(token),
        is_attended=attend,
        strategy=read_choice(value, "strategy", EXPANSION_STRATEGIES, file),
    )


def _skip_ids(words: Any, file: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the ids of the words that are tokens, ascending; others never occur."""
    if words is not None and (
        not isinstance(words, list) or any(not isinstance(word, str) for word in words)
    ):
        raise UserError(f"{file}: skiplist_words is {words!r:.60}, expected a list of tokens")
    return tuple(sorted({tokenizer.token_to_id(word) for word in words or () if word in tokenizer}))


def _pylate_fields(
    folder: Path,
    entries: Sequence[ModuleEntry],
    model_config: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Returns the fields of the config that PyLate's files have, or PyLate's defaults."""
    del entries
    file = folder / MODEL_CONFIG
    fields = read_prompts(model_config, file)
    prompts = {prompt.name: prompt.text for prompt in fields["prompts"]}
    for key, role in _PREFIXES.items():
        if key in model_config:
            prefix = model_config[key] or ""
            if not isinstance(prefix, str):
                raise UserError(f"{file}: {key} is {prefix!r}, expected a token")
            prompts[role] = prefix + prompts.get(role, "").removeprefix(prefix)
    length = read_size(model_config, "query_length", file)
    expansion = None
    if model_config.get("do_query_expansion") is not False:
        expansion = QueryExpansion(
            length=length or _PYLATE_QUERY_LENGTH,
            token_id=tokenizer.mask_id,
            is_attended=bool(model_config.get("attend_to_expansion_tokens")),
        )
    words = model_config.get("skiplist_words")
    return {
        **fields,
        "prompts": tuple(Prompt(name=name, text=text) for name, text in prompts.items()),
        "query_length": length if expansion is None else None,
        "document_length": read_size(model_config, "document_length", file),
        "expansion": expansion,
        "has_prefix_tokens": any(key in model_config for key in _PREFIXES),
        "skip_token_ids": _skip_ids(
            list(string.punctuation) if words is None else words, file, tokenizer
        ),
    }


def write_multi_vector_head(
    folder: Path, head: MultiVectorHead, tokenizer: Tokenizer, max_length: int
) -> None:
    """Writes all files but the encoder's and the tokenizer's into an existing folder.

    Args:
      max_length: the longest length of the encoder, in tokens.

    Raises:
      UserError: sentence-transformers has no name for an activation.
    """
    config, params = head
    length = min(config.max_seq_length or max_length, max_length)
    files: dict[str, Any] = {
        TRANSFORMER_CONFIG: {"max_seq_length": length, "do_lower_case": False},
        MODEL_CONFIG: {
            "__version__": WRITTEN_VERSIONS,
            "prompts": {prompt.name: prompt.text for prompt in config.prompts},
            "default_prompt_name": config.default_prompt_name,
        },
    }
    words = [tokenizer.id_to_token(token_id) for token_id in config.skip_token_ids]
    is_pylate = _is_pylate(config, tokenizer)
    if config.has_prefix_tokens and not is_pylate:
        raise UserError(
            "only PyLate's folders have prefixes that are tokens, and they cannot express the rest "
            "of this model: expected two prompts, query and document, that are tokens or empty; "
            "dense layers and a normalization; a fixed expansion with masks or none; skipped "
            "tokens in documents only; and the similarity maxsim"
        )
    if is_pylate:
        names = [f"{index}_{DENSE}" for index in range(1, len(config.modules))]
        modules = list(zip(names, config.modules[:-1], strict=True))
        types = [f"{OLD_PACKAGE}.{TRANSFORMER}", *[_PYLATE_DENSE] * len(names)]
        files[MODEL_CONFIG] |= _pylate_settings(config, words, length)
    else:
        names = [f"{index}_{type(each).__name__}" for index, each in enumerate(config.modules, 2)]
        modules = list(zip(names, config.modules, strict=True))
        types = [f"{PACKAGE}.base.modules.transformer.{TRANSFORMER}"]
        types += [f"{PACKAGE}.multi_vector_encoder.modules.multi_vector_mask.{_MASK}"]
        for module in config.modules:
            name = type(module).__name__
            types.append(f"{PACKAGE}.base.modules.{name.lower()}.{name}")
        names = [f"1_{_MASK}", *names]
        files[MODEL_CONFIG] |= {
            "model_type": _MODEL_TYPE,
            "similarity_fn_name": config.similarity,
        }
        files[TRANSFORMER_CONFIG] |= _sentence_transformers_settings(config, tokenizer)
        files[f"1_{_MASK}/{CONFIG}"] = {
            "skiplist_words": words,
            "skiplist_tasks": list(config.skip_roles),
            "keep_only_token_ids": None,
        }
    paths = zip(("", *names), types, strict=True)
    files[MODULES] = modules_to_json(list(paths))
    inputs = {} if is_pylate else {"module_input_name": _TOKEN_EMBEDDINGS}
    for name, content in write_vector_modules(folder, modules, params).items():
        files[name] = {**content, **inputs}
    write_json_files(folder, files)


def _is_pylate(config: MultiVectorEncoderConfig, tokenizer: Tokenizer) -> bool:
    """Returns whether PyLate's files can express a model."""
    expansion = config.expansion
    return (
        config.has_prefix_tokens
        and isinstance(config.modules[-1], Normalize)
        and all(isinstance(module, Dense) for module in config.modules[:-1])
        # Without a dense layer, PyLate adds a random one.
        and len(config.modules) > 1
        and (expansion is None or expansion.strategy == "fixed")
        and (expansion is None or expansion.token_id == tokenizer.mask_id)
        and config.skip_roles == ("document",)
        and config.similarity == "maxsim"
        # PyLate adds prefixes that are no tokens to the vocabulary, with random vectors, and has
        # prefixes of its own if the file has none.
        and {prompt.name for prompt in config.prompts} == set(TEXT_ROLES)
        and all(not prompt.text or prompt.text in tokenizer for prompt in config.prompts)
    )


def _pylate_settings(
    config: MultiVectorEncoderConfig, words: list[str], length: int
) -> dict[str, Any]:
    expansion = config.expansion
    return {
        "model_type": _PYLATE,
        "similarity_fn_name": "MaxSim",
        **{f"{prompt.name}_prefix": prompt.text for prompt in config.prompts},
        "query_length": config.length_of_role("query", length),
        "document_length": config.length_of_role("document", length),
        "do_query_expansion": expansion is not None,
        "attend_to_expansion_tokens": expansion is not None and expansion.is_attended,
        "skiplist_words": words,
    }


def _sentence_transformers_settings(
    config: MultiVectorEncoderConfig, tokenizer: Tokenizer
) -> dict[str, Any]:
    expansion = config.expansion
    settings: dict[str, Any] = {
        "query_length": config.query_length,
        "document_length": config.document_length,
        "query_expansion": expansion
        and {
            "strategy": expansion.strategy,
            "attend": expansion.is_attended,
            "length": expansion.length,
            "token": tokenizer.id_to_token(expansion.token_id),
        },
    }
    return {name: value for name, value in settings.items() if value is not None}
