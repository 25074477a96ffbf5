"""Converts LoRA and DoRA to and from peft, and matches peft's target names to layers.

peft names a layer by its module in PyTorch, such as "bert.encoder.layer.0.attention.self.query". A
list of targets selects modules by the ends of their names; a string is a regular expression that
must match the whole name.

peft's matrices are as in PyTorch: lora_A is [R, in] and lora_B [out, R]. One tensor of Hugging
Face may join several of our layers, such as ModernBERT's query, key and value. Then lora_A stacks
their matrices A, and lora_B is zero where an A does not belong to an output; on import, each layer
gets the whole lora_A and its rows of lora_B.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.peft.adapter_config import AdapterConfig
from bert_jax.models.adapters.config import DoRA, LoRA
from bert_jax.models.adapters.modules import WORD_EMBEDDINGS
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import format_of
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.parameters import expected_parameters
from bert_jax.params.paths import LAYER_PREFIX


class ModuleNames:
    """Maps the modules of an encoder with a task head to modules of Hugging Face's class.

    Attributes:
      shapes: shape and dtype of every parameter by path, as `build_network` has them.
      table: the family's table of tensor names.
    """

    def __init__(self, config: EncoderConfig, head: TaskHead | None):
        family_format = format_of(config)
        self.table = family_format.names(config, head)
        self._canonical = family_format.canonical
        parts = frozenset(config.pretraining_heads) & {"pooler"} if head is None else frozenset()
        self.shapes: dict[str, Any] = expected_parameters(frozenset(parts), config, head)
        self._tensors = {path: self.table.external_name(path) for path in self.shapes}
        self._paths: dict[str, list[str]] = {}
        for tensor in self.tensors:
            # In their order in the tensor, not in the order of `shapes`.
            modules = [path.rpartition("/")[0] for path in self.table.internal_paths(tensor)]
            self._paths.setdefault(tensor.rpartition(".")[0], modules)

    @property
    def modules(self) -> list[str]:
        """Returns the names of all modules that have parameters."""
        return list(self._paths)

    @property
    def tensors(self) -> list[str]:
        """Returns the names of all tensors, without duplicates."""
        return list(dict.fromkeys(self._tensors.values()))

    def module(self, path: str) -> str:
        """Returns the name of the module at one of our paths."""
        leaf = next(name for name in ("kernel", "embedding", "scale") if self.has(path, name))
        return self._tensors[f"{path}/{leaf}"].rpartition(".")[0]

    def paths(self, module: str) -> list[str]:
        """Returns our paths of a module: several if Hugging Face joins layers, [] if unknown."""
        return self._paths.get(module, [])

    def has(self, path: str, leaf: str) -> bool:
        """Returns whether the module at one of our paths has a parameter of this name."""
        return f"{path}/{leaf}" in self.shapes

    def canonical(self, name: str) -> str:
        """Returns the name of a tensor with the prefix that files of the bare encoder lack."""
        return self._canonical(name)

    def part(self, path: str) -> str:
        """Returns the child of the task model that has a parameter, such as "pooler".

        The first segment of the encoder's names, such as "bert", is no child.
        """
        encoder = self._tensors["encoder/embeddings/word_embeddings/embedding"].split(".")[0]
        return self._tensors[path].removeprefix(f"{encoder}.").split(".")[0]


def distinct_suffixes(
    selected: Iterable[str], candidates: Sequence[str], separator: str
) -> list[str]:
    """Returns ends of names that select `selected` out of `candidates`, sorted.

    A name of which every end selects other candidates too is left out.
    """
    selected_names, suffixes = set(selected), set[str]()
    for name in selected_names:
        segments = name.split(separator)
        # The shortest end that selects no other module, as users write it: "query" and not a full
        # path.
        for start in range(len(segments) - 1, -1, -1):
            suffix = separator.join(segments[start:])
            if all(
                each in selected_names for each in candidates if ends_with(each, suffix, separator)
            ):
                suffixes.add(suffix)
                break
    return sorted(suffixes)


def ends_with(name: str, suffix: str, separator: str = ".") -> bool:
    """Returns whether a name ends with the segments of `suffix`."""
    return name == suffix or name.endswith(f"{separator}{suffix}")


def is_saved(module: str, modules_to_save: Iterable[str]) -> bool:
    """Returns whether peft saves a module completely: it or one around it has such an end."""
    parents = module.split(".")
    names = [".".join(parents[: end + 1]) for end in range(len(parents))]
    # peft compares strings here, not segments, so "classifier" also matches "my_classifier".
    return any(name.endswith(ending) for name in names for ending in modules_to_save)


# The tensors decide which layers are adapted; `target_modules` must select exactly these.
def select_modules(data: dict[str, Any], modules: Iterable[str], file: str) -> list[str]:
    """Returns the modules that the targets in a peft config select.

    Raises:
      UserError: the targets are neither a regular expression nor a list of names.
    """
    targets, excluded = data.get("target_modules"), data.get("exclude_modules") or []
    for field, value in (("target_modules", targets), ("exclude_modules", excluded)):
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(each, str) for each in value)
        ):
            raise UserError(
                f"{file}: {field} is {value!r}; expected a list of names of layers, or a regular "
                "expression as a string"
            )
    try:
        return [
            name
            for name in modules
            if _is_selected(name, targets)
            and not _is_selected(name, excluded)
            and not is_saved(name, data.get("modules_to_save") or ())
            and (isinstance(targets, str) or _is_in_layers(name, data))
        ]
    except re.error as error:
        raise UserError(f"{file}: {error.pattern!r} is not a regular expression: {error}") from None


def _is_selected(name: str, targets: Any) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(ends_with(name, target) for target in targets)


def _is_in_layers(name: str, data: dict[str, Any]) -> bool:
    """Returns whether a module is in one of the layers of `layers_to_transform`."""
    layers = data.get("layers_to_transform")
    if layers is None or layers == []:
        return True
    # Without a pattern, peft takes the first number in the name as the layer.
    patterns = data.get("layers_pattern") or [r"[^.]*"]
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if match := re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", name):
            return int(match[1]) in ([layers] if isinstance(layers, int) else layers)
    return False


Modules = Mapping[str, Mapping[str, np.ndarray]]
"""Parameters of several modules: by the path or name of the module, and by their own name."""

MATRICES = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")
EMBEDDING_MATRICES = ("lora_embedding_A", "lora_embedding_B")

_UNSUPPORTED = (
    *("bias", "lora_bias", "use_qalora", "use_bdlora", "layer_replication", "target_parameters"),
    *("trainable_token_indices", "alora_invocation_tokens", "arrow_config", "kasa_config"),
    *("monteclora_config", "megatron_config"),
)
"""Fields that change what is computed, and are not supported unless they have no value."""
_INITIALIZATIONS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Ways of initializing the matrices that do not change the base, unlike PiSSA, OLoRA or LoftQ."""


def lora_to_peft(
    method: LoRA, adapter: Modules, names: ModuleNames
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the fields of adapter_config.json and the tensors without their prefix.

    Raises:
      UserError: DoRA adapts only a part of a layer that Hugging Face has as one.
    """
    tensors: dict[str, np.ndarray] = {}
    by_module: dict[str, list[str]] = {}
    for path in adapter:
        by_module.setdefault(names.module(path), []).append(path)
    num_joined = {module: len(paths) for module, paths in by_module.items()}
    for module, paths in by_module.items():
        for name, tensor in _module_to_peft(module, paths, adapter, names).items():
            tensors[f"{module}.{name}"] = tensor
    fields: dict[str, Any] = {
        "r": method.rank,
        "lora_alpha": _whole(method.alpha),
        "lora_dropout": method.dropout,
        "target_modules": distinct_suffixes(by_module, names.modules, "."),
        "use_rslora": method.scaling == "alpha_over_sqrt_rank",
        "use_dora": isinstance(method, DoRA),
        "rank_pattern": {},
        "alpha_pattern": {},
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "layers_pattern": None,
    }
    for module, count in num_joined.items():
        if count > 1:
            # The joined matrix has a larger rank, by which peft divides alpha. A larger alpha keeps
            # the scale.
            factor = count**0.5 if fields["use_rslora"] else count
            # Keys of patterns are regular expressions, in which the dots of a name match any
            # character.
            fields["rank_pattern"][re.escape(module)] = method.rank * count
            fields["alpha_pattern"][re.escape(module)] = _whole(method.alpha * factor)
    return fields, tensors


def _whole(number: float) -> float:
    """Returns an int where a number has no fraction, as peft writes it."""
    return int(number) if number == int(number) else number


# A tensor of Hugging Face that holds several of our layers (ModernBERT's `Wqkv`) gets one block of
# rows of lora_A for each adapted layer, and a rank of its own in `rank_pattern`. Layers of
# different rank or alpha are padded to one rank, which leaves the product as it is.
def _module_to_peft(
    module: str, adapted: Sequence[str], adapter: Modules, names: ModuleNames
) -> dict[str, np.ndarray]:
    first = adapter[adapted[0]]
    if "lora_embedding_a" in first:
        matrices = (first["lora_embedding_a"].T, first["lora_embedding_b"].T)
        return dict(zip(EMBEDDING_MATRICES, matrices, strict=True))
    paths = names.paths(module)  # all layers that the tensor has, in order
    rank, start, rows = first["lora_a"].shape[1], 0, list[np.ndarray]()
    for path in paths:
        outputs = names.shapes[f"{path}/kernel"].shape[1]
        row = np.zeros((outputs, rank * len(adapted)), np.float32)
        if path in adapted:
            row[:, start : start + rank] = adapter[path]["lora_b"].T
            start += rank
        rows.append(row)
    tensors = [
        np.concatenate([adapter[path]["lora_a"].T for path in paths if path in adapted]),
        np.concatenate(rows),
    ]
    if "magnitude" in first:
        if len(adapted) < len(paths):
            raise UserError(
                f"DoRA adapts {', '.join(adapted)}, but Hugging Face's {module} also has "
                f"{', '.join(path for path in paths if path not in adapted)}, and peft adapts it "
                "as a whole; export the merged model instead, without --adapter"
            )
        tensors.append(np.concatenate([adapter[path]["magnitude"] for path in paths]))
    return dict(zip(MATRICES, tensors, strict=False))


def lora_from_peft(
    config: AdapterConfig, tensors: Modules, names: ModuleNames
) -> tuple[LoRA, dict[str, np.ndarray]]:
    """Returns the method, and the adapter's parameters by path.

    Matrices of different ranks or scales are brought to the largest rank and one scale, by zeros
    and by scaling B, which does not change their product.

    Args:
      tensors: by name of the module, and by their own name.

    Raises:
      UserError: a setting is not supported; matrices are missing or have another shape.
    """
    data, file = config.data, config.file
    _check_supported(data, file)
    _check_complete(config, tensors, names)
    ranks = {m: _setting(data, "r", "rank_pattern", m, file) for m in tensors}
    alphas = {m: _setting(data, "lora_alpha", "alpha_pattern", m, file) for m in tensors}
    largest = max(ranks, key=lambda module: ranks[module])
    is_dora = bool(data.get("use_dora"))
    paths = [path for module in tensors for path in names.paths(module)]
    try:
        method = (DoRA if is_dora else LoRA)(
            rank=int(ranks[largest]),
            alpha=float(alphas[largest]),
            dropout=data.get("lora_dropout", 0.0),
            targets=_targets(paths, names),
            scaling="alpha_over_sqrt_rank" if data.get("use_rslora") else "alpha_over_rank",
        )
    except (ConfigError, TypeError) as error:
        raise UserError(f"{file}: {error}") from None
    adapter: dict[str, np.ndarray] = {}
    for module, leaves in tensors.items():
        power = 0.5 if data.get("use_rslora") else 1.0
        factor = alphas[module] / ranks[module] ** power / method.scale
        adapter |= _module_from_peft(module, leaves, int(ranks[module]), names, file, is_dora)
        for path in names.paths(module):
            for name in ("lora_a", "lora_b", "lora_embedding_a", "lora_embedding_b"):
                if (matrix := adapter.get(f"{path}/{name}")) is not None:
                    axis = 1 if name.endswith("_a") else 0
                    padding = [(0, 0), (0, 0)]
                    padding[axis] = (0, method.rank - matrix.shape[axis])
                    if name.endswith("_b") and factor != 1.0:
                        matrix = matrix * np.float32(factor)
                    adapter[f"{path}/{name}"] = np.pad(matrix, padding)
    return method, adapter


def _check_supported(data: Mapping[str, Any], file: str) -> None:
    for field in _UNSUPPORTED:
        if data.get(field) not in (None, False, "none", [], {}):
            raise UserError(
                f"{file}: {field} is {data[field]!r}, which is not supported; expected an adapter "
                "trained without it, or merge it with peft's merge_and_unload and give the merged "
                "model"
            )
    if data.get("init_lora_weights", True) not in _INITIALIZATIONS:
        raise UserError(
            f"{file}: init_lora_weights is {data['init_lora_weights']!r}, which changes the "
            "weights of the base; convert it with save_pretrained(..., "
            "path_initial_model_for_weight_conversion=...) of peft"
        )


def _check_complete(config: AdapterConfig, tensors: Modules, names: ModuleNames) -> None:
    """Raises UserError unless every selected layer has its matrices, and no other layer has any."""
    tables = {names.module(WORD_EMBEDDINGS)}
    dense = [m for m in names.modules if all(names.has(p, "kernel") for p in names.paths(m))]
    candidates = [*dense, *tables]
    if config.data.get("target_modules") == "all-linear":
        config.data["target_modules"] = dense
    selected = select_modules(config.data, candidates, config.file)
    if not tensors:
        raise UserError(f"{config.file}: there are no tensors lora_A and lora_B in the folder")
    for module in selected:
        expected = EMBEDDING_MATRICES if module in tables else MATRICES[:2]
        if config.data.get("use_dora"):
            expected = (*expected[:2], MATRICES[2])
        # Config and tensors are compared in both directions: a layer without its matrices would
        # silently be the base, and matrices without a layer would silently be ignored.
        for name in expected:
            if name not in tensors.get(module, {}):
                raise UserError(
                    f"{config.file}: target_modules selects {module}, but the tensor "
                    f"{module}.{name} is missing; save the adapter again"
                )
    for module, leaves in tensors.items():
        expected = EMBEDDING_MATRICES if module in tables else MATRICES
        known = expected if config.data.get("use_dora") else expected[:2]
        if unused := sorted(leaves.keys() - set(known) if module in selected else leaves):
            raise UserError(
                f"{config.file}: the tensor {module}.{unused[0]} is not used: target_modules is "
                f"{config.data['target_modules']!r} and use_dora is "
                f"{bool(config.data.get('use_dora'))}; use the config that was saved with it"
            )


def _setting(
    data: Mapping[str, Any], field: str, pattern_field: str, module: str, file: str
) -> float:
    """Returns the rank or alpha of one layer, as peft finds it in the pattern of the field."""
    # 8 is the default of peft for both the rank and alpha.
    default, patterns = data.get(field, 8), data.get(pattern_field) or {}
    try:
        value = next(
            (v for key, v in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default
        )
    except re.error as error:
        raise UserError(f"{file}: {pattern_field} has {error.pattern!r}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UserError(
            f"{file}: {field} of {module} is {value!r}; expected a number above 0 (see {field} and "
            f"{pattern_field})"
        )
    return value


def _module_from_peft(
    module: str,
    leaves: Mapping[str, np.ndarray],
    rank: int,
    names: ModuleNames,
    file: str,
    is_dora: bool,
) -> dict[str, np.ndarray]:
    """Returns the parameters of the adapter of one module by path; checks their shapes."""
    paths = names.paths(module)
    expected: dict[str, tuple[int, ...]]
    if EMBEDDING_MATRICES[0] in leaves:
        rows, columns = names.shapes[f"{paths[0]}/embedding"].shape
        expected = {EMBEDDING_MATRICES[0]: (rank, rows), EMBEDDING_MATRICES[1]: (columns, rank)}
    else:
        rows = names.shapes[f"{paths[0]}/kernel"].shape[0]
        sizes = [names.shapes[f"{path}/kernel"].shape[1] for path in paths]
        columns = sum(sizes)
        expected = {MATRICES[0]: (rank, rows), MATRICES[1]: (columns, rank)}
        if is_dora:
            expected[MATRICES[2]] = (columns,)
    for name, shape in expected.items():
        if leaves[name].shape != shape:
            raise UserError(
                f"{file}: the tensor {module}.{name} has shape {list(leaves[name].shape)}, but the "
                f"rank in the config and the layer of the base need {list(shape)}; give the base "
                "that the adapter was trained on"
            )
    if EMBEDDING_MATRICES[0] in leaves:
        a, b = (leaves[name].T for name in EMBEDDING_MATRICES)
        return {f"{paths[0]}/lora_embedding_a": a, f"{paths[0]}/lora_embedding_b": b}
    ends = np.cumsum([names.shapes[f"{path}/kernel"].shape[1] for path in paths])[:-1]
    found: dict[str, np.ndarray] = {}
    for path, b in zip(paths, np.split(leaves[MATRICES[1]].T, ends, axis=1), strict=True):
        found |= {f"{path}/lora_a": leaves[MATRICES[0]].T, f"{path}/lora_b": b}
    if is_dora:
        for path, part in zip(paths, np.split(leaves[MATRICES[2]], ends), strict=True):
            found[f"{path}/magnitude"] = part
    return found


def _targets(paths: Sequence[str], names: ModuleNames) -> tuple[str, ...]:
    """Returns the targets of `LoRA` that select these layers of the encoder."""
    modules = dict.fromkeys(path.rpartition("/")[0] for path in names.shapes)
    candidates = [
        path
        for path in modules
        if path == WORD_EMBEDDINGS or (LAYER_PREFIX.match(path) and names.has(path, "kernel"))
    ]
    selected = [path for path in paths if path in candidates]
    return tuple(distinct_suffixes(selected, candidates, "/")) or ("query",)
