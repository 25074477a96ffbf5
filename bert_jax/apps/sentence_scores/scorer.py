"""Scores sentences by the log-probabilities of their tokens.

score = SentenceScorer(load_model("exported"))
score("The dogs bark.").log_probability     # -21.3
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, overload

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import ConfigError, UserError, require_list_of_texts
from bert_jax.models.encoder import EncoderConfig, EncoderDecoderConfig
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.model import build_encoder_decoder_network, build_network
from bert_jax.predict.batches import (
    Arrays,
    compute_in_order,
    padded_batches,
    params_to_device,
)
from bert_jax.predict.checks import shown_text
from bert_jax.pretrained.load import (
    AnyModel,
    LoadedCausalLM,
    LoadedModel,
    require_encoder,
    require_masked_lm,
    require_tokenizer,
)
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq
from bert_jax.text.tokenizer import Encoding

Masking = Literal["original", "within_word_l2r"]
"""Which tokens a masked LM does not see when it predicts one: that token (Salazar et al. 2020), or
also the later tokens of its word, which would give a rare word away (Kauf and Ivanova 2023)."""
MASKINGS: tuple[Masking, ...] = get_args(Masking)

_Method = Literal["masked", "causal", "replaced", "seq2seq"]
_TEXTS_AT_ONCE = 1024
_TOKENS_AT_ONCE = 1 << 20
"""A masked LM needs a row for each token of a text, so at most this many tokens are in a group."""


class SentenceScore(NamedTuple):
    """Holds the score of a text.

    Attributes:
      text: the text.
      tokens: its tokens, without special tokens.
      log_probabilities: the natural logarithm of the probability of each token, float32 [n].
    """

    text: str
    tokens: list[str]
    log_probabilities: np.ndarray

    @property
    def log_probability(self) -> float:
        """Returns the sum over the tokens; 0 for a text without tokens."""
        return float(self.log_probabilities.sum(dtype=np.float64))


class SentenceScorer:
    """Computes how probable a model finds a text, token by token.

    masked LM            log P(token | the other tokens); the sum is the pseudo-log-likelihood
    left-to-right LM     log P(token | the tokens before it, which begin with [CLS])
    encoder-decoder      log P(token | the tokens before it, an empty source)
    ELECTRA, DeBERTa-v3  log P(token is original | all tokens), by the discriminator

    The special tokens around a text are part of the input, but are not scored. All but the last
    kind of probabilities are over the vocabulary of the tokenizer, without padding of the table.
    """

    def __init__(self, model: AnyModel, *, masking: Masking = "original"):
        """Copies the parameters to the device.

        Args:
          masking: which tokens are hidden from a masked LM.

        Raises:
          ConfigError: the masking is unknown, or not "original" for a model that is no masked LM.
          UserError: the model has no tokenizer or no head that gives a token a probability.
        """
        if masking not in MASKINGS:
            raise ConfigError(f"masking is {masking!r}; expected {' or '.join(MASKINGS)}")
        self._masking = masking
        self._method: _Method
        if isinstance(model, LoadedSeq2Seq):
            self._method, config = "seq2seq", model.config
            self._tokenizer, self._pad_id = require_tokenizer(model), model.config.pad_token_id
            self._params: Any = jax.device_put(model.params)
        else:
            is_causal = isinstance(model, LoadedCausalLM)
            encoder = model.network if is_causal else require_encoder(model, "score texts")
            config, self._tokenizer = encoder.config, require_tokenizer(encoder)
            self._pad_id = self._tokenizer.pad_id
            self._method, parts = _method_of(encoder, is_causal=is_causal)
            self._params = params_to_device(encoder, parts)
        if self._method != "masked" and masking != "original":
            raise ConfigError(
                f"masking is {masking!r}, but {model.path} is not a masked language model; "
                "leave out masking"
            )
        self._path, self._max_length = model.path, config.max_length
        # The number of special tokens before a text: one in most families, none in T5.
        marked = self._tokenizer.build_inputs_with_special_tokens([-1])
        self._num_prefix_tokens = marked.tolist().index(-1)
        self._compute = functools.partial(
            _COMPILED[self._method], config=config, vocab_size=self._tokenizer.vocab_size
        )

    @overload
    def __call__(self, texts: str) -> SentenceScore: ...

    @overload
    def __call__(
        self,
        texts: list[str] | tuple[str, ...],
        on_progress: Callable[[int], object] | None = None,
    ) -> list[SentenceScore]: ...

    def __call__(
        self,
        texts: str | Sequence[str],
        on_progress: Callable[[int], object] | None = None,
    ) -> SentenceScore | list[SentenceScore]:
        """Scores one text, or each text of a list.

        Args:
          on_progress: called with the number of texts scored so far, after each group of 1,024.

        Raises:
          UserError: a text is longer than the model allows.
        """
        if isinstance(texts, str):
            return self._score([texts])[0]
        require_list_of_texts(texts)
        scores: list[SentenceScore] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            scores += self._score(texts[start : start + _TEXTS_AT_ONCE])
            if on_progress is not None:
                on_progress(len(scores))
        return scores

    def _score(self, texts: Sequence[str]) -> list[SentenceScore]:
        encodings = self._tokenizer.encode_batch(texts)
        sequences = [
            self._tokenizer.build_inputs_with_special_tokens(encoding.ids).tolist()
            for encoding in encodings
        ]
        for text, sequence in zip(texts, sequences, strict=True):
            if len(sequence) > self._max_length:
                raise UserError(
                    f"the text {shown_text(text)} has {len(sequence)} tokens with special tokens, "
                    f"but {self._path} reads {self._max_length}; shorten or split it"
                )
        if self._method == "masked":
            values: list[np.ndarray] = []
            for start, end in _groups([len(sequence) ** 2 for sequence in sequences]):
                values += self._score_masked(sequences[start:end], encodings[start:end])
        else:
            values = self._score_unmasked(sequences, encodings)
        tokens = self._tokenizer.id_to_token
        return [
            SentenceScore(text, [tokens(token_id) for token_id in encoding.ids], value)
            for text, encoding, value in zip(texts, encodings, values, strict=True)
        ]

    def _score_masked(
        self, sequences: list[list[int]], encodings: Sequence[Encoding]
    ) -> list[np.ndarray]:
        """Scores each token in a row of its own, in which it is masked."""
        rows: list[list[int]] = []
        positions: list[int] = []
        targets: list[int] = []
        for sequence, encoding in zip(sequences, encodings, strict=True):
            for index, token_id in enumerate(encoding.ids):
                row = list(sequence)
                for masked in self._masked_tokens(encoding, index):
                    row[self._num_prefix_tokens + masked] = self._tokenizer.mask_id
                rows.append(row)
                positions.append(self._num_prefix_tokens + index)
                targets.append(token_id)
        extra = {"positions": np.array(positions), "targets": np.array(targets)}
        outputs = self._run(rows, extra).get("log_probabilities", [])
        ends = np.cumsum([len(encoding.ids) for encoding in encodings])[:-1]
        return np.split(np.array(outputs, np.float32), ends)

    def _masked_tokens(self, encoding: Encoding, predicted: int) -> list[int]:
        word = encoding.word_ids[predicted]
        if self._masking == "original":
            return [predicted]
        later = range(predicted, len(encoding.ids))
        return [index for index in later if encoding.word_ids[index] == word]

    def _score_unmasked(
        self, sequences: list[list[int]], encodings: Sequence[Encoding]
    ) -> list[np.ndarray]:
        """Scores all tokens of a text in one pass."""
        outputs = self._run(sequences, {}).get("log_probabilities", [])
        return [
            values[self._num_prefix_tokens : self._num_prefix_tokens + len(encoding.ids)]
            for values, encoding in zip(outputs, encodings, strict=True)
        ]

    def _run(
        self, rows: Sequence[Sequence[int]], extra: Mapping[str, np.ndarray]
    ) -> dict[str, list[np.ndarray]]:
        def batches() -> Iterator[tuple[list[int], Arrays]]:
            for indices, batch in padded_batches(
                rows, pad_id=self._pad_id, max_length=self._max_length
            ):
                for name, values in extra.items():
                    batch[name] = np.zeros(len(batch["input_ids"]), np.int32)
                    batch[name][: len(indices)] = values[indices]
                yield indices, batch

        empty = self._tokenizer.build_inputs_with_special_tokens([])
        if self._method == "seq2seq":
            compute = functools.partial(self._compute, self._params, source=empty)
        else:
            compute = functools.partial(self._compute, self._params)
        return compute_in_order(batches(), compute, len(rows))


def _groups(costs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields ranges of consecutive texts that cost at most `_TOKENS_AT_ONCE`, or of one text."""
    start = total = 0
    for index, cost in enumerate(costs):
        if index > start and total + cost > _TOKENS_AT_ONCE:
            yield start, index
            start, total = index, 0
        total += cost
    if costs:
        yield start, len(costs)


def _method_of(model: LoadedModel, *, is_causal: bool) -> tuple[_Method, tuple[str, ...]]:
    """Returns how a model scores tokens, and the parts of its parameters that it needs."""
    if is_causal:
        return "causal", ("encoder", *masked_lm_parts(model.config))
    if "replaced_token" in model.params:
        return "replaced", ("encoder", "replaced_token")
    require_masked_lm(model, "score texts")
    return "masked", ("encoder", *masked_lm_parts(model.config))


def masked_log_probabilities(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    *,
    config: EncoderConfig,
    vocab_size: int,
) -> dict[str, jax.Array]:
    """Returns log P(target) at the position of each row, {"log_probabilities": float32 [B]}."""
    model = build_network(config, ("masked_lm",)).merge(dict(params))
    hidden = model.encode(batch).last_hidden_state
    logits_BV = model.masked_lm_logits(gather_positions(hidden, batch["positions"][:, None]))[:, 0]
    log_probabilities = jax.nn.log_softmax(logits_BV[:, :vocab_size])
    return {"log_probabilities": _at(log_probabilities, batch["targets"])}


def causal_log_probabilities(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    *,
    config: EncoderConfig,
    vocab_size: int,
) -> dict[str, jax.Array]:
    """Returns log P(token | tokens before it), {"log_probabilities": float32 [B, L]}.

    The first token has no probability; its entry is 0.
    """
    model = build_network(config, ("masked_lm",)).merge(dict(params))
    logits = model.masked_lm_logits(model.encode(batch, causal=True).last_hidden_state[:, :-1])
    log_probabilities = jax.nn.log_softmax(logits[..., :vocab_size])
    values = _at(log_probabilities, batch["input_ids"][:, 1:])
    return {"log_probabilities": jnp.pad(values, ((0, 0), (1, 0)))}


def not_replaced_log_probabilities(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    *,
    config: EncoderConfig,
    vocab_size: int,
) -> dict[str, jax.Array]:
    """Returns log P(the token was not replaced), {"log_probabilities": float32 [B, L]}."""
    del vocab_size
    model = build_network(config, ("replaced_token",)).merge(dict(params))
    logits = model.replaced_token(model.encode(batch).last_hidden_state)
    return {"log_probabilities": -jax.nn.softplus(logits.astype(jnp.float32))}


def seq2seq_log_probabilities(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    source: jax.Array,
    *,
    config: EncoderDecoderConfig,
    vocab_size: int,
) -> dict[str, jax.Array]:
    """Returns log P(token | tokens before it, source), {"log_probabilities": float32 [B, L]}.

    Args:
      batch: the texts as targets, with their special tokens.
      source: int32 [S], the input of the encoder for all texts.
    """
    model = build_encoder_decoder_network(config, ComputeConfig()).merge(dict(params))
    targets = batch["input_ids"]
    inputs = jnp.roll(targets, 1, axis=1).at[:, 0].set(config.decoder_start_token_id)
    sources = jnp.broadcast_to(source, (len(targets), source.size))
    hidden = model(sources, decoder_input_ids=inputs).last_hidden_state
    log_probabilities = jax.nn.log_softmax(model.logits(hidden)[..., :vocab_size])
    return {"log_probabilities": _at(log_probabilities, targets)}


# Compiled here, not by each scorer: the checkpoints of a run share their programs.
_COMPILED: dict[_Method, Callable[..., dict[str, jax.Array]]] = {
    "masked": jax.jit(masked_log_probabilities, static_argnames=("config", "vocab_size")),
    "causal": jax.jit(causal_log_probabilities, static_argnames=("config", "vocab_size")),
    "replaced": jax.jit(not_replaced_log_probabilities, static_argnames=("config", "vocab_size")),
    "seq2seq": jax.jit(seq2seq_log_probabilities, static_argnames=("config", "vocab_size")),
}


def _at(values: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns the value of each id in the last axis."""
    return jnp.take_along_axis(values, ids[..., None], axis=-1)[..., 0]
