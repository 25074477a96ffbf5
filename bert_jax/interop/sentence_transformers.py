"""Reads and writes folders of sentence-transformers: modules, pooling, prompts. Imports no jax.

Folders have one of two spellings, and both are read. Written is the old one, which every version of
sentence-transformers and other servers read:

                    until 5.3                                  since 5.4
    type            sentence_transformers.models.Pooling       sentence_transformers.
                                                               sentence_transformer.modules.
                                                               pooling.Pooling
    size            word_embedding_dimension                   embedding_dimension
    pooling         pooling_mode_mean_tokens: true, ...        pooling_mode: "mean" or a list

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
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.io.json_io import format_json, read_json, read_json_object
from bert_jax.models.layers.config import Activation
from bert_jax.models.sentence_encoder.config import (
    LARGEST_EMBEDDING,
    POOLING_MODES,
    SIMILARITIES,
    Dense,
    Normalize,
    PoolingMode,
    Prompt,
    SentenceEncoderConfig,
    SentenceModule,
)
from bert_jax.params.name_table import check_floating_point
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer

MODULES, POOLING_FOLDER = "modules.json", "1_Pooling"
TRANSFORMER, POOLING, DENSE, NORMALIZE = "Transformer", "Pooling", "Dense", "Normalize"
_PACKAGE, _OLD_PACKAGE = "sentence_transformers", "sentence_transformers.models"
_SENTENCE_EMBEDDING = "sentence_embedding"

_POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The old spelling of pooling modes, in the order in which their vectors are concatenated."""

_ACTIVATIONS: dict[str, Activation | None] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.linear.Identity": None,
}

_SPARSE = "a sparse model (SPLADE), whose vectors have a component for each token of the vocabulary"
_MULTI_VECTOR = "a multi-vector model (ColBERT), which has a vector for each token"
_OTHER_KINDS = {
    "SparseEncoder": _SPARSE,
    "MultiVectorEncoder": _MULTI_VECTOR,
    "CrossEncoder": "a cross-encoder, which scores pairs of texts and has no vectors",
}
"""Values of `model_type` in config_sentence_transformers.json that are no sentence encoders."""
_SPARSE_CLASSES = ("MLMTransformer", "SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding")


class ModuleEntry(NamedTuple):
    """Holds an entry of modules.json: the class without its package, and the folder's name."""

    class_name: str
    path: str


def read_modules(folder: Path) -> list[ModuleEntry]:
    """Reads modules.json.

    Raises:
      UserError: it is damaged, or names a module that is not supported or outside of the folder.
    """
    file = folder / MODULES
    entries = read_json(file)
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{file}: expected a list of modules, found {entries!r:.60}")
    modules: list[ModuleEntry] = []
    for index, entry in enumerate(entries):
        module_type, path = (
            (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(module_type, str) or not isinstance(path, str):
            raise UserError(f'{file}: entry {index} has no "type" and "path": {entry!r:.80}')
        package, _, class_name = module_type.rpartition(".")
        # Checked before the general error, so that the message says what kind of model it is.
        if "sparse_encoder" in package or class_name in _SPARSE_CLASSES:
            raise not_a_sentence_encoder(folder, _SPARSE)
        if "multi_vector" in package or package.startswith("pylate"):
            raise not_a_sentence_encoder(folder, _MULTI_VECTOR)
        known = (POOLING, DENSE, NORMALIZE) if index else (TRANSFORMER,)
        if package.split(".")[0] != _PACKAGE or class_name not in known:
            raise UserError(
                f"{file}: module {index} is {module_type}; supported are {TRANSFORMER} first, and "
                f"then {POOLING}, {DENSE} and {NORMALIZE} of sentence-transformers"
            )
        # A folder may be downloaded; it must not make us read files elsewhere on the machine.
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise UserError(f"{file}: the path of module {index} is {path!r}, outside the folder")
        modules.append(ModuleEntry(class_name, path))
    poolings = [index for index, module in enumerate(modules) if module.class_name == POOLING]
    if poolings not in ([], [1]):
        raise UserError(
            f"{file}: {POOLING} is at {poolings}; expected one, after {TRANSFORMER}, at 1"
        )
    return modules


def not_a_sentence_encoder(folder: Path, kind: str) -> UserError:
    """Returns the error for a folder of another kind of model, such as "a sparse model"."""
    return UserError(
        f"{folder} is {kind}; expected a sentence encoder, which has one dense vector for each text"
    )


def check_model_type(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises a UserError if config_sentence_transformers.json describes another kind of model."""
    if kind := _OTHER_KINDS.get(str(config.get("model_type"))):
        raise not_a_sentence_encoder(folder, kind)


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


def module_from_json(class_name: str, config: Mapping[str, Any], file: Path) -> SentenceModule:
    """Returns the config of a module after the pooling.

    Raises:
      UserError: an option is not supported, or a size is not a number.
    """
    for field in ("module_input_name", "module_output_name"):
        if config.get(field, _SENTENCE_EMBEDDING) not in (_SENTENCE_EMBEDDING, None):
            raise not_a_sentence_encoder(
                file.parent.parent, f"{_MULTI_VECTOR} ({file}: {field} is {config[field]!r})"
            )
    if class_name == NORMALIZE:
        return Normalize()
    for field in ("in_features", "out_features"):
        size = config.get(field)
        if type(size) is not int or not 1 <= size <= LARGEST_EMBEDDING:
            raise UserError(f"{file}: {field} is {size!r}, expected a size such as 768")
    if config.get("use_residual"):
        raise UserError(
            f"{file}: use_residual is true; dense layers with a residual are not supported"
        )
    # `Dense` of sentence-transformers has this default.
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"{file}: activation_function is {activation!r}, expected one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return Dense(
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=bool(config.get("bias", True)),
        activation=_ACTIVATIONS[activation],
    )


def module_to_json(module: SentenceModule) -> dict[str, Any]:
    """Returns the config of a module.

    Raises:
      UserError: sentence-transformers has no name for its activation.
    """
    match module:
        case Normalize():
            return {}
        case Dense():
            for name, activation in _ACTIVATIONS.items():
                if activation == module.activation:
                    return {
                        "in_features": module.in_features,
                        "out_features": module.out_features,
                        "bias": module.bias,
                        "activation_function": name,
                    }
            raise UserError(
                f"the activation {module.activation!r} of a dense layer has no name "
                "in folders of sentence-transformers"
            )


def modules_to_json(modules: tuple[SentenceModule, ...]) -> list[dict[str, Any]]:
    """Returns modules.json for an encoder in the folder itself, pooling and these modules."""
    names = [("", TRANSFORMER), (POOLING_FOLDER, POOLING)]
    names += [
        (module_folder(index, module), type(module).__name__)
        for index, module in enumerate(modules)
    ]
    return [
        {"idx": index, "name": str(index), "path": path, "type": f"{_OLD_PACKAGE}.{class_name}"}
        for index, (path, class_name) in enumerate(names)
    ]


def module_folder(index: int, module: SentenceModule) -> str:
    """Returns the folder of a module after the pooling, such as "2_Dense" for the first one."""
    return f"{index + 2}_{type(module).__name__}"


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
    return folder / read_modules(folder)[0].path


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
    model_config = _read_if_there(folder / MODEL_CONFIG)
    check_model_type(folder, model_config)
    entries = read_modules(folder)
    pooling, include_prompt = _read_pooling(folder, entries, hidden_size)
    modules: list[SentenceModule] = []
    params: dict[str, np.ndarray] = {}
    for entry in entries[1:]:
        if entry.class_name == POOLING:
            continue
        file = folder / entry.path / _CONFIG
        module = module_from_json(entry.class_name, _read_if_there(file), file)
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
    return pooling_from_json(read_json_object(file), file, hidden_size)


def _read_dense(folder: Path, module: Dense, path: str) -> dict[str, np.ndarray]:
    """Returns the parameters of a dense layer by path, after checking their shapes."""
    file = find_weights(folder)
    tensors = read_weights(file)
    expected: dict[str, tuple[int, ...]] = {
        "linear.weight": (module.out_features, module.in_features)
    }
    if module.bias:
        expected["linear.bias"] = (module.out_features,)
    # All names and shapes at once, so that a superfluous tensor is an error too.
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != expected:
        raise UserError(
            f"{file}: has the tensors {shapes}, but {_CONFIG} beside it describes {expected}; use "
            "the files that were saved together"
        )
    for name, tensor in tensors.items():
        check_floating_point(tensor, name, str(file))
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
        # The flag changes nothing if the tokenizer lowers the case itself.
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
    """Writes all files but the encoder's and the tokenizer's into an existing folder.

    Args:
      hidden_size: D of the encoder.
      max_length: the longest length of the encoder, in tokens.

    Raises:
      UserError: the config has something for which sentence-transformers has no name.
    """
    config, params = head
    modules = modules_to_json(config.modules)
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
    pooling = pooling_to_json(config.pooling, config.include_prompt, hidden_size)
    files: dict[str, Any] = {
        MODULES: modules,
        MODEL_CONFIG: model_config,
        # Lower case is a rule of the tokenizer here, and its own files have it.
        TRANSFORMER_CONFIG: {"max_seq_length": length, "do_lower_case": False},
        f"{POOLING_FOLDER}/{_CONFIG}": pooling,
    }
    dense_index = 0
    for index, module in enumerate(config.modules):
        name = module_folder(index, module)
        files[f"{name}/{_CONFIG}"] = module_to_json(module)
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
