"""The parts of a BERT with its heads, each a network of its own, by the names in its parameters.

Other formats hold some of the parts: `BertModel` has no heads, `BertForMaskedLM` no pooler. The
linear layer of a task's head is a part as well, "classifier" or "span", of the size that the head
says.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.errors import UserError
from bert_jax.functional import Network
from bert_jax.models.bert.model import BertEncoder
from bert_jax.models.config import (
    BertConfig,
    ComputeConfig,
    TaskHead,
    head_param_name,
    num_outputs,
    uses_pooler,
)
from bert_jax.models.layers.heads import LMHead, Pooler, head_linear
from bert_jax.models.layers.linear import linear
from bert_jax.params import paths

_PART_BUILDERS: dict[str, Callable[[BertConfig, ComputeConfig, nnx.Rngs], nnx.Module]] = {
    "encoder": BertEncoder,
    "pooler": Pooler,
    "masked_lm": LMHead,
    "next_sentence": lambda config, *rest: linear(config.hidden_size, 2, config, *rest),
}
NON_ENCODER_PARTS = tuple(part for part in _PART_BUILDERS if part != "encoder")
"""What pretraining has beside the encoder, which every model has."""


@functools.cache
def build_part(part: str, config: BertConfig, head: TaskHead | None = None) -> Network[Any]:
    """One part as pure functions over its own parameters, computed in float32.

    `head` is that of the task, for its part.
    """
    if head is not None and part == head_param_name(head):
        return Network(lambda rngs: head_linear(config, head, rngs))
    return Network(lambda rngs: _PART_BUILDERS[part](config, ComputeConfig(), rngs))


def parts_in(flat_params: Mapping[str, Any]) -> frozenset[str]:
    """The parts that parameters by path belong to."""
    return frozenset(path.split("/")[0] for path in flat_params)


def validate_params(
    flat_params: Mapping[str, np.ndarray],
    config: BertConfig,
    source: str,
    head: TaskHead | None = None,
) -> None:
    """Raises unless `flat` holds the model: each part of right shape, and whole.

    The encoder must be there, and what the task's `head` computes with; pretraining's heads may be.

    Raises:
      UserError: a head of another number of labels; a parameter that is missing, foreign or
        misshapen, where the first is named and the rest are counted.
    """
    expected = paths.flatten(build_part("encoder", config).abstract(), "encoder")
    for part in NON_ENCODER_PARTS:
        if part in parts_in(flat_params) or (
            part == "pooler" and head is not None and uses_pooler(head)
        ):
            expected |= paths.flatten(build_part(part, config).abstract(), part)
    if head is not None:
        _validate_head_size(flat_params, head, source)
        part = head_param_name(head)
        expected |= paths.flatten(build_part(part, config, head).abstract(), part)
    mismatches = [f"{path} is missing" for path in expected.keys() - flat_params.keys()]
    mismatches += [f"{path} is too much" for path in flat_params.keys() - expected.keys()]
    mismatches += [
        f"{path} has shape {list(leaf.shape)}, its config says {list(expected[path].shape)}"
        for path, leaf in flat_params.items()
        if path in expected and leaf.shape != expected[path].shape
    ]
    if mismatches:
        more = f" (and {len(mismatches) - 1} more such)" if len(mismatches) > 1 else ""
        raise UserError(
            f"{source} does not hold the model that its config describes: {min(mismatches)}{more}"
        )


def _validate_head_size(flat_params: Mapping[str, np.ndarray], head: TaskHead, source: str) -> None:
    bias = flat_params.get(f"{head_param_name(head)}/bias")
    if bias is None or bias.shape == (num_outputs(head),):
        return
    labels = getattr(head, "labels", ())
    label_list = f", for the labels {', '.join(labels)}" if labels else ""
    raise UserError(
        f"{source}: the head has {bias.size} outputs, but its config describes a "
        f"{type(head).__name__} with {num_outputs(head)}{label_list}; use the config.json that was "
        "saved with these weights"
    )


def forward_parts(
    params: Mapping[str, Any],
    config: BertConfig,
    batch: Mapping[str, Any],
    head: TaskHead | None = None,
) -> Any:
    """Everything that the parts in `params` compute for a batch, without dropout. Pure.

    Returns:
      {"hidden_states": N + 1 arrays [B, L, D], then, for heads present, "pooled" [B, D],
      "masked_lm" [B, L, V], "next_sentence" [B, 2], and for the task's `head` "task": what its
      linear layer gives, [B, outputs] or [B, L, outputs]}, all float32.
    """
    encoder = build_part("encoder", config).merge(params["encoder"])
    hidden_states = encoder(
        batch["input_ids"],
        batch["token_type_ids"],
        batch["attention_mask"],
        output_hidden_states=True,
    ).hidden_states
    outputs: dict[str, Any] = {"hidden_states": hidden_states}
    if "masked_lm" in params:
        word_embeddings = encoder.embeddings.word_embeddings.embedding[...]
        masked_lm = build_part("masked_lm", config).merge(params["masked_lm"])
        outputs["masked_lm"] = masked_lm(hidden_states[-1], word_embeddings)
    if "pooler" in params:
        outputs["pooled"] = build_part("pooler", config).merge(params["pooler"])(hidden_states[-1])
        if "next_sentence" in params:
            classifier = build_part("next_sentence", config).merge(params["next_sentence"])
            outputs["next_sentence"] = classifier(outputs["pooled"])
    if head is not None:
        layer = build_part(head_param_name(head), config, head).merge(params[head_param_name(head)])
        outputs["task"] = layer(outputs["pooled"] if uses_pooler(head) else hidden_states[-1])
    return outputs


def run_forward(
    params: Mapping[str, Any],
    config: BertConfig,
    batch: Mapping[str, Any],
    head: TaskHead | None = None,
) -> Any:
    """`outputs`, compiled, as NumPy arrays; products at full float32 precision on any device."""
    with jax.default_matmul_precision("highest"):
        return jax.device_get(_jitted_forward(config, head)(dict(params), dict(batch)))


@functools.cache
def _jitted_forward(config: BertConfig, head: TaskHead | None) -> Callable[..., Any]:
    return jax.jit(lambda params, batch: forward_parts(params, config, batch, head))
