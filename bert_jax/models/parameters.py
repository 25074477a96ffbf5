"""Checks the parameters of a model against its config, before the model is used.

A part is the encoder or one head, named by the first segment of its parameter paths.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import HEADS, TaskHead, head_param_name, num_outputs
from bert_jax.models.model import build_network
from bert_jax.params import paths


def parts_in(flat_params: Mapping[str, Any]) -> frozenset[str]:
    """Returns the parts to which parameters by path belong, such as {"encoder", "pooler"}."""
    return frozenset(path.split("/")[0] for path in flat_params)


def missing_heads(flat_params: Mapping[str, Any], config: EncoderConfig) -> tuple[str, ...]:
    """Returns the pretraining heads of the model's family that these parameters lack."""
    return tuple(head for head in config.pretraining_heads if head not in parts_in(flat_params))


def expected_parameters(
    parts: frozenset[str], config: EncoderConfig, task_head: TaskHead | None
) -> dict[str, Any]:
    """Returns shape and dtype by path of the encoder, those heads, and what the task head needs."""
    heads = tuple(head for head in HEADS if head in parts)
    return paths.flatten(build_network(config, heads, task_head).abstract())


def validate_params(
    flat_params: Mapping[str, np.ndarray],
    config: EncoderConfig,
    source: str,
    task_head: TaskHead | None = None,
) -> None:
    """Raises unless parameters by path fit the model: complete, with the right shapes.

    The encoder and the task head are required; the heads of pretraining are optional.

    Args:
      source: the file or folder, for messages.

    Raises:
      UserError: the task head has another number of outputs; or parameters are missing, unknown or
        of another shape, of which the first is named and the others are counted.
    """
    if task_head is not None:
        _validate_head_size(flat_params, task_head, source)
    check_same_shapes(
        flat_params, expected_parameters(parts_in(flat_params), config, task_head), source
    )


def check_same_shapes(
    flat_params: Mapping[str, Any], expected: Mapping[str, Any], source: str
) -> None:
    """Raises a UserError if parameters have other paths or shapes than a config asks for.

    Args:
      expected: arrays or shapes by path.
      source: the file or folder, for messages.
    """
    mismatches = [f"{path} is missing" for path in expected.keys() - flat_params.keys()]
    mismatches += [f"{path} is not expected" for path in flat_params.keys() - expected.keys()]
    mismatches += [
        f"{path} has shape {list(leaf.shape)}, the config requires {list(expected[path].shape)}"
        for path, leaf in flat_params.items()
        if path in expected and leaf.shape != expected[path].shape
    ]
    if mismatches:
        more = f" (and {len(mismatches) - 1} more)" if len(mismatches) > 1 else ""
        raise UserError(
            f"{source}: the weights are not those of the model in its config: "
            f"{min(mismatches)}{more}; use the config that was saved with these weights"
        )


def check_finite(flat_params: Mapping[str, np.ndarray], source: str) -> None:
    """Raises a UserError that names the first parameter with NaN or an infinite value."""
    for path, leaf in flat_params.items():
        if not np.isfinite(leaf).all():
            raise UserError(
                f"{source}: {path} has values that are not finite, so every result would be NaN; "
                "use an earlier checkpoint, or fetch the model again"
            )


def _validate_head_size(flat_params: Mapping[str, np.ndarray], head: TaskHead, source: str) -> None:
    name = head_param_name(head)
    bias = flat_params.get(f"{name}/bias", flat_params.get(f"{name}/out_proj/bias"))
    if bias is None or bias.shape == (num_outputs(head),):
        return
    labels = getattr(head, "labels", ())
    label_list = f", for the labels {', '.join(labels)}" if labels else ""
    raise UserError(
        f"{source}: the head has {bias.size} outputs, but its config describes a "
        f"{type(head).__name__} with {num_outputs(head)}{label_list}; use the config.json that was "
        "saved with these weights"
    )
