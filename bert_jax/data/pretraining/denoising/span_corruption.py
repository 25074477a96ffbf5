"""Makes T5's pretraining examples: span corruption and the baselines of its paper.

The rules are those of `random_spans_helper`, `random_spans_noise_mask`,
`noise_span_to_unique_sentinel` and `nonnoise_span_to_unique_sentinel` in T5's
`t5/data/preprocessors.py` (Raffel et al. 2020). Random numbers come from the key of the example.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.denoising.config import (
    BertStyleDenoising,
    SpanCorruption,
)
from bert_jax.data.pretraining.rng import ExampleRng, Stream
from bert_jax.errors import ConfigError


class SpanCounts(NamedTuple):
    """Holds how many tokens of a text are noise, and in how many spans."""

    num_noise_tokens: int
    num_spans: int


class SpanCorruptionLengths(NamedTuple):
    """Holds numbers of tokens: of a text, and of the targets made from it with their </s>."""

    num_tokens: int
    targets_length: int


def count_spans(num_tokens: int, config: SpanCorruption) -> SpanCounts:
    """Returns the number of noise tokens and spans of a text; both are at least 1."""
    num_tokens = max(num_tokens, 2)
    # Python rounds halves to even, as T5's code does.
    num_noise_tokens = min(max(round(num_tokens * config.noise_density), 1), num_tokens - 1)
    num_spans = max(round(num_noise_tokens / config.mean_noise_span_length), 1)
    # There is a token before each span. T5's code has no such limit, and would then have fewer
    # spans than it counts.
    return SpanCounts(num_noise_tokens, min(num_spans, num_tokens - num_noise_tokens))


def span_corruption_lengths(inputs_length: int, config: SpanCorruption) -> SpanCorruptionLengths:
    """Returns the largest text length with which inputs have at most `inputs_length` tokens.

    For 512 it is 568 tokens, of which 85 are noise in 28 spans, so targets have 114 tokens.

    Raises:
      ConfigError: `inputs_length` is too short for a span.
    """

    def lengths(num_tokens: int) -> tuple[int, int]:
        num_noise_tokens = round(num_tokens * config.noise_density)
        num_spans = round(num_noise_tokens / config.mean_noise_span_length)
        return num_tokens - num_noise_tokens + num_spans + 1, num_noise_tokens + num_spans + 1

    num_tokens = inputs_length
    while lengths(num_tokens + 1)[0] <= inputs_length:
        num_tokens += 1
    # Short spans can make inputs longer than the text, which T5's code does not expect.
    while num_tokens > 1 and lengths(num_tokens)[0] > inputs_length:
        num_tokens -= 1
    targets_length = lengths(num_tokens)[1]
    # As in T5's code: with half of the tokens as noise, targets shall not be longer than inputs.
    if config.noise_density == 0.5 and targets_length > inputs_length:
        num_tokens, targets_length = num_tokens - 1, targets_length - 1
    if lengths(num_tokens) != _exact_lengths(num_tokens, config):
        raise ConfigError(
            f"seq_length is {inputs_length}, which is too short for data.masking {config}; "
            "expected sequences that have at least one span"
        )
    return SpanCorruptionLengths(num_tokens, targets_length)


def _exact_lengths(num_tokens: int, config: SpanCorruption) -> tuple[int, int]:
    num_noise_tokens, num_spans = count_spans(num_tokens, config)
    return num_tokens - num_noise_tokens + num_spans + 1, num_noise_tokens + num_spans + 1


def corrupt_spans(
    ids: np.ndarray, rng: ExampleRng, config: SpanCorruption, sentinel_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets of span corruption for a text, without </s>.

    Args:
      ids: [n] the tokens of the text.
      sentinel_ids: the ids of <extra_id_0>, <extra_id_1>, ..., at least one for each span.
    """
    is_noise = draw_noise_mask(len(ids), rng, config)
    return (
        _replace_spans(ids, is_noise, sentinel_ids),
        _replace_spans(ids, ~is_noise, sentinel_ids),
    )


def draw_noise_mask(num_tokens: int, rng: ExampleRng, config: SpanCorruption) -> np.ndarray:
    """Draws [n] bool, True for noise: spans of random lengths, beginning with a span of text.

    All divisions of the noise into spans, and of the other tokens into the texts before the spans,
    are equally likely. So the last token is always noise.
    """
    num_noise_tokens, num_spans = count_spans(num_tokens, config)
    noise = _random_partition(num_noise_tokens, num_spans, rng, Stream.NOISE_SPAN_LENGTH)
    num_others = max(num_tokens, 2) - num_noise_tokens
    others = _random_partition(num_others, num_spans, rng, Stream.NONNOISE_SPAN_LENGTH)
    lengths = np.stack((others, noise), axis=1).reshape(-1)
    return np.repeat(np.arange(2 * num_spans) % 2 == 1, lengths)[:num_tokens]


def _random_partition(total: int, num_parts: int, rng: ExampleRng, stream: Stream) -> np.ndarray:
    """Divides `total` into parts of at least 1, all divisions being equally likely, [num_parts]."""
    boundaries = 1 + np.sort(rng.permutation(total - 1, stream)[: num_parts - 1])
    return np.diff(boundaries, prepend=0, append=total)


def _replace_spans(
    ids: np.ndarray, is_replaced: np.ndarray, sentinel_ids: np.ndarray
) -> np.ndarray:
    """Replaces each run of True by one sentinel, in the order of `sentinel_ids`."""
    follows_replaced = np.concatenate(([False], is_replaced[:-1]))
    is_first = is_replaced & ~follows_replaced
    result = ids.astype(np.int32)
    result[is_first] = sentinel_ids[: int(is_first.sum())]
    return result[~(is_replaced & follows_replaced)]


def split_at_prefix(ids: np.ndarray, rng: ExampleRng) -> tuple[np.ndarray, np.ndarray]:
    """Splits a text of n tokens after a prefix of random length, uniform in [1, n - 1]."""
    if len(ids) < 2:
        return ids[:0], ids
    prefix_length = 1 + rng.randint(len(ids) - 1, Stream.PREFIX_LENGTH)
    return ids[:prefix_length], ids[prefix_length:]


def replace_single_tokens(
    ids: np.ndarray,
    rng: ExampleRng,
    config: BertStyleDenoising,
    sentinel_id: int,
    random_ids: np.ndarray,
) -> np.ndarray:
    """Replaces tokens by a sentinel or by a random one of `random_ids`, each independently."""
    num_tokens = len(ids)
    is_noise = rng.uniforms(num_tokens, Stream.MASK_SELECTION) < config.noise_density
    is_random = rng.uniforms(num_tokens, Stream.MASK_ACTION) < config.random_token_prob
    choice = rng.uniforms(num_tokens, Stream.RANDOM_TOKEN) * len(random_ids)
    replacement = np.where(is_random, random_ids[choice.astype(np.int64)], sentinel_id)
    return np.where(is_noise, replacement, ids).astype(np.int32)
