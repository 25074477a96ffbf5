"""The parts of BERT's pretraining model, each a network of its own, by the names in its parameters.

Other formats hold some of the parts: `BertModel` has no heads, `BertForMaskedLM` no pooler.
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
from bert_jax.models.config import BertConfig, Compute
from bert_jax.models.heads import LMHead, Pooler
from bert_jax.models.linear import linear
from bert_jax.nn import Network

_BUILD: dict[str, Callable[[BertConfig, Compute, nnx.Rngs], nnx.Module]] = {
    "encoder": BertEncoder,
    "pooler": Pooler,
    "masked_lm": LMHead,
    "next_sentence": lambda config, *rest: linear(config.hidden_size, 2, config, *rest),
}
HEADS = tuple(part for part in _BUILD if part != "encoder")
"""All parts but the encoder, which every model has."""


@functools.cache
def network(part: str, config: BertConfig) -> Network[Any]:
    """One part as pure functions over its own parameters, computed in float32."""
    return Network(lambda rngs: _BUILD[part](config, Compute(), rngs))


def present(flat: Mapping[str, Any]) -> frozenset[str]:
    """The parts that parameters by path belong to."""
    return frozenset(path.split("/")[0] for path in flat)


def check(flat: Mapping[str, np.ndarray], config: BertConfig, source: str) -> None:
    """Raises unless `flat` holds the whole encoder and whole heads or none, all of right shape.

    Raises:
      UserError: a parameter is missing, foreign or misshapen; names the first and counts the rest.
    """
    problems: list[str] = []
    for part in ("encoder", *HEADS):
        expected = paths.flatten(network(part, config).abstract(), part)
        found = {path: leaf for path, leaf in flat.items() if path.split("/")[0] == part}
        if part in HEADS and not found:
            continue
        problems += [f"{path} is missing" for path in expected.keys() - found.keys()]
        problems += [f"{path} is too much" for path in found.keys() - expected.keys()]
        problems += [
            f"{path} has shape {list(leaf.shape)}, its config says {list(expected[path].shape)}"
            for path, leaf in found.items()
            if path in expected and leaf.shape != expected[path].shape
        ]
    if problems:
        rest = f" (and {len(problems) - 1} more such)" if len(problems) > 1 else ""
        raise UserError(
            f"{source} does not hold the model that its config describes: {min(problems)}{rest}"
        )


def outputs(params: Mapping[str, Any], config: BertConfig, batch: Mapping[str, Any]) -> Any:
    """Everything that the parts in `params` compute for a batch, without dropout. Pure.

    Returns:
      {"hidden_states": N + 1 arrays [B, L, D], then, for heads present, "pooled" [B, D],
      "masked_lm" [B, L, V], "next_sentence" [B, 2]}, all float32.
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
        head = network("masked_lm", config).bind(params["masked_lm"])
        found["masked_lm"] = head(states[-1], table)
    if "pooler" in params:
        found["pooled"] = network("pooler", config).bind(params["pooler"])(states[-1])
        if "next_sentence" in params:
            classifier = network("next_sentence", config).bind(params["next_sentence"])
            found["next_sentence"] = classifier(found["pooled"])
    return found


def run(params: Mapping[str, Any], config: BertConfig, batch: Mapping[str, Any]) -> Any:
    """`outputs`, compiled, as NumPy arrays; products at full float32 precision on any device."""
    with jax.default_matmul_precision("highest"):
        return jax.device_get(_compiled(config)(dict(params), dict(batch)))


@functools.cache
def _compiled(config: BertConfig) -> Callable[..., Any]:
    return jax.jit(lambda params, batch: outputs(params, config, batch))
