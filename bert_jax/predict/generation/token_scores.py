"""Changes the scores of the next token: forced and forbidden tokens, and the cut of sampling.

The rules and their order are those of Hugging Face's logits processors. A score of minus infinity
forbids a token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.predict.generation.config import GenerationConfig, Sampling

_FORBIDDEN = -jnp.inf


class TokenRules(NamedTuple):
    """Holds the tokens of a model that generation must know.

    Attributes:
      eos_token_id: ends a text.
      pad_token_id: follows the end of a text.
      decoder_start_token_id: the first decoder input.
      forced_bos_token_id: the first generated token; None for any.
      forced_eos_token_id: the last token of a text of the largest length; None for any.
      vocab_size: the number of tokens with a name; the table may have more rows, which are never
        generated. None for all rows.
    """

    eos_token_id: int
    pad_token_id: int
    decoder_start_token_id: int
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    vocab_size: int | None = None


def apply_rules(
    scores_RV: jax.Array,
    tokens_RT: jax.Array,
    step: jax.Array,
    config: GenerationConfig,
    rules: TokenRules,
) -> jax.Array:
    """Returns the scores of the next token with forced and forbidden tokens, float32 [R, V].

    Args:
      scores_RV: logits or log probabilities.
      tokens_RT: int32 [R, T], the start token and the tokens generated so far.
      step: int32 [], how many tokens were generated.
    """
    vocabulary = jnp.arange(scores_RV.shape[1])
    if rules.vocab_size is not None:
        scores_RV = jnp.where(vocabulary < rules.vocab_size, scores_RV, _FORBIDDEN)
    if config.no_repeat_ngram_size:
        repeated = _repeated_ngrams(
            tokens_RT, step + 1, config.no_repeat_ngram_size, len(vocabulary)
        )
        scores_RV = jnp.where(repeated, _FORBIDDEN, scores_RV)
    if config.min_new_tokens:
        is_early = (vocabulary == rules.eos_token_id) & (step < config.min_new_tokens)
        scores_RV = jnp.where(is_early, _FORBIDDEN, scores_RV)
    for token_id, forced_step in (
        (rules.forced_bos_token_id, 0),
        (rules.forced_eos_token_id, config.max_new_tokens - 1),
    ):
        if token_id is not None:
            # The forced token has the score 0: log probability of a certain event.
            forced = jnp.where(vocabulary == token_id, 0.0, _FORBIDDEN)
            scores_RV = jnp.where(step == forced_step, forced, scores_RV)
    return scores_RV


def _repeated_ngrams(
    tokens_RT: jax.Array, length: jax.Array, size: int, vocab_size: int
) -> jax.Array:
    """Returns which tokens would complete an n-gram that occurred before, bool [R, V].

    Args:
      length: int32 [], how many of the T tokens exist.
    """
    rows, capacity = tokens_RT.shape
    num_starts = capacity - size + 1
    if num_starts < 1:
        return jnp.zeros((rows, vocab_size), bool)
    starts = jnp.arange(num_starts)
    matches = jnp.broadcast_to((starts + size <= length) & (length >= size - 1), (rows, num_starts))
    for offset in range(size - 1):
        # A start that is out of range is clamped, and then `length >= size - 1` is false.
        newest = jax.lax.dynamic_slice_in_dim(tokens_RT, length - size + 1 + offset, 1, axis=1)
        matches &= tokens_RT[:, offset : offset + num_starts] == newest
    return (
        jnp.zeros((rows, vocab_size), bool)
        .at[jnp.arange(rows)[:, None], tokens_RT[:, size - 1 :]]
        .max(matches)
    )


def cut_to_likely(scores_RV: jax.Array, sampling: Sampling) -> jax.Array:
    """Applies temperature, top-k and top-p to scores [R, V]."""
    scores_RV = scores_RV / sampling.temperature
    vocab_size = scores_RV.shape[1]
    if 0 < sampling.top_k < vocab_size:
        smallest = jax.lax.top_k(scores_RV, sampling.top_k)[0][:, -1:]
        scores_RV = jnp.where(scores_RV < smallest, _FORBIDDEN, scores_RV)
    if sampling.top_p < 1.0:
        ascending = jnp.argsort(scores_RV, axis=1)
        sorted_scores = jnp.take_along_axis(scores_RV, ascending, axis=1)
        cumulative = jnp.cumsum(jax.nn.softmax(sorted_scores, axis=1), axis=1)
        # The most likely token is always kept.
        is_cut = (cumulative <= 1.0 - sampling.top_p).at[:, -1].set(False)
        ranks = jnp.argsort(ascending, axis=1)
        scores_RV = jnp.where(jnp.take_along_axis(is_cut, ranks, axis=1), _FORBIDDEN, scores_RV)
    return scores_RV
