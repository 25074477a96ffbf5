"""Converts IA3, prompt tuning, prefix tuning and LayerNorm tuning to peft's format, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.peft.adapter_config import AdapterConfig
from bert_jax.interop.peft.lora import ModuleNames, Modules, distinct_suffixes, select_modules
from bert_jax.models.adapters.config import (
    IA3,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.adapters.modules import WORD_EMBEDDINGS, group_by_module
from bert_jax.models.adapters.network import implementation
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import format_of
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.params import paths

PROMPT = "prompt_embeddings"
IA3_VECTOR = "ia3_l"
NORM_WEIGHTS = "ln_tuning_layers"


def ia3_to_peft(
    adapter: Modules, names: ModuleNames
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the fields of adapter_config.json and the tensors without their prefix.

    Raises:
      UserError: Hugging Face has several layers as one.
    """
    tensors, feed_forward = dict[str, np.ndarray](), list[str]()
    for path, leaves in adapter.items():
        module = names.module(path)
        if len(names.paths(module)) > 1:
            raise UserError(
                f"Hugging Face's {module} has several layers as one, and peft scales it as a "
                "whole, so IA3 cannot be exported; export the merged model instead, without "
                "--adapter"
            )
        scales_input = _scales_input(path)
        if scales_input:
            feed_forward.append(module)
        tensors[f"{module}.{IA3_VECTOR}"] = leaves["ia3"].reshape(
            # peft multiplies the input of a feed-forward layer by a row, and the output of others
            # by a column.
            (1, -1) if scales_input else (-1, 1)
        )
    adapted = [name.rpartition(".")[0] for name in tensors]
    # peft requires that the feed-forward modules are among the targets.
    feed_forward_targets = distinct_suffixes(feed_forward, names.modules, ".")
    others = [module for module in adapted if module not in feed_forward]
    fields = {
        "target_modules": [
            *distinct_suffixes(others, names.modules, "."),
            *feed_forward_targets,
        ],
        "feedforward_modules": feed_forward_targets,
        "fan_in_fan_out": False,
        "init_ia3_weights": True,
    }
    return fields, tensors


def _scales_input(path: str) -> bool:
    return path.endswith("/output")


def ia3_from_peft(
    config: AdapterConfig, tensors: Modules, names: ModuleNames, model: EncoderConfig
) -> tuple[IA3, dict[str, np.ndarray]]:
    """Returns the method, and the adapter's parameters by path.

    Raises:
      UserError: tensors are missing or of another shape, or the selection is neither the paper's
        nor peft's.
    """
    file, adapter = config.file, dict[str, np.ndarray]()
    dense = [m for m in names.modules if all(names.has(p, "kernel") for p in names.paths(m))]
    for module in select_modules(config.data, dense, file):
        if IA3_VECTOR not in tensors.get(module, {}):
            raise UserError(
                f"{file}: target_modules selects {module}, but the tensor {module}.{IA3_VECTOR} "
                "is missing; save the adapter again"
            )
    for module, leaves in tensors.items():
        vector, layers = leaves[IA3_VECTOR], names.paths(module)
        if len(layers) > 1:
            raise UserError(
                f"{file}: {module} has several layers of this package as one, which IA3 cannot "
                "scale; merge the adapter with peft's merge_and_unload and give the merged model"
            )
        rows, columns = names.shapes[f"{layers[0]}/kernel"].shape
        expected = (1, rows) if _scales_input(layers[0]) else (columns, 1)
        if vector.shape != expected:
            raise UserError(
                f"{file}: the tensor {module}.{IA3_VECTOR} has shape {list(vector.shape)}; "
                f"expected {list(expected)}: layers called output scale their input (see "
                "feedforward_modules), others their output"
            )
        adapter[f"{layers[0]}/ia3"] = vector.reshape(-1)
    modules = group_by_module(paths.unflatten(names.shapes))
    # `IA3` has two named selections and no list of layers, so the one that gives exactly the layers
    # in the file is searched.
    for selection in ("paper", "peft"):
        method = IA3(selection=selection)
        shapes = implementation(method).shapes(method, modules, model)
        if {f"{path}/ia3" for path in shapes} == adapter.keys():
            return method, adapter
    raise UserError(
        f"{file}: IA3 scales {config.data.get('target_modules')}; expected the layers of the "
        "paper (key, value and the second feed-forward layer), or also the output of attention, "
        "as peft does by default"
    )


def virtual_tokens_to_peft(
    method: PromptTuning | PrefixTuning, adapter: Modules, names: ModuleNames, model: EncoderConfig
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the fields of adapter_config.json and the tensor of prompt or prefix tuning.

    Raises:
      UserError: the prompt is not as wide as the hidden states, or Hugging Face's model takes no
        prefixes; peft supports neither.
    """
    fields: dict[str, Any] = {
        "num_virtual_tokens": method.length,
        "token_dim": model.hidden_size,
        # 1 for models with one stack; encoder-decoders have 2.
        "num_transformer_submodules": 1,
        "num_attention_heads": model.num_attention_heads,
        "num_layers": model.num_hidden_layers,
    }
    if isinstance(method, PromptTuning):
        prompt = adapter[WORD_EMBEDDINGS]["prompt"]
        if prompt.shape[1] != model.hidden_size:
            raise UserError(
                f"the prompt has the width {prompt.shape[1]} of the token embeddings, but peft "
                f"supports only that of the hidden states, {model.hidden_size}; use the run folder"
            )
        return {**fields, "prompt_tuning_init": "RANDOM"}, {PROMPT: prompt}
    _check_takes_prefixes(model)
    prefixes = compute_prefixes(method, adapter, names)
    layers = [prefixes[path] for path in _attentions(names, model)]
    # peft views the tensor as [n, 2 x layers, heads, size]: key and value of the first layer, then
    # of the second one.
    joint = [layer[name] for layer in layers for name in ("prefix_key", "prefix_value")]
    extra = {"encoder_hidden_size": model.hidden_size, "prefix_projection": False}
    return {**fields, **extra}, {PROMPT: np.concatenate(joint, axis=1)}


def _check_takes_prefixes(model: EncoderConfig) -> None:
    if not isinstance(model, BertConfig | RobertaConfig | ElectraConfig):
        family = format_of(model)
        name = family.class_prefixes[family.model_type(model)]
        raise UserError(
            f"prefix tuning of {name} cannot be exported: Hugging Face's {name}Model takes no "
            "past_key_values, through which peft gives prefixes to BERT, RoBERTa and ELECTRA; use "
            "the run folder, or train with another method, such as lora"
        )


def compute_prefixes(method: PrefixTuning, adapter: Modules, names: ModuleNames) -> Modules:
    """Returns the keys and values of each attention, also those that a prefix encoder computes."""
    base = group_by_module(paths.unflatten(names.shapes))
    prefixes = implementation(method).prepare(adapter, base)
    return {
        path: {name: np.asarray(leaf) for name, leaf in leaves.items()}
        for path, leaves in prefixes.items()
    }


def _attentions(names: ModuleNames, model: EncoderConfig) -> list[str]:
    """Returns the paths of the attentions that have prefixes, from the lowest to the highest."""
    method = PrefixTuning(length=1)
    modules = group_by_module(paths.unflatten(names.shapes))
    return list(implementation(method).shapes(method, modules, model))


def virtual_tokens_from_peft(
    config: AdapterConfig,
    tensors: Mapping[str, np.ndarray],
    names: ModuleNames,
    model: EncoderConfig,
    *,
    prefix: bool,
) -> tuple[PromptTuning | PrefixTuning, dict[str, np.ndarray]]:
    """Returns the method, and the adapter's parameters by path.

    Raises:
      UserError: the tensor is missing or has another shape.
    """
    length = config.data.get("num_virtual_tokens")
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise UserError(f"{config.file}: num_virtual_tokens is {length!r}; expected at least 1")
    if PROMPT not in tensors:
        raise UserError(f"{config.file}: the tensor {PROMPT} is missing; save the adapter again")
    attentions = _attentions(names, model) if prefix else []
    embedding = names.shapes[f"{WORD_EMBEDDINGS}/embedding"].shape[1]
    width = 2 * len(attentions) * model.hidden_size if prefix else embedding
    prompt = tensors[PROMPT]
    if prompt.shape != (length, width):
        raise UserError(
            f"{config.file}: the tensor {PROMPT} has shape {list(prompt.shape)}; expected "
            f"{[length, width]} for num_virtual_tokens and the base; give the base that the "
            "adapter was trained on"
        )
    if not prefix:
        return PromptTuning(length=length), {f"{WORD_EMBEDDINGS}/prompt": prompt}
    targets = [f"{path}/{name}" for path in attentions for name in ("prefix_key", "prefix_value")]
    parts = np.split(prompt, len(targets), axis=1)
    return PrefixTuning(length=length), dict(zip(targets, parts, strict=True))


def norms_to_peft(
    params: Mapping[str, np.ndarray], names: ModuleNames
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the fields of adapter_config.json and the tensors of trained LayerNorms.

    Raises:
      UserError: other parameters of the encoder were trained, such as biases by BitFit.
    """
    modules = {path.rpartition("/")[0] for path in params}
    for path in sorted(params):
        if not names.has(path.rpartition("/")[0], "scale"):
            raise UserError(
                f"{path} was trained, which peft has no format for: it can train LayerNorms, but "
                "not biases of other layers (BitFit); export the merged model instead, without "
                "--adapter"
            )
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in names.table.to_external(params).items():
        module, _, leaf = name.rpartition(".")
        tensors[f"{module}.{NORM_WEIGHTS}.{leaf}"] = tensor
    targets = distinct_suffixes([names.module(path) for path in modules], names.modules, ".")
    return {"target_modules": targets}, tensors


def check_norms(config: AdapterConfig, params: Mapping[str, Any], names: ModuleNames) -> None:
    """Raises UserError if a LayerNorm that the config selects has no trained parameters."""
    trained = {names.module(path.rpartition("/")[0]) for path in params}
    norms = [m for m in names.modules if all(names.has(path, "scale") for path in names.paths(m))]
    for module in select_modules(config.data, norms, config.file):
        if module not in trained:
            raise UserError(
                f"{config.file}: target_modules selects {module}, but its tensors "
                f"{NORM_WEIGHTS} are missing; save the adapter again"
            )
