"""Finds the layers of a Hugging Face model by name, and selects them as peft's configs do.

peft names a layer by its module in PyTorch, such as "bert.encoder.layer.0.attention.self.query". A
list of targets selects the modules whose names end with one of them, a string is a regular
expression of whole names.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import TaskHead
from bert_jax.models.huggingface import format_of
from bert_jax.models.parameters import expected_parameters


class ModuleNames:
    """Maps the modules of an encoder with a task head to those of Hugging Face's class.

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
            # In their order in the tensor, not in that of `shapes`.
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
    """Returns ends of names that select exactly `selected` out of `candidates`, sorted."""
    selected_names, suffixes = set(selected), set[str]()
    for name in selected_names:
        segments = name.split(separator)
        for start in range(len(segments) - 1, -1, -1):
            suffix = separator.join(segments[start:])
            if all(
                each in selected_names for each in candidates if ends_with(each, suffix, separator)
            ):
                suffixes.add(suffix)
                break
    return sorted(suffixes)


def ends_with(name: str, suffix: str, separator: str = ".") -> bool:
    """Returns whether the last segments of a name are those of `suffix`."""
    return name == suffix or name.endswith(f"{separator}{suffix}")


def is_saved(module: str, modules_to_save: Iterable[str]) -> bool:
    """Returns whether peft saves a module completely: it or one around it has such an end."""
    parents = module.split(".")
    names = [".".join(parents[: end + 1]) for end in range(len(parents))]
    return any(name.endswith(ending) for name in names for ending in modules_to_save)


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
    patterns = data.get("layers_pattern") or [r"[^.]*"]
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if match := re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", name):
            return int(match[1]) in ([layers] if isinstance(layers, int) else layers)
    return False
