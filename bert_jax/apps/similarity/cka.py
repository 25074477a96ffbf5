"""Computes linear CKA between layers: how similar two representations of the same tokens are.

[similarity], _ = linear_cka(before, [after], [texts])     # [layers, layers], from 0 to 1
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import ConfigError, UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.model import build_network
from bert_jax.predict.batches import (
    MIN_LENGTH,
    TOKENS_PER_BATCH,
    next_power_of_two,
    params_to_device,
)
from bert_jax.pretrained.load import LoadedModel, require_no_adapter, require_tokenizer
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.text.tokenizer import Tokenizer

Unit = Literal["token", "text"]
"""What is an example: a token without special tokens, or a text, as the mean over its tokens."""


class LinearCka:
    """Accumulates the linear CKA of two stacks of representations (Kornblith et al. 2019).

    CKA(X, Y) = |X' Y|^2 / (|X' X| |Y' Y|), with the Frobenius norm, for matrices of n examples with
    centered columns. Only sums over examples are held, so the memory does not depend on n: with N
    and M layers of width D, it is N M D^2 + (N + M) D^2 numbers.
    """

    def __init__(self) -> None:
        self._sums: Any = None
        self._origin: Any = None

    def add(self, x: jax.Array, y: jax.Array, weights: jax.Array) -> None:
        """Adds examples.

        Args:
          x: float32 [N, examples, D] of N layers.
          y: float32 [M, examples, E] of M layers.
          weights: float32 [examples], 1 for an example and 0 for padding.
        """
        if self._origin is None:
            # CKA does not depend on the origin. Sums of products of values near their mean lose
            # less precision than those of outlier dimensions, whose mean is large.
            total = jnp.maximum(weights.sum(), 1)
            self._origin = tuple((each * weights[:, None]).sum(1) / total for each in (x, y))
            self._sums = jax.tree.map(jnp.zeros_like, _sums(x, y, weights, *self._origin))
        self._sums = _add_sums(self._sums, x, y, weights, *self._origin)

    @property
    def num_examples(self) -> int:
        """Returns the number of examples."""
        return 0 if self._sums is None else round(float(self._sums["n"]))

    def value(self) -> np.ndarray:
        """Returns float64 [N, M]: the CKA of each layer of x with each layer of y.

        Raises:
          UserError: there are fewer than two examples, or all are the same in some layer.
        """
        if self.num_examples < 2:
            raise UserError(
                f"there are {self.num_examples} examples to compare; expected at least 2: a text "
                "with several tokens, or with --unit text, two texts"
            )
        sums = {name: np.asarray(value) for name, value in self._sums.items()}
        n, x, y = (sums[name].astype(np.float64) for name in ("n", "x", "y"))

        def norm(products: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
            return float(np.linalg.norm(products.astype(np.float64) - np.outer(first, second) / n))

        norms_x = [norm(p, s, s) for p, s in zip(sums["xx"], x, strict=True)]
        norms_y = [norm(p, s, s) for p, s in zip(sums["yy"], y, strict=True)]
        for norms, origin in zip((norms_x, norms_y), self._origin, strict=True):
            _check_examples_differ(norms, np.asarray(origin, np.float64), float(n))
        found = np.zeros((len(x), len(y)))
        for i, j in np.ndindex(*found.shape):
            found[i, j] = norm(sums["xy"][i, j], x[i], y[j]) ** 2 / (norms_x[i] * norms_y[j])
        return found


def _check_examples_differ(norms: list[float], means: np.ndarray, count: float) -> None:
    for layer, (value, mean) in enumerate(zip(norms, means, strict=True)):
        if value <= 1e-12 * count * float(mean @ mean):  # no more than rounding
            raise UserError(
                f"layer {layer} is the same for all {count:,.0f} examples, so it cannot be "
                "compared; expected different texts"
            )


@jax.jit
def _sums(
    x: jax.Array, y: jax.Array, weights: jax.Array, origin_x: jax.Array, origin_y: jax.Array
) -> dict[str, jax.Array]:
    x, y = (
        (each - origin[:, None]) * weights[:, None]
        for each, origin in ((x, origin_x), (y, origin_y))
    )
    with jax.default_matmul_precision("highest"):
        return {
            "n": weights.sum(),
            "x": x.sum(1),
            "y": y.sum(1),
            "xx": jnp.einsum("ind,ine->ide", x, x),
            "yy": jnp.einsum("ind,ine->ide", y, y),
            "xy": jnp.einsum("ind,jne->ijde", x, y),
        }


@functools.partial(jax.jit, donate_argnums=0)
def _add_sums(sums: dict[str, jax.Array], *arguments: jax.Array) -> dict[str, jax.Array]:
    return jax.tree.map(jnp.add, sums, _sums(*arguments))


def linear_cka(
    model: LoadedModel,
    others: Sequence[LoadedModel],
    texts: Iterable[Sequence[str]],
    *,
    unit: Unit = "token",
    on_progress: Callable[[int], object] = lambda num_texts: None,
) -> tuple[list[np.ndarray], int]:
    """Computes the CKA of all layers of a model with those of each other model.

    Layer 0 is the embeddings. Special tokens are left out, and long texts are truncated.

    Args:
      others: models to compare with; `model` itself compares its layers with each other.
      texts: groups of texts, read once.
      on_progress: called after each group with the number of its texts.

    Returns:
      For each other model, float64 [N + 1, M + 1]; and the number of examples.

    Raises:
      ConfigError: the unit is unknown.
      UserError: a model lacks a tokenizer or has an adapter that cannot be merged, the tokenizers
        differ and the unit is a token, or there are too few different examples.
    """
    if unit not in ("token", "text"):
        raise ConfigError(f"unit is {unit!r}; expected token or text")
    readers = [_LayerReader(each, unit) for each in (model, *others)]
    length = min(reader.max_length for reader in readers)
    if unit == "token":
        own = Tokenization.of(require_tokenizer(model), model.path)
        for other in others:
            advice = "compare texts instead of tokens with --unit text"
            check_same_tokenizer(own, Tokenization.of(require_tokenizer(other), other.path), advice)
    found = [LinearCka() for _ in others]
    for group in texts:
        texts_of_group = [text for text in group if text.strip()]
        for batch_texts in _similar_lengths(texts_of_group, readers[0].tokenizer, length):
            x, weights = readers[0](batch_texts, length)
            for cka, other, reader in zip(found, others, readers[1:], strict=True):
                y, weights_y = (x, weights) if other is model else reader(batch_texts, length)
                cka.add(x, y, weights * weights_y)
        on_progress(len(group))
    return [cka.value() for cka in found], found[0].num_examples if found else 0


def _similar_lengths(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int
) -> Iterator[list[str]]:
    """Yields the texts in groups of similar length that fill a batch."""
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    remaining = sorted(range(len(texts)), key=lengths.__getitem__)
    while remaining:
        rows = max(TOKENS_PER_BATCH // _bucket(lengths[remaining[-1]] + 2, max_length), 1)
        yield [texts[index] for index in remaining[-rows:]]
        remaining = remaining[:-rows]


def _bucket(length: int, max_length: int) -> int:
    return min(max(next_power_of_two(length), MIN_LENGTH), max_length)


class _LayerReader:
    """Computes the representations of all layers for texts, compiled once for each shape."""

    def __init__(self, model: LoadedModel, unit: Unit):
        require_no_adapter(model, "be compared layer by layer")
        self.tokenizer = require_tokenizer(model)
        self.max_length = model.config.max_length
        self._params = params_to_device(model, ("encoder",))
        self._compute = jax.jit(functools.partial(_representations, model.config, unit))

    def __call__(self, texts: Sequence[str], length: int) -> tuple[jax.Array, jax.Array]:
        """Returns float32 [N + 1, examples, D], and the weights of the examples."""
        build = self.tokenizer.build_inputs_with_special_tokens
        prefix, num_special = build([-1]).tolist().index(-1), len(build([]))
        encodings = self.tokenizer.encode_batch(texts)
        texts_ids = [encoding.ids[: length - num_special] for encoding in encodings]
        bucket = _bucket(max(map(len, texts_ids)) + num_special, length)
        shape = (next_power_of_two(len(texts)), bucket)
        batch = {
            "input_ids": np.full(shape, self.tokenizer.pad_id, np.int32),
            "token_type_ids": np.zeros(shape, np.int32),
            "attention_mask": np.zeros(shape, np.int32),
        }
        is_text = np.zeros(shape, np.float32)
        batch["attention_mask"][:, 0] = 1  # a softmax over no tokens is undefined
        for row, ids in enumerate(texts_ids):
            batch["input_ids"][row, : len(ids) + num_special] = build(ids)
            batch["attention_mask"][row, : len(ids) + num_special] = 1
            is_text[row, prefix : prefix + len(ids)] = 1
        return self._compute(self._params, batch, is_text)


def _representations(
    config: EncoderConfig,
    unit: Unit,
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    is_text: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    network = build_network(config).merge(dict(params))
    hidden = jnp.stack(network.encode(batch, output_hidden_states=True).hidden_states)
    hidden = hidden.astype(jnp.float32)
    if unit == "token":
        return hidden.reshape(len(hidden), -1, hidden.shape[-1]), is_text.reshape(-1)
    lengths = is_text.sum(1)
    means = jnp.einsum("nbld,bl->nbd", hidden, is_text) / jnp.maximum(lengths, 1)[:, None]
    return means, jnp.minimum(lengths, 1)
