"""Measures what attention heads attend to, and how similar they are (Clark et al. 2019).

statistics = describe_heads(load_encoder("exported"), [texts])
statistics.attention["next"]     # float64 [N, H]: attention to the next token
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.predict.attention import attention_parts, attention_weights
from bert_jax.predict.batches import Arrays, padded_batches, params_to_device
from bert_jax.pretrained.load import LoadedModel, require_no_adapter, require_tokenizer
from bert_jax.text.tokenizer import Tokenizer

PATTERNS = ("[CLS]", "[SEP]", "punctuation", "previous", "self", "next")
"""What attention is measured to: kinds of tokens, then positions relative to the query."""
MAX_TOKENS = 128
"""Texts are truncated to this length, as in the paper: the weights grow with its square."""
_PUNCTUATION = (".", ",")


class HeadStatistics(NamedTuple):
    """Holds statistics of N layers with H heads, means over the tokens of all texts.

    Attributes:
      attention: for each of `PATTERNS`, float64 [N, H]: the sum of the weights to these tokens.
      entropy: float64 [N, H], in nats: the entropy of the weights of a token.
      num_tokens: number of tokens, special tokens included.
    """

    attention: dict[str, np.ndarray]
    entropy: np.ndarray
    num_tokens: int


def describe_heads(
    model: LoadedModel,
    texts: Iterable[Sequence[str]],
    *,
    on_progress: Callable[[int], object] = lambda num_texts: None,
) -> HeadStatistics:
    """Measures attention to special tokens, punctuation and neighbors, and entropy.

    The memory does not grow with the texts, which are truncated to `MAX_TOKENS` tokens.

    Args:
      texts: groups of texts, read once.
      on_progress: called after each group with the number of its texts.

    Raises:
      UserError: there is no text, or the model has no tokenizer or an adapter.
    """
    tokenizer = require_tokenizer(model)
    compute, params = _on_device(model, _pattern_sums)
    key_ids = {
        "[CLS]": np.array([tokenizer.cls_id]),
        "[SEP]": np.array([tokenizer.sep_id]),
        "punctuation": np.array(
            [tokenizer.token_to_id(mark) for mark in _PUNCTUATION if mark in tokenizer] or [-1]
        ),
    }
    totals: dict[str, np.ndarray] = {}
    for group in texts:
        for batch in _batches(group, tokenizer, model.config.max_length):
            for name, value in jax.device_get(compute(params, batch, key_ids)).items():
                totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
        on_progress(len(group))
    if not totals:
        raise UserError("there is no text; expected a file with a text on each line")
    count, pairs = float(totals["tokens"]), float(totals["pairs"])
    attention = {
        # The first token has no previous and the last one no next token.
        name: totals[name] / (max(pairs, 1.0) if name in ("previous", "next") else count)
        for name in PATTERNS
    }
    return HeadStatistics(attention, totals["entropy"] / count, round(count))


def head_distances(model: LoadedModel, texts: Sequence[str]) -> np.ndarray:
    """Computes the Jensen-Shannon divergence between any two heads, float64 [N x H, N x H].

    It is the mean over the tokens of the texts of JS(weights of one head, weights of the other), in
    nats, from 0 to log 2. The time grows with the square of the number of heads, so some dozens of
    texts are a good number.

    Raises:
      UserError: as for `describe_heads`.
    """
    compute, params = _on_device(model, _divergence_sums)
    total, count = np.zeros(()), 0.0
    for batch in _batches(texts, require_tokenizer(model), model.config.max_length):
        sums, num_tokens = jax.device_get(compute(params, batch))
        total, count = total + np.asarray(sums, np.float64), count + float(num_tokens)
    if not count:
        raise UserError("there is no text; expected a file with a text on each line")
    return np.maximum(total / count, 0.0)


def head_map(divergences: np.ndarray) -> np.ndarray:
    """Places heads in the plane by classical multidimensional scaling, float64 [N x H, 2].

    The root of the Jensen-Shannon divergence is a Euclidean distance (Endres and Schindelin 2003),
    so it is the distance that the map approximates.
    """
    centered = divergences - divergences.mean(0) - divergences.mean(1)[:, None]
    values, vectors = np.linalg.eigh(-0.5 * (centered + divergences.mean()))
    largest = np.argsort(values)[::-1][:2]
    return vectors[:, largest] * np.sqrt(np.maximum(values[largest], 0.0))


def _on_device(model: LoadedModel, function: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    require_no_adapter(model, "show attention weights")
    compute = jax.jit(functools.partial(function, model.config, model.head))
    return compute, params_to_device(model, attention_parts(model))


def _batches(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Iterable[Arrays]:
    """Yields padded batches; rows of padding have no tokens in the field `is_token`."""
    length, build = min(max_length, MAX_TOKENS), tokenizer.build_inputs_with_special_tokens
    max_ids = length - len(build([]))
    encodings = tokenizer.encode_batch([text for text in texts if text.strip()])
    sequences = [build(encoding.ids[:max_ids]).tolist() for encoding in encodings]
    for indices, batch in padded_batches(sequences, pad_id=tokenizer.pad_id, max_length=length):
        is_token = batch["attention_mask"].astype(np.float32)
        is_token[len(indices) :] = 0
        yield {**batch, "is_token": is_token}


def _pattern_sums(
    config: EncoderConfig,
    head: Any,
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    key_ids: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
    weights = attention_weights(config, head, params, batch)
    is_token, ids = batch["is_token"], batch["input_ids"]
    is_pair = is_token[:, 1:] * is_token[:, :-1]
    sums = {"tokens": is_token.sum(), "pairs": is_pair.sum()}
    for name, wanted in key_ids.items():
        is_key = jnp.isin(ids, wanted).astype(jnp.float32) * is_token
        sums[name] = jnp.einsum("bnhlm,bl,bm->nh", weights, is_token, is_key)
    for name, offset, mask in (
        ("previous", -1, is_pair),
        ("self", 0, is_token),
        ("next", 1, is_pair),
    ):
        diagonal = jnp.diagonal(weights, offset, axis1=-2, axis2=-1)
        sums[name] = jnp.einsum("bnhl,bl->nh", diagonal, mask)
    entropy = -jax.scipy.special.xlogy(weights, weights).sum(-1)
    sums["entropy"] = jnp.einsum("bnhl,bl->nh", entropy, is_token)
    return sums


def _divergence_sums(
    config: EncoderConfig, head: Any, params: Mapping[str, Any], batch: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    weights = attention_weights(config, head, params, batch)
    is_token = batch["is_token"]
    length = weights.shape[-1]
    heads = jnp.moveaxis(weights, 0, 2).reshape(-1, len(is_token), length, length)
    negative_entropy = jax.scipy.special.xlogy(heads, heads).sum(-1)

    def to_all(one: tuple[jax.Array, jax.Array]) -> jax.Array:
        middle = (one[0] + heads) / 2
        divergence = (one[1] + negative_entropy) / 2 - jax.scipy.special.xlogy(middle, middle).sum(
            -1
        )
        return jnp.einsum("hbl,bl->h", divergence, is_token)

    # One head at a time: all pairs at once would need the memory of the weights times their number.
    return jax.lax.map(to_all, (heads, negative_entropy)), is_token.sum()
