"""Makes the batches of denoising from a prepared corpus: texts, their noise, batch fields.

An example is a function of the corpus, its index and its random key, as that of masked LM.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.batch import DECODER_TARGET_FIELDS
from bert_jax.data.config import ConcatenatedDocuments, PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.dataset import CorpusWindows, WindowIndex
from bert_jax.data.pretraining.denoising.bart_noise import add_bart_noise
from bert_jax.data.pretraining.denoising.config import (
    BartDenoising,
    BertStyleDenoising,
    Denoising,
    PrefixLM,
    SpanCorruption,
)
from bert_jax.data.pretraining.denoising.span_corruption import (
    corrupt_spans,
    count_spans,
    replace_single_tokens,
    span_corruption_lengths,
    split_at_prefix,
)
from bert_jax.data.pretraining.rng import ExampleRng
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import TextWindow, sentence_at_token, take_sentences
from bert_jax.errors import ConfigError, UserError

DENOISING_FIELDS = ("input_ids", "attention_mask", *DECODER_TARGET_FIELDS)
"""The batch fields of denoising."""


class ConcatenatedDocumentsDataset(CorpusWindows):
    """Cuts the corpus, read as one text, into texts of `max_num_tokens` tokens, as T5 does."""

    def read(self, example_index: int, document_index: int, key: int) -> TextWindow:
        """Makes the text of an example; it has fewer tokens only if the corpus has fewer."""
        part_index, offset = self.find_window_start(example_index, key)
        chunks = [self.corpus.read(part_index).ids[offset : offset + self.max_num_tokens]]
        num_missing = self.max_num_tokens - len(chunks[0])
        later_parts = self.later_parts(part_index)
        while num_missing and (part := next(later_parts, None)) is not None:
            chunks.append(part.ids[:num_missing])
            num_missing -= len(chunks[-1])
        ids = np.concatenate(chunks)
        return TextWindow(ids, np.array([len(ids)], np.uint32))


class DocumentTextsDataset(WindowIndex):
    """Cuts each document into texts of at most `max_num_tokens` tokens and keeps its sentences."""

    def read(self, example_index: int, document_index: int, key: int) -> TextWindow:
        """Makes the text of an example; its last sentence may be cut."""
        part, offset, later_parts = self.find_window_start(
            example_index, document_index, ExampleRng(key)
        )
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
            return min(seq_length, target_length) - 1
        case BartDenoising():
            return min(seq_length, target_length) - 2


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
