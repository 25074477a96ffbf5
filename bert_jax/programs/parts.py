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

from bert_jax import paths
from bert_jax.errors import UserError
from bert_jax.models.bert import BertEncoder
from bert_jax.models.config import (
    BertConfig,
    Compute,
    TaskHead,
    head_outputs,
    head_part,
    reads_pooled,
)
from bert_jax.models.heads import LMHead, Pooler, head_linear
from bert_jax.models.linear import linear
from bert_jax.nn import Network

_BUILD: dict[str, Callable[[BertConfig, Compute, nnx.Rngs], nnx.Module]] = {
    "encoder": BertEncoder,
    "pooler": Pooler,
    "masked_lm": LMHead,
    "next_sentence": lambda config, *rest: linear(config.hidden_size, 2, config, *rest),
}
HEADS = tuple(part for part in _BUILD if part != "encoder")
"""What pretraining has beside the encoder, which every model has."""


@functools.cache
def network(part: str, config: BertConfig, head: TaskHead | None = None) -> Network[Any]:
    """One part as pure functions over its own parameters, computed in float32.

    `head` is that of the task, for its part.
    """
    if head is not None and part == head_part(head):
        return Network(lambda rngs: head_linear(config, head, rngs))
    return Network(lambda rngs: _BUILD[part](config, Compute(), rngs))


def present(flat: Mapping[str, Any]) -> frozenset[str]:
    """The parts that parameters by path belong to."""
    return frozenset(path.split("/")[0] for path in flat)


def check(
    flat: Mapping[str, np.ndarray], config: BertConfig, source: str, head: TaskHead | None = None
) -> None:
    """Raises unless `flat` holds the model: each part of right shape, and whole.

    The encoder must be there, and what the task's `head` computes with; pretraining's heads may be.

    Raises:
      UserError: a head of another number of labels; a parameter that is missing, foreign or
        misshapen, where the first is named and the rest are counted.
    """
    expected = paths.flatten(network("encoder", config).abstract(), "encoder")
    for part in HEADS:
        if part in present(flat) or (part == "pooler" and head is not None and reads_pooled(head)):
            expected |= paths.flatten(network(part, config).abstract(), part)
    if head is not None:
        _check_outputs(flat, head, source)
        part = head_part(head)
        expected |= paths.flatten(network(part, config, head).abstract(), part)
    problems = [f"{path} is missing" for path in expected.keys() - flat.keys()]
    problems += [f"{path} is too much" for path in flat.keys() - expected.keys()]
    problems += [
        f"{path} has shape {list(leaf.shape)}, its config says {list(expected[path].shape)}"
        for path, leaf in flat.items()
        if path in expected and leaf.shape != expected[path].shape
    ]
    if problems:
        rest = f" (and {len(problems) - 1} more such)" if len(problems) > 1 else ""
        raise UserError(
            f"{source} does not hold the model that its config describes: {min(problems)}{rest}"
        )


def _check_outputs(flat: Mapping[str, np.ndarray], head: TaskHead, source: str) -> None:
    bias = flat.get(f"{head_part(head)}/bias")
    if bias is None or bias.shape == (head_outputs(head),):
        return
    labels = getattr(head, "labels", ())
    named = f", for the labels {', '.join(labels)}" if labels else ""
    raise UserError(
        f"{source}: the head has {bias.size} outputs, but its config describes a "
        f"{type(head).__name__} with {head_outputs(head)}{named}; use the config.json that was "
        "saved with these weights"
    )


def outputs(
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
    encoder = network("encoder", config).bind(params["encoder"])
    states = encoder(
        batch["input_ids"],
        batch["token_type_ids"],
        batch["attention_mask"],
        output_hidden_states=True,
    ).hidden_states
    found: dict[str, Any] = {"hidden_states": states}
    if "masked_lm" in params:
        table = encoder.embeddings.word_embeddings.embedding[...]
        masked_lm = network("masked_lm", config).bind(params["masked_lm"])
        found["masked_lm"] = masked_lm(states[-1], table)
    if "pooler" in params:
        found["pooled"] = network("pooler", config).bind(params["pooler"])(states[-1])
        if "next_sentence" in params:
            classifier = network("next_sentence", config).bind(params["next_sentence"])
            found["next_sentence"] = classifier(found["pooled"])
    if head is not None:
        layer = network(head_part(head), config, head).bind(params[head_part(head)])
        found["task"] = layer(found["pooled"] if reads_pooled(head) else states[-1])
    return found


def run(
    params: Mapping[str, Any],
    config: BertConfig,
    batch: Mapping[str, Any],
    head: TaskHead | None = None,
) -> Any:
    """`outputs`, compiled, as NumPy arrays; products at full float32 precision on any device."""
    with jax.default_matmul_precision("highest"):
        return jax.device_get(_compiled(config, head)(dict(params), dict(batch)))


@functools.cache
def _compiled(config: BertConfig, head: TaskHead | None) -> Callable[..., Any]:
    return jax.jit(lambda params, batch: outputs(params, config, batch, head))
