"""Generates a text for each source text with an encoder-decoder: greedy, beam search, sampling.

The compiled loops over tokens come first, then `Generator`, which tokenizes and batches texts.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.config.generation import (
    BeamSearch,
    GenerationConfig,
    Greedy,
    Sampling,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.seq2seq.network import Cache, EncoderDecoder, Source
from bert_jax.parallel.sharding import (
    batch_sharding,
    num_batch_shards,
    put_global_batch,
    replicated,
)
from bert_jax.predict.batches import compute_in_order, padded_batches
from bert_jax.predict.text_writer import Generated, TextWriter, with_text_indices
from bert_jax.pretrained.load import AnyModel, LoadedCausalLM, require_tokenizer
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq
from bert_jax.text.tokenizer import Tokenizer

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


# Rows of the table after the vocabulary (28 in T5) are never generated, unlike in Hugging Face.
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
    # The order of the rules is that of Hugging Face's logits processors: forced tokens come last
    # and win.
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


_LOWEST = -1e9
"""The score of a beam that does not exist, as in Hugging Face."""


def token_rules(config: EncoderDecoderConfig, vocab_size: int | None = None) -> TokenRules:
    """Returns the special tokens of a model; `vocab_size` as in `TokenRules`."""
    return TokenRules(
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        forced_bos_token_id=config.forced_bos_token_id,
        forced_eos_token_id=config.forced_eos_token_id,
        vocab_size=vocab_size,
    )


@functools.partial(jax.jit, static_argnames=("config", "settings", "rules", "compute"))
def generate_ids(
    params: Mapping[str, Any],
    input_ids: jax.Array,
    attention_mask: jax.Array,
    text_indices: jax.Array,
    *,
    config: EncoderDecoderConfig,
    settings: GenerationConfig,
    rules: TokenRules,
    compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
) -> jax.Array:
    """Generates a text for each source.

    It is compiled once for each shape of a batch and for each setting.

    Args:
      params: the parameters of the encoder-decoder, nested.
      input_ids, attention_mask: int32 [B, L], the sources.
      text_indices: int32 [B], from which sampling derives its random numbers.

    Returns:
      int32 [B, max_new_tokens]: the generated tokens, and padding after the end token.
    """
    model = build_encoder_decoder_network(config, compute).merge(dict(params))
    source = model.encode(input_ids, attention_mask)
    match settings.decoding:
        case BeamSearch():
            return _beam_search(model, source, settings, settings.decoding, rules)
        case Greedy() | Sampling():
            return _choose_token_by_token(model, source, settings, rules, text_indices)


class _Texts(NamedTuple):
    """Holds the state of generation without beams."""

    step: jax.Array
    tokens: jax.Array  # int32 [B, T], from the start token
    is_finished: jax.Array  # bool [B]
    cache: Cache


def _choose_token_by_token(
    model: EncoderDecoder,
    source: Source,
    settings: GenerationConfig,
    rules: TokenRules,
    text_indices: jax.Array,
) -> jax.Array:
    """Chooses the most likely token, or samples one, until each text has ended."""
    batch_size, length = len(source.attention_mask), settings.max_new_tokens

    def is_running(state: _Texts) -> jax.Array:
        return (state.step < length) & ~jnp.all(state.is_finished)

    def step(state: _Texts) -> _Texts:
        token_ids = jax.lax.dynamic_slice_in_dim(state.tokens, state.step, 1, axis=1)
        logits, cache = model.decode(token_ids, state.step, state.cache, source)
        scores = apply_rules(logits[:, 0], state.tokens, state.step, settings, rules)
        chosen = _choose(scores, settings, state.step, text_indices)
        chosen = jnp.where(state.is_finished, rules.pad_token_id, chosen).astype(jnp.int32)
        return _Texts(
            state.step + 1,
            jax.lax.dynamic_update_slice_in_dim(
                state.tokens, chosen[:, None], state.step + 1, axis=1
            ),
            state.is_finished | (chosen == rules.eos_token_id),
            cache,
        )

    # Arrays have the full length from the start, because shapes in a compiled loop are fixed.
    tokens = jnp.full((batch_size, length + 1), rules.pad_token_id, jnp.int32)
    first = _Texts(
        jnp.int32(0),
        tokens.at[:, 0].set(rules.decoder_start_token_id),
        jnp.zeros((batch_size,), bool),
        model.empty_cache(batch_size, 1, length),
    )
    # One loop on the device: the cache never leaves it and is updated in place.
    return jax.lax.while_loop(is_running, step, first).tokens[:, 1:]


def _choose(
    scores_BV: jax.Array, settings: GenerationConfig, step: jax.Array, text_indices: jax.Array
) -> jax.Array:
    """Returns the next token of each text, int32 [B]."""
    if not isinstance(settings.decoding, Sampling):
        return jnp.argmax(scores_BV, axis=1)
    likely = cut_to_likely(scores_BV, settings.decoding)
    step_key = jax.random.fold_in(jax.random.key(settings.decoding.seed), step)
    # A key for each text, so that a sampled text does not depend on the other texts of its batch.
    keys = jax.vmap(lambda index: jax.random.fold_in(step_key, index))(text_indices)
    return jax.vmap(jax.random.categorical)(keys, likely)


class _Beams(NamedTuple):
    """Holds the state of beam search: K texts that grow, and the K best that have ended."""

    step: jax.Array
    tokens: jax.Array  # int32 [B, K, T], from the start token
    scores: jax.Array  # float32 [B, K], log probabilities
    finished_tokens: jax.Array  # int32 [B, K, T], the best first
    finished_scores: jax.Array  # float32 [B, K], with the length penalty
    is_finished: jax.Array  # bool [B, K], whether there is such a text
    can_improve: jax.Array  # bool [B]
    cache: Cache


# Scores, candidates and stopping rules are as in Hugging Face's `_beam_search`, with which token
# ids are compared. Its random numbers are not reproduced.
def _beam_search(
    model: EncoderDecoder,
    source: Source,
    settings: GenerationConfig,
    beam: BeamSearch,
    rules: TokenRules,
) -> jax.Array:
    """Runs beam search as `_beam_search` of Hugging Face's `GenerationMixin`."""
    batch_size, length, num_beams = (
        len(source.attention_mask),
        settings.max_new_tokens,
        beam.num_beams,
    )
    # Divisors of the scores of texts with 1, 2, ... tokens; computed in float64 as in PyTorch.
    divisors = jnp.asarray(np.arange(1.0, length + 1) ** beam.length_penalty, jnp.float32)

    def is_running(state: _Beams) -> jax.Array:
        running = (state.step < length) & jnp.any(state.can_improve)
        if beam.early_stopping == "when_full":
            running &= ~jnp.all(state.is_finished)
        return running

    def step(state: _Beams) -> _Beams:
        token_ids = jax.lax.dynamic_index_in_dim(state.tokens, state.step, 2, keepdims=False)
        logits, cache = model.decode(token_ids, state.step, state.cache, source)
        candidates = _best_continuations(state, logits, settings, rules)
        is_last = state.step + 1 == length
        ends = (candidates.token_ids == rules.eos_token_id) | is_last
        # The K best candidates that have not ended grow further.
        growing_scores = candidates.scores + ends.astype(jnp.float32) * _LOWEST
        _, growing = jax.lax.top_k(growing_scores, num_beams)
        finished = _merge_finished(state, candidates, ends, divisors[state.step], beam)
        scores = jnp.take_along_axis(growing_scores, growing, axis=1)
        # With a positive penalty a longer text has the better score for the same log probability,
        # so the bound divides by the largest length.
        longest = beam.early_stopping == "when_impossible" and beam.length_penalty > 0
        best_possible = scores[:, :1] / (divisors[-1] if longest else divisors[state.step])
        worst = jnp.min(finished.scores, axis=1, keepdims=True)
        worst_finished = jnp.where(finished.is_finished, worst, _LOWEST)
        parents = jnp.take_along_axis(candidates.parents, growing, axis=1)
        return _Beams(
            state.step + 1,
            _take_beams(candidates.tokens, growing),
            scores,
            finished.tokens,
            finished.scores,
            finished.is_finished,
            state.can_improve & jnp.any(best_possible > worst_finished, axis=1),
            # Only the cache of self-attention is reordered; keys and values of the source exist
            # once for all its beams.
            jax.tree.map(lambda leaf: _take_beams(leaf, parents), cache),
        )

    first = _first_beams(model, batch_size, num_beams, length, rules)
    return jax.lax.while_loop(is_running, step, first).finished_tokens[:, 0, 1:]


def _first_beams(
    model: EncoderDecoder, batch_size: int, num_beams: int, length: int, rules: TokenRules
) -> _Beams:
    """Returns the state before the first token; T is `length` + 1."""
    tokens = jnp.full((batch_size, num_beams, length + 1), rules.pad_token_id, jnp.int32)
    tokens = tokens.at[:, :, 0].set(rules.decoder_start_token_id)
    lowest = jnp.full((batch_size, num_beams), _LOWEST, jnp.float32)
    return _Beams(
        jnp.int32(0),
        tokens,
        lowest.at[:, 0].set(0.0),  # the beams are equal at first, so only one of them counts
        tokens,
        lowest,
        jnp.zeros((batch_size, num_beams), bool),
        jnp.ones((batch_size,), bool),
        model.empty_cache(batch_size, num_beams, length),
    )


class _Candidates(NamedTuple):
    """Holds the 2 K best continuations of the beams of each source, the best first."""

    scores: jax.Array  # float32 [B, 2K]
    parents: jax.Array  # int32 [B, 2K], the beam that is continued
    token_ids: jax.Array  # int32 [B, 2K]
    tokens: jax.Array  # int32 [B, 2K, T], with the new token


def _best_continuations(
    state: _Beams, logits_BKV: jax.Array, settings: GenerationConfig, rules: TokenRules
) -> _Candidates:
    """Returns twice as many candidates as beams, because half of them can end at once."""
    B, K, V = logits_BKV.shape
    log_probs = jax.nn.log_softmax(logits_BKV, axis=-1).reshape(B * K, V)
    ruled = apply_rules(log_probs, state.tokens.reshape(B * K, -1), state.step, settings, rules)
    totals = ruled.reshape(B, K, V) + state.scores[:, :, None]
    scores, indices = jax.lax.top_k(totals.reshape(B, K * V), 2 * K)
    parents, token_ids = indices // V, indices % V
    tokens = jax.lax.dynamic_update_slice_in_dim(
        _take_beams(state.tokens, parents), token_ids[:, :, None], state.step + 1, axis=2
    )
    return _Candidates(scores, parents, token_ids, tokens)


class _Finished(NamedTuple):
    """Holds the best texts of each source that have ended."""

    tokens: jax.Array
    scores: jax.Array
    is_finished: jax.Array


def _merge_finished(
    state: _Beams, candidates: _Candidates, ends: jax.Array, divisor: jax.Array, beam: BeamSearch
) -> _Finished:
    """Returns the K best of the texts that had ended and of the candidates that end now."""
    K = beam.num_beams
    # Of the 2 K candidates, the second half only replaces others, and cannot end a text.
    has_ended = ends & (jnp.arange(2 * K) < K)
    scores = candidates.scores / divisor
    is_closed = ~state.can_improve
    if beam.early_stopping == "when_full":
        is_closed |= jnp.all(state.is_finished, axis=1)
    excluded = is_closed[:, None].astype(jnp.float32) + (~has_ended).astype(jnp.float32)
    scores = scores + excluded * jnp.float32(_LOWEST)
    merged_scores = jnp.concatenate([state.finished_scores, scores], axis=1)
    best_scores, best = jax.lax.top_k(merged_scores, K)
    merged_tokens = jnp.concatenate([state.finished_tokens, candidates.tokens], axis=1)
    merged_flags = jnp.concatenate([state.is_finished, has_ended], axis=1)
    return _Finished(
        _take_beams(merged_tokens, best),
        best_scores,
        jnp.take_along_axis(merged_flags, best, axis=1),
    )


def _take_beams(values: jax.Array, indices_BK: jax.Array) -> jax.Array:
    """Returns values[b, indices[b, k]] of an array [B, N, ...]."""
    B, N = values.shape[:2]
    # Rows of a flat array, because that gather copies whole rows.
    rows = (jnp.arange(B, dtype=indices_BK.dtype)[:, None] * N + indices_BK).reshape(-1)
    flat = values.reshape(B * N, *values.shape[2:])
    return jnp.take(flat, rows, axis=0).reshape(*indices_BK.shape, *values.shape[2:])


logger = logging.getLogger(__name__)


class Generator(TextWriter):
    """Generates texts: `Generator(load_seq2seq("t5-small"))("translate ...")`.

    An empty source has an empty text. Longer sources than `max_source_tokens` are truncated, with a
    warning. One program is compiled for each shape of a batch: lengths of sources are padded to
    powers of two, and so are numbers of texts on each device.
    """

    def __init__(
        self,
        model: AnyModel,
        settings: GenerationConfig = GenerationConfig(),  # noqa: B008 (frozen)
        compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
        mesh: jax.sharding.Mesh | None = None,
    ):
        """Copies the parameters to the devices.

        Args:
          mesh: the devices that share the texts of each batch, by default one device. If they
            belong to several processes, each process must generate the same list of texts.

        Raises:
          UserError: the model is an encoder, has no tokenizer, or reads fewer tokens than the
            settings ask for.
        """
        if isinstance(model, LoadedCausalLM):
            raise UserError(
                f"{model.path} is a left-to-right language model, with which no text is generated; "
                "expected T5 or BART; `bert-jax score` reads the model"
            )
        if not isinstance(model, LoadedSeq2Seq):
            raise UserError(
                f"{model.path} is an encoder, which has no decoder, so it cannot generate text; "
                "expected T5 or BART; bert_jax.Unmasker and `bert-jax fill-mask` replace masks"
            )
        self._tokenizer = require_tokenizer(model)
        _check_sizes(model, self._tokenizer, settings)
        self._config, self._path = model.config, model.path
        self._settings, self._compute = settings, compute
        # The tokenizer's size and not the table's, whose rows are padded (32,128 rows for 32,100
        # tokens in T5).
        self._rules = token_rules(model.config, self._tokenizer.vocab_size)
        self._mesh = mesh
        if mesh is None:
            self._params: Mapping[str, Any] = jax.device_put(model.params)
        else:
            # The parameters may be split over several processes; a compiled identity gathers
            # them.
            replicate = jax.jit(lambda params: params, out_shardings=replicated(mesh))
            self._params = replicate(model.params)
        self._max_length = min(settings.max_source_tokens, model.config.max_length)

    def __repr__(self) -> str:
        """Returns one line with the model and how it decodes."""
        decoding = type(self._settings.decoding).__name__
        return f"<Generator {self._path}: {decoding}, {self._settings.max_new_tokens} new tokens>"

    def _write(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int], None] | None,
        first_index: int,
    ) -> list[Generated]:
        sources = self._encode(texts)
        results = [Generated("", [], True)] * len(texts)
        indices = [index for index, text in enumerate(texts) if text.strip()]
        if on_progress is not None and len(indices) < len(texts):
            on_progress(len(texts) - len(indices))
        batches = padded_batches(
            [sources[index] for index in indices],
            pad_id=self._config.pad_token_id,
            max_length=self._max_length,
            num_shards=1 if self._mesh is None else num_batch_shards(self._mesh),
        )

        outputs = compute_in_order(
            with_text_indices(batches, [first_index + index for index in indices]),
            self._generate,
            len(indices),
            lambda rows: None if on_progress is None else on_progress(len(rows)),
        )
        for index, token_ids in zip(indices, outputs.get("token_ids", []), strict=True):
            results[index] = self._decode(token_ids)
        return results

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        template = self._tokenizer.template
        limit = self._max_length - template.num_single_special_tokens
        token_ids = self._tokenizer.encode_ids(texts)
        num_truncated = sum(len(ids) > limit for ids in token_ids)
        if num_truncated:
            logger.warning(
                "%d of %d sources have more than %d tokens and were truncated; max_source_tokens "
                "sets the limit",
                num_truncated,
                len(texts),
                self._max_length,
            )
        add_special_tokens = self._tokenizer.build_inputs_with_special_tokens
        return [add_special_tokens(ids[:limit]).tolist() for ids in token_ids]

    def _generate(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        names = ("input_ids", "attention_mask", "text_indices")
        fields: Mapping[str, Any] = {name: batch[name] for name in names}
        if self._mesh is not None:
            fields = put_global_batch(fields, batch_sharding(self._mesh))
        token_ids = generate_ids(
            self._params,
            **fields,
            config=self._config,
            settings=self._settings,
            rules=self._rules,
            compute=self._compute,
        )
        if not token_ids.is_fully_addressable:
            token_ids = multihost_utils.process_allgather(token_ids, tiled=True)
        return {"token_ids": token_ids}

    def _decode(self, row: np.ndarray) -> Generated:
        ends = np.flatnonzero(row == self._config.eos_token_id)
        num_tokens = int(ends[0]) + 1 if ends.size else len(row)
        # In the last place, a forced end token hides whether the model would have ended here.
        is_forced = self._config.forced_eos_token_id is not None and num_tokens == len(row)
        is_complete = ends.size > 0 and not is_forced
        token_ids: list[int] = row[:num_tokens].tolist()
        special_ids = self._tokenizer.special_ids
        text = self._tokenizer.decode([i for i in token_ids if i not in special_ids])
        return Generated(text.strip(), token_ids, is_complete)


def _check_sizes(model: LoadedSeq2Seq, tokenizer: Tokenizer, settings: GenerationConfig) -> None:
    """Raises a ConfigError if the settings do not fit the model."""
    num_special_tokens = tokenizer.template.num_single_special_tokens
    if settings.max_source_tokens <= num_special_tokens:
        raise ConfigError(
            f"max_source_tokens is {settings.max_source_tokens}, but {num_special_tokens} of them "
            f"are special tokens of {model.path}; expected at least {num_special_tokens + 1}"
        )
    if settings.max_new_tokens > model.config.max_target_length:
        raise ConfigError(
            f"max_new_tokens is {settings.max_new_tokens}, but {model.path} writes at most "
            f"{model.config.max_target_length} tokens; choose a smaller number"
        )
    if (
        isinstance(settings.decoding, Sampling)
        and settings.decoding.top_k > model.config.vocab_size
    ):
        raise ConfigError(
            f"top_k is {settings.decoding.top_k}, but {model.path} has {model.config.vocab_size} "
            "tokens"
        )
