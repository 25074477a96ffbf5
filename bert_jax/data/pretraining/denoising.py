"""Makes the inputs and targets of denoising: T5's span corruption and BART's noise.

The steps and their order are as in `fairseq/data/denoising_dataset.py` (Lewis et al. 2020,
section 2.2). These things differ:

- sentences end where the corpus says so. fairseq looks for the token of a full stop, which it knows
  for GPT-2's vocabulary only; with any other one its sentences never move;
- random tokens are never special tokens;
- an inserted token is random with the same probability as any other, and `TokenMasking` chooses
  from all tokens instead of the first tokens of words;
- random numbers come from the key of the example.

The rules are as in `random_spans_helper`, `random_spans_noise_mask`,
`noise_span_to_unique_sentinel` and `nonnoise_span_to_unique_sentinel` in T5's
`t5/data/preprocessors.py` (Raffel et al. 2020). Random numbers come from the key of the example.

An example is a function of the corpus, its index and its random key, as in masked LM.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.batch import DECODER_TARGET_FIELDS
from bert_jax.config.data import (
    BartDenoising,
    BertStyleDenoising,
    ConcatenatedDocuments,
    Denoising,
    PrefixLM,
    PretrainingData,
    SpanCorruption,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.dataset import CorpusWindows, WindowIndex
from bert_jax.data.pretraining.rng import ExampleRng, Stream
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import (
    TextWindow,
    sentence_at_token,
    take_sentences,
    take_tokens,
)
from bert_jax.errors import ConfigError, UserError


def add_bart_noise(
    text: TextWindow, rng: ExampleRng, config: BartDenoising, vocab_arrays: VocabArrays
) -> np.ndarray:
    """Returns the ids of a document with noise, [n] int32, without special tokens around it."""
    ids, is_sentence_start = permute_sentences(text, rng, config.permuted_sentences)
    tokens = _ReplacementTokens(rng, config.random_token_prob, vocab_arrays)
    match config.token_noise:
        case TokenMasking(ratio=ratio):
            ids = ids.copy()
            chosen = _choose_tokens(len(ids), rng, ratio)
            ids[chosen] = tokens.draw(len(chosen))
        case TokenDeletion(ratio=ratio):
            ids = np.delete(ids, _choose_tokens(len(ids), rng, ratio))
        case TextInfilling() as infilling:
            # A byte-level token has no mark of a new word where its sentence begins.
            is_word_start = vocab_arrays.word_starts[ids] | is_sentence_start
            ids = _infill(ids, rng, infilling, tokens, is_word_start)
        case None:
            pass
    if rng.uniform(Stream.ROTATION) < config.rotation_prob:
        # Word 0 of the stream was used for the decision, so the amount is word 1.
        ids = np.roll(ids, -rng.randint(len(ids) + 1, Stream.ROTATION, 1))
    return ids


def permute_sentences(
    text: TextWindow, rng: ExampleRng, fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Exchanges the places of a fraction of the sentences, rounded up.

    Returns:
      The ids, [n] int32, and whether a sentence begins at each of them, [n] bool. The beginning of
      the window does not count, because it may be in the middle of a sentence.
    """
    num_sentences = len(text.sentence_ends)
    num_permuted = math.ceil(num_sentences * fraction)
    chosen = rng.permutation(num_sentences, Stream.SENTENCE_CHOICE)[:num_permuted]
    order = np.arange(num_sentences)
    order[chosen] = chosen[rng.permutation(num_permuted, Stream.SENTENCE_PERMUTATION)]
    sentences = np.split(text.ids.astype(np.int32), text.sentence_ends[:-1].astype(np.int64))
    is_start = [np.arange(len(sentence)) == 0 for sentence in sentences]
    is_start[0][:] = False
    return (
        np.concatenate([sentences[index] for index in order.tolist()]),
        np.concatenate([is_start[index] for index in order.tolist()]),
    )


class _ReplacementTokens:
    """Draws the tokens that replace others: the mask token, or a random one."""

    def __init__(self, rng: ExampleRng, random_token_prob: float, vocab_arrays: VocabArrays):
        self._rng, self._random_token_prob = rng, random_token_prob
        self._vocab_arrays, self._num_sampled = vocab_arrays, 0

    # The position in the stream moves on, because infilling draws twice: for spans, and for
    # inserted tokens.
    def draw(self, n: int) -> np.ndarray:
        """Draws [n] int32 ids; each call draws new ones."""
        random_ids, start = self._vocab_arrays.maskable_ids, self._num_sampled
        self._num_sampled += n
        is_random = self._rng.uniforms(n, Stream.MASK_ACTION, start) < self._random_token_prob
        choice = self._rng.uniforms(n, Stream.RANDOM_TOKEN, start) * len(random_ids)
        random_tokens = random_ids[choice.astype(np.int64)]
        return np.where(is_random, random_tokens, self._vocab_arrays.mask_id).astype(np.int32)


def _choose_tokens(num_tokens: int, rng: ExampleRng, ratio: float) -> np.ndarray:
    num_chosen = math.ceil(num_tokens * ratio)
    # Exactly the ratio in each text. Independent draws would vary around it.
    return rng.permutation(num_tokens, Stream.MASK_SELECTION)[:num_chosen]


def _infill(
    ids: np.ndarray,
    rng: ExampleRng,
    config: TextInfilling,
    tokens: _ReplacementTokens,
    is_word_start: np.ndarray,
) -> np.ndarray:
    """Replaces spans of words by one token each, and inserts a token for each span of length 0.

    Spans may overlap, as in fairseq: a span that begins inside another one has no token.
    """
    starts = np.flatnonzero(is_word_start)
    num_words = len(starts)
    lengths = draw_span_lengths(math.ceil(num_words * config.ratio), rng, config.poisson_lambda)
    num_inserted = int((lengths == 0).sum())
    # Spans of length 0 replace nothing. As in fairseq, their tokens are inserted at the end, at
    # random places.
    lengths = lengths[lengths > 0]
    first_words = rng.permutation(num_words, Stream.MASK_SELECTION)[: len(lengths)]
    begins = starts[first_words]
    # A span reaches to the next word after its last one. Tokens before the first word, which
    # continue a word that was cut, belong to no span.
    ends = np.append(starts, len(ids))[np.minimum(first_words + lengths, num_words)]
    changes = np.zeros(len(ids) + 2, np.int64)
    # The first token of a span stays and becomes the replacement, so deletion begins one token
    # later. `add.at` counts spans that begin at the same token.
    np.add.at(changes, begins + 1, 1)
    np.add.at(changes, np.maximum(ends, begins + 1), -1)
    is_deleted = np.cumsum(changes)[: len(ids)] > 0
    result = ids.copy()
    result[begins] = tokens.draw(len(begins))
    return _insert(result[~is_deleted], tokens.draw(num_inserted), rng)


def _insert(ids: np.ndarray, inserted: np.ndarray, rng: ExampleRng) -> np.ndarray:
    """Inserts tokens at random places; all results are equally likely."""
    length = len(ids) + len(inserted)
    is_inserted = np.zeros(length, bool)
    is_inserted[rng.permutation(length, Stream.INSERTION)[: len(inserted)]] = True
    result = np.empty(length, np.int32)
    result[is_inserted], result[~is_inserted] = inserted, ids
    return result


def draw_span_lengths(num_words: int, rng: ExampleRng, poisson_lambda: float) -> np.ndarray:
    """Draws Poisson lengths until their sum is at least `num_words`; the last one is shortened.

    Returns:
      [n] int64, of sum `num_words`; lengths may be 0.
    """
    cumulative = _poisson_table(poisson_lambda)
    lengths = np.zeros(0, np.int64)
    while lengths.sum() < num_words:
        # With a mean of 3 one round is nearly always enough; small lambdas draw many lengths of 0.
        uniforms = rng.uniforms(num_words, Stream.SPAN_LENGTH, len(lengths))
        sampled = np.searchsorted(cumulative, uniforms, side="right")
        lengths = np.concatenate((lengths, sampled))
    sums = np.cumsum(lengths)
    num_spans = int(np.searchsorted(sums, num_words)) + 1 if num_words else 0
    lengths = lengths[:num_spans]
    if num_spans:
        lengths[-1] -= sums[num_spans - 1] - num_words
    return lengths


@functools.cache
def _poisson_table(poisson_lambda: float) -> np.ndarray:
    """Returns cumulative probabilities of lengths 0, 1, ..., cut at a probability below 1e-7."""
    probabilities = [math.exp(-poisson_lambda)]
    # fairseq's table ends at the same probability and at 128 lengths. For a large lambda, whose
    # first probabilities are tiny, it would end at once, hence the first condition of the two.
    while len(probabilities) < 128 and (
        len(probabilities) <= poisson_lambda or probabilities[-1] >= 1e-7
    ):
        probabilities.append(probabilities[-1] * poisson_lambda / len(probabilities))
    cumulative = np.cumsum(probabilities)
    return cumulative / cumulative[-1]


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
    # As `random_spans_helper`: the text is longer than the inputs, since noise shrinks to
    # sentinels.
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
    # The count uses at least 2 tokens, as T5's code does; a text of 1 token is cut to size at the
    # end.
    others = _random_partition(num_others, num_spans, rng, Stream.NONNOISE_SPAN_LENGTH)
    lengths = np.stack((others, noise), axis=1).reshape(-1)
    return np.repeat(np.arange(2 * num_spans) % 2 == 1, lengths)[:num_tokens]


def _random_partition(total: int, num_parts: int, rng: ExampleRng, stream: Stream) -> np.ndarray:
    """Divides `total` into parts of at least 1, all divisions being equally likely, [num_parts]."""
    # Choosing the places of the boundaries makes all compositions equally likely; drawing lengths
    # one after the other would not.
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


DENOISING_FIELDS = ("input_ids", "attention_mask", *DECODER_TARGET_FIELDS)
"""The batch fields of denoising."""


# In the order of the corpus; T5's code shuffles the documents before it joins them.
class ConcatenatedDocumentsDataset(CorpusWindows):
    """Cuts the corpus, read as one text, into texts of `max_num_tokens` tokens, as T5 does."""

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> TextWindow:
        """Makes the text of an example; it has fewer tokens only if the corpus has fewer."""
        del document_index, key
        part_index, offset = self.find_window_start(example_index, epoch_key)
        part, later_parts = self.corpus.read(part_index), self.later_parts(part_index)
        ids = take_tokens(part, offset, self.max_num_tokens, later_parts)
        return TextWindow(ids, np.array([len(ids)], np.uint32))


class DocumentTextsDataset(WindowIndex):
    """Cuts each document into texts of at most `max_num_tokens` tokens and keeps its sentences."""

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> TextWindow:
        """Makes the text of an example; its last sentence may be cut."""
        del key
        part, offset, later_parts = self.find_window_start(example_index, document_index, epoch_key)
        window = take_sentences(
            part, sentence_at_token(part, offset), self.max_num_tokens, later_parts
        )
        return cut_window(window, self.max_num_tokens)


def cut_window(window: TextWindow, max_num_tokens: int) -> TextWindow:
    """Returns the first `max_num_tokens` tokens of a window; its last sentence may be cut."""
    ids = window.ids[:max_num_tokens]
    ends = window.sentence_ends
    return TextWindow(ids, np.append(ends[ends < len(ids)], np.uint32(len(ids))))


class SourceAndTarget(NamedTuple):
    """Holds what the encoder reads and what the decoder predicts, with their special tokens."""

    source: np.ndarray
    target: np.ndarray


class Denoiser:
    """Makes sources and targets from texts, and batch fields from them.

    Attributes:
      max_num_tokens: the length of the texts to make examples from.
    """

    def __init__(
        self, config: Denoising, seq_length: int, target_length: int, vocab_arrays: VocabArrays
    ) -> None:
        """Takes the lengths of the encoder and of the decoder, special tokens included.

        Raises:
          ConfigError: a length is too short for the noise.
          UserError: the vocabulary has no sentinels, or too few of them.
        """
        self._config, self._vocab_arrays = config, vocab_arrays
        self._lengths = seq_length, target_length
        self.max_num_tokens = max_text_length(config, seq_length, target_length)
        _check_sentinels(config, self.max_num_tokens, len(vocab_arrays.sentinel_ids))

    def corrupt(self, text: TextWindow, key: int) -> SourceAndTarget:
        """Makes the example of a text with the random key of the example."""
        config, vocab_arrays, rng = self._config, self._vocab_arrays, ExampleRng(key)
        eos = np.array([vocab_arrays.sep_id], np.int32)
        ids = text.ids.astype(np.int32)
        match config:
            case SpanCorruption():
                source, target = corrupt_spans(ids, rng, config, vocab_arrays.sentinel_ids)
            case PrefixLM():
                source, target = split_at_prefix(ids, rng)
            case BertStyleDenoising():
                sentinel, random_ids = vocab_arrays.sentinel_ids[0], vocab_arrays.maskable_ids
                source = replace_single_tokens(ids, rng, config, int(sentinel), random_ids)
                target = ids
            case BartDenoising():
                bos = np.array([vocab_arrays.cls_id], np.int32)
                source = add_bart_noise(text, rng, config, vocab_arrays)
                # Spans of length 0 insert tokens, so a short text may have become longer.
                source = np.concatenate((bos, source[: self._lengths[0] - 2]))
                target = np.concatenate((bos, ids))
        return SourceAndTarget(np.concatenate((source, eos)), np.concatenate((target, eos)))

    def build_fields(self, texts: Sequence[TextWindow], keys: np.ndarray) -> dict[str, np.ndarray]:
        """Builds the fields of a batch from the texts of its examples and their random keys."""
        examples = [self.corrupt(text, key) for text, key in zip(texts, keys.tolist(), strict=True)]
        return collate_sources_and_targets(examples, *self._lengths, self._vocab_arrays.pad_id)


def collate_sources_and_targets(
    examples: Sequence[SourceAndTarget], seq_length: int, target_length: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Pads sources and targets to the lengths of the encoder and of the decoder.

    Returns:
      `input_ids` and `attention_mask`, int32 [B, L]; `decoder_target_ids` int32 and
      `decoder_target_weights` float32, [B, T].
    """
    input_ids = np.full((len(examples), seq_length), pad_id, np.int32)
    attention_mask = np.zeros_like(input_ids)
    target_ids = np.zeros((len(examples), target_length), np.int32)
    target_weights = np.zeros(target_ids.shape, np.float32)
    for row, (source, target) in enumerate(examples):
        input_ids[row, : len(source)] = source
        attention_mask[row, : len(source)] = 1
        target_ids[row, : len(target)] = target
        target_weights[row, : len(target)] = 1.0
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "decoder_target_ids": target_ids,
        "decoder_target_weights": target_weights,
    }


def max_text_length(config: Denoising, seq_length: int, target_length: int) -> int:
    """Returns the length of the texts whose sources and targets fit with their special tokens.

    Raises:
      ConfigError: a length is too short for the noise.
    """
    name = type(config).__name__
    if target_length < 3:
        raise ConfigError(
            f"a phase of train.phases has target_length {target_length}, but data.masking {name} "
            "needs targets of at least 3 tokens; set target_length to the number of tokens that "
            "the decoder predicts"
        )
    if seq_length < 3:
        raise ConfigError(
            f"a phase of train.phases has seq_length {seq_length}, but data.masking {name} needs "
            "sequences of at least 3 tokens"
        )
    match config:
        case SpanCorruption():
            lengths = span_corruption_lengths(seq_length, config)
            if lengths.targets_length > target_length:
                raise ConfigError(
                    f"a phase of train.phases has target_length {target_length}, but data.masking "
                    f"{name} makes targets of {lengths.targets_length} tokens from sequences of "
                    f"{seq_length}; set target_length to at least {lengths.targets_length}"
                )
            return lengths.num_tokens
        case PrefixLM():
            return min(seq_length, target_length)
        case BertStyleDenoising():
            # The end token takes one place. A prefix LM needs no such room, because each side lacks
            # at least one token of the text.
            return min(seq_length, target_length) - 1
        case BartDenoising():
            # Both sides have a start token and an end token.
            return min(seq_length, target_length) - 2


# T5's code would go on with ordinary tokens.
def _check_sentinels(config: Denoising, num_tokens: int, num_sentinels: int) -> None:
    match config:
        case SpanCorruption():
            num_needed = count_spans(num_tokens, config).num_spans
        case BertStyleDenoising():
            num_needed = 1
        case PrefixLM() | BartDenoising():
            num_needed = 0
    if num_sentinels < num_needed:
        raise UserError(
            f"the tokenizer has {num_sentinels or 'no'} sentinel tokens (<extra_id_0>, ...), but "
            f"data.masking {type(config).__name__} needs {num_needed} for texts of {num_tokens} "
            "tokens. Train a tokenizer with `bert-jax tokenizer train --kind unigram --sentinels "
            f"{max(100, num_needed)}`, and prepare the text with it"
        )


def make_denoising_dataset(
    corpus: PreparedCorpus, data: PretrainingData, max_num_tokens: int
) -> ConcatenatedDocumentsDataset | DocumentTextsDataset:
    """Makes the dataset of texts for an input format."""
    if isinstance(data.input_format, ConcatenatedDocuments):
        return ConcatenatedDocumentsDataset(corpus, max_num_tokens)
    return DocumentTextsDataset(corpus, max_num_tokens)
