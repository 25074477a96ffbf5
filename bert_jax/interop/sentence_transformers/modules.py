"""Converts modules of sentence-transformers from and to their JSON configs. Imports no jax.

Folders have one of two spellings, and both are read. Written is the old one, which every version of
sentence-transformers and other servers read:

                    until 5.3                                  since 5.4
    type            sentence_transformers.models.Pooling       sentence_transformers.
                                                               sentence_transformer.modules.
                                                               pooling.Pooling
    size            word_embedding_dimension                   embedding_dimension
    pooling         pooling_mode_mean_tokens: true, ...        pooling_mode: "mean" or a list
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.json_io import read_json
from bert_jax.models.layers.config import Activation, Gelu, Relu, Silu, Tanh
from bert_jax.models.sentence_encoder.config import (
    LARGEST_EMBEDDING,
    POOLING_MODES,
    Dense,
    Normalize,
    PoolingMode,
    SentenceModule,
)

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
    "torch.nn.modules.activation.Tanh": Tanh(),
    "torch.nn.modules.activation.ReLU": Relu(),
    "torch.nn.modules.activation.GELU": Gelu(),
    "torch.nn.modules.activation.SiLU": Silu(),
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
                f"the activation {type(module.activation).__name__} of a dense layer has no name "
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
