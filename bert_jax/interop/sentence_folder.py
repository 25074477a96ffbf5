"""Reads and writes what all folders of sentence-transformers share. Imports no jax.

modules.json                        the modules and their folders
config_sentence_transformers.json   the kind of model, prompts, similarity
sentence_bert_config.json           max_seq_length
1_Dense/config.json, model.safetensors
router_config.json                  modules for queries and for documents, in place of one sequence

The encoder and the tokenizer are a Hugging Face folder: this one, or that of the first module.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.interop.weight_files import WEIGHTS, find_weights, read_weights
from bert_jax.io.json_io import format_json, read_json, read_json_object
from bert_jax.models.layers.config import Activation
from bert_jax.models.sentence_encoder.config import (
    LARGEST_EMBEDDING,
    Dense,
    Normalize,
    Prompt,
    SentenceModule,
)
from bert_jax.params.name_table import check_floating_point
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer

MODULES, ROUTER_CONFIG, CONFIG = "modules.json", "router_config.json", "config.json"
TRANSFORMER, DENSE, NORMALIZE = "Transformer", "Dense", "Normalize"
PACKAGE, OLD_PACKAGE = "sentence_transformers", "sentence_transformers.models"
_ROUTERS = ("Router", "Asym")

MODEL_CONFIG = "config_sentence_transformers.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
_TRANSFORMER_CONFIGS = (
    TRANSFORMER_CONFIG,
    *(
        f"sentence_{family}_config.json"
        for family in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
WRITTEN_VERSIONS = {"sentence_transformers": "3.0.0", "transformers": "4.41.0", "pytorch": "2.3.0"}
"""Old versions that read what is written here: newer ones warn if a folder is newer than they."""


_ACTIVATIONS: dict[str, Activation | None] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.linear.Identity": None,
}

EmbeddingKind = Literal["dense", "sparse", "multi_vector"]

_SPARSE = "a sparse model (SPLADE), whose vectors have a component for each token of the vocabulary"
_MULTI_VECTOR = "a multi-vector model (ColBERT), which has a vector for each token"
_KINDS: dict[str, EmbeddingKind] = {
    "SparseEncoder": "sparse",
    "MultiVectorEncoder": "multi_vector",
    "ColBERT": "multi_vector",  # PyLate
}
"""Values of `model_type` in config_sentence_transformers.json; any other one is dense."""
_SPARSE_CLASSES = ("MLMTransformer", "SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding")


class ModuleEntry(NamedTuple):
    """Holds a module: its class, with the package apart, and its folder's path."""

    package: str
    class_name: str
    path: str

    @property
    def kind(self) -> EmbeddingKind:
        """Returns the kind of model that has such a module; "dense" for modules of all kinds."""
        if "sparse_encoder" in self.package or self.class_name in _SPARSE_CLASSES:
            return "sparse"
        if "multi_vector" in self.package or self.package.startswith("pylate"):
            return "multi_vector"
        return "dense"


def is_sentence_folder(folder: Path) -> bool:
    """Returns whether a folder is one of sentence-transformers."""
    return (folder / MODULES).is_file()


def kind_of_folder(folder: Path) -> EmbeddingKind:
    """Returns the kind of model in a folder of sentence-transformers.

    Raises:
      UserError: modules.json or the model's config is damaged, or it is a cross-encoder.
    """
    model_type = str(read_if_there(folder / MODEL_CONFIG).get("model_type"))
    if model_type == "CrossEncoder":
        raise UserError(
            f"{folder} is a cross-encoder, which scores pairs of texts and has no vectors; "
            "expected a sentence encoder, a sparse or a multi-vector model"
        )
    if kind := _KINDS.get(model_type):
        return kind
    for module in read_modules(folder):
        if module.kind != "dense":
            return module.kind
    return "dense"


def other_kind(folder: Path, kind: EmbeddingKind, expected: EmbeddingKind) -> UserError:
    """Returns the error for a folder of another kind of model than the one that is needed."""
    kinds = {
        "dense": "a sentence encoder, which has one dense vector for each text",
        "sparse": _SPARSE,
        "multi_vector": _MULTI_VECTOR,
    }
    return UserError(f"{folder} is {kinds[kind]}; expected {kinds[expected]}")


def read_modules(folder: Path) -> list[ModuleEntry]:
    """Reads modules.json.

    Raises:
      UserError: it is damaged, or a path leads out of the folder.
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
        modules.append(_module_entry(file, f"module {index}", module_type, path))
    return modules


def _module_entry(file: Path, name: str, module_type: str, path: str) -> ModuleEntry:
    # A folder may be downloaded; it must not make us read files elsewhere on the machine.
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise UserError(f"{file}: the path of {name} is {path!r}, outside the folder")
    package, _, class_name = module_type.rpartition(".")
    return ModuleEntry(package, class_name, path)


def is_router(module: ModuleEntry) -> bool:
    """Returns whether a module has other modules for queries and for documents."""
    return module.class_name in _ROUTERS


def read_routes(folder: Path) -> dict[str, list[ModuleEntry]]:
    """Reads the modules of the routes "query" and "document" of a `Router`.

    Raises:
      UserError: the config is absent or damaged, has other routes, or a path leads out of the
        folder.
    """
    file = folder / ROUTER_CONFIG
    # Until version 4 the class was `Asym`, with another file name.
    file = file if file.is_file() else folder / CONFIG
    data = read_json_object(file)
    types, structure = data.get("types"), data.get("structure")
    if not isinstance(types, dict) or not isinstance(structure, dict):
        raise UserError(f'{file}: expected the objects "types" and "structure" of a Router')
    routes: dict[str, list[ModuleEntry]] = {}
    for route, names in structure.items():
        if not isinstance(names, list) or not names:
            raise UserError(f"{file}: the route {route!r} is {names!r:.60}, expected modules")
        routes[route] = []
        for name in names:
            if not isinstance(types.get(name), str):
                raise UserError(f'{file}: "types" has no class for the module {name!r:.60}')
            routes[route].append(_module_entry(file, repr(name), types[name], name))
    if sorted(routes) != ["document", "query"]:
        raise UserError(
            f"{file}: the routes are {', '.join(sorted(routes))}; expected query and document"
        )
    return routes


def transformer_folder(folder: Path) -> Path:
    """Returns the folder with the encoder; with a `Router`, that of documents.

    It is `folder` itself, except in old models and with a `Router`.
    """
    if not is_sentence_folder(folder):
        return folder
    if (folder / CONFIG).is_file() and "structure" not in read_json_object(folder / CONFIG):
        return folder
    module = read_modules(folder)[0]
    if not is_router(module):
        return folder / module.path
    return folder / module.path / read_routes(folder / module.path)["document"][0].path


def module_from_json(class_name: str, config: Mapping[str, Any], file: Path) -> SentenceModule:
    """Returns the config of a dense layer or a normalization.

    Raises:
      UserError: an option is not supported, or a size is not a number.
    """
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
            f"{file}: has the tensors {shapes}, but {CONFIG} beside it describes {expected}; use "
            "the files that were saved together"
        )
    for name, tensor in tensors.items():
        check_floating_point(tensor, name, str(file))
    params = {f"{path}/kernel": np.asarray(tensors["linear.weight"].T, np.float32)}
    if module.bias:
        params[f"{path}/bias"] = np.asarray(tensors["linear.bias"], np.float32)
    return params


def read_vector_modules(
    folder: Path, entries: Sequence[ModuleEntry]
) -> tuple[tuple[SentenceModule, ...], dict[str, np.ndarray]]:
    """Reads dense layers and normalizations, and their parameters by path, such as "dense/0/bias".

    Raises:
      UserError: a file is damaged, or an option is not supported.
    """
    modules: list[SentenceModule] = []
    params: dict[str, np.ndarray] = {}
    for entry in entries:
        file = folder / entry.path / CONFIG
        module = module_from_json(entry.class_name, read_if_there(file), file)
        if isinstance(module, Dense):
            index = sum(isinstance(other, Dense) for other in modules)
            params |= _read_dense(file.parent, module, f"dense/{index}")
        modules.append(module)
    return tuple(modules), params


def write_vector_modules(
    folder: Path,
    modules: Sequence[tuple[str, SentenceModule]],
    params: Mapping[str, np.ndarray],
) -> dict[str, dict[str, Any]]:
    """Writes the weights of dense layers into new folders; returns the configs of all by path.

    Args:
      modules: (name of the folder, module), in order.
      params: parameters by path.
    """
    files: dict[str, dict[str, Any]] = {}
    dense = itertools.count()
    for name, module in modules:
        files[f"{name}/{CONFIG}"] = module_to_json(module)
        if isinstance(module, Dense):
            path = f"dense/{next(dense)}"
            tensors = {"linear.weight": np.ascontiguousarray(params[f"{path}/kernel"].T)}
            if module.bias:
                tensors["linear.bias"] = np.ascontiguousarray(params[f"{path}/bias"])
            (folder / name).mkdir()
            save_file(tensors, folder / name / WEIGHTS, metadata={"format": "pt"})
    return files


def write_json_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Writes JSON files by their paths in a folder, whose own folders are made."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(format_json(content), "utf-8")


def modules_to_json(modules: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Returns modules.json for (path, full name of the class) of each module."""
    return [
        {"idx": index, "name": str(index), "path": path, "type": module_type}
        for index, (path, module_type) in enumerate(modules)
    ]


def read_max_seq_length(
    folder: Path, tokenizer: Tokenizer | None, task: str = "feature-extraction"
) -> int | None:
    """Reads how many tokens of a text are read; None if no file limits them.

    Args:
      task: what the encoder must compute: "fill-mask" for the logits of sparse models.

    Raises:
      UserError: the file is damaged, or the encoder computes something else.
    """
    config, file = read_transformer_config(folder)
    found = config.get("transformer_task", task)
    if found != task:
        raise UserError(
            f"{file}: transformer_task is {found!r}; expected {task!r}, the task of such a model"
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
        length = read_if_there(folder / TOKENIZER_CONFIG_FILE).get("model_max_length")
        # Hugging Face writes 10^30 for a tokenizer without a limit.
        return length if type(length) is int and length < 2**24 else None
    if type(length) is not int or length < 3:
        raise UserError(f"{file}: max_seq_length is {length!r}, expected a number of at least 3")
    return length


def read_transformer_config(folder: Path) -> tuple[dict[str, Any], Path]:
    """Reads how the encoder is given texts; returns the config and its file."""
    configs = (folder / name for name in _TRANSFORMER_CONFIGS)
    file = next((file for file in configs if file.is_file()), folder / TRANSFORMER_CONFIG)
    return read_if_there(file), file


def read_prompts(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Returns the fields of `TextEncoderConfig` that config_sentence_transformers.json has."""
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
    return {
        "prompts": tuple(Prompt(name=name, text=text or "") for name, text in prompts.items()),
        "default_prompt_name": default,
    }


def read_choice(config: Mapping[str, Any], field: str, choices: Sequence[Any], file: Path) -> Any:
    """Returns the value of a field, or the first choice; UserError for any other value."""
    value = config.get(field) or choices[0]
    if value not in choices:
        raise UserError(
            f"{file}: {field} is {value!r}, expected one of {', '.join(map(str, choices))}"
        )
    return value


def read_size(config: Mapping[str, Any], field: str, file: Path) -> int | None:
    """Returns a number above 0, or None if it is absent; UserError for any other value."""
    value = config.get(field)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"{file}: {field} is {value!r}, expected a number above 0")
    return value


def read_if_there(file: Path) -> dict[str, Any]:
    """Reads a JSON object; {} without the file."""
    return read_json_object(file) if file.is_file() else {}
