"""Makes the examples of each input format from a prepared corpus: pairs, segments, sentences.

Examples are numbered document by document. The number of examples of a document is the same in
every epoch; the text of an example depends on the corpus, its index, its random key, and the key of
its epoch, with which all windows of a document move together.
"""

from collections.abc import Iterator

import numpy as np

from bert_jax.config.data import DocSentences, FullSentences, InputFormat, PairFormat
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.shards import DocumentPart
from bert_jax.data.pretraining.rng import (
    ExampleRng,
    Stream,
    random_bits,
    scale_bits,
)
from bert_jax.data.pretraining.sentence_pairs import (
    SentencePair,
    make_pair,
    sample_target_seq_length,
)
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import (
    sentence_at_token,
    take_sentences,
    take_sentences_from_offset,
    take_sentences_that_fit,
    take_tokens,
    window_offset,
    window_phase,
    windows_per_document,
)
from bert_jax.errors import UserError


class WindowIndex:
    """Maps examples to windows of documents, of at most `max_num_tokens` tokens.

    Attributes:
      window_tokens: [D] int64, tokens that a window of each document holds.
    """

    def __init__(
        self, corpus: PreparedCorpus, max_num_tokens: int, window_tokens: np.ndarray | None = None
    ) -> None:
        """Takes the tokens [D] of windows that hold fewer than `max_num_tokens`, if there are."""
        self.corpus = corpus
        self.max_num_tokens = max_num_tokens
        if window_tokens is None:
            window_tokens = np.full(corpus.num_documents, max_num_tokens)
        self.window_tokens = window_tokens
        counts = windows_per_document(corpus.tokens_per_document, window_tokens)
        self.first_example = np.concatenate(([0], np.cumsum(counts)))
        self._part_starts = corpus.part_starts
        self._max_tokens_by_document: dict[int, int] = {}

    @property
    def num_examples(self) -> int:
        """Returns the number of examples in one epoch."""
        return int(self.first_example[-1])

    @property
    def mean_example_tokens(self) -> float:
        """Returns the mean number of tokens of an example, without special tokens."""
        lengths = np.minimum(self.corpus.tokens_per_document, self.window_tokens)
        return float(lengths @ np.diff(self.first_example)) / self.num_examples

    def find_documents(self, example_indices: np.ndarray) -> np.ndarray:
        """Returns the documents [n] that examples [n] come from."""
        return np.searchsorted(self.first_example, example_indices, side="right") - 1

    def windows_near(self, begin: int, end: int) -> np.ndarray:
        """Finds the examples whose windows may contain tokens of a passage, in any epoch.

        Args:
          begin, end: the passage, tokens [begin, end) of the corpus, all of one document.

        Returns:
          [n] int64, ascending; all that can contain one of the tokens, and a few more.
        """
        document, document_start = self._document_at(begin)
        first_example, stop = self.first_example[document : document + 2].tolist()
        reach = self.max_num_tokens + 2 * self._max_sentence_tokens(document)
        windows = _windows_near(
            (begin - document_start, end - document_start),
            int(self.corpus.tokens_per_document[document]) / (stop - first_example),
            reach,
            stop - first_example,
        )
        return first_example + windows

    def _document_at(self, token: int) -> tuple[int, int]:
        """Returns the document that contains a token of the corpus, and its first token."""
        part_index = int(np.searchsorted(self._part_starts, token, side="right")) - 1
        document = self.corpus.document_of(part_index)
        return document, int(self._part_starts[self.corpus.first_part[document]])

    def _max_sentence_tokens(self, document: int) -> int:
        """Returns the tokens of the longest sentence of a document."""
        if document not in self._max_tokens_by_document:
            parts = self.corpus.parts_from(int(self.corpus.first_part[document]), document)
            self._max_tokens_by_document[document] = max(
                int(np.diff(part.sentence_ends, prepend=np.uint32(0)).max()) for part in parts
            )
        return self._max_tokens_by_document[document]

    def find_window_start(
        self, example_index: int, document_index: int, epoch_key: int
    ) -> tuple[DocumentPart, int, Iterator[DocumentPart]]:
        """Returns where an example's window begins: part, token in that part, later parts."""
        corpus, first_example = self.corpus, int(self.first_example[document_index])
        num_windows = int(self.first_example[document_index + 1]) - first_example
        num_tokens = int(corpus.tokens_per_document[document_index])
        offset = window_offset(
            num_tokens,
            example_index - first_example,
            num_windows,
            int(self.window_tokens[document_index]),
            window_phase(epoch_key, document_index),
        )
        part_index = int(corpus.first_part[document_index])
        # Most documents are one part and skip the search.
        if part_index + 1 < corpus.first_part[document_index + 1]:
            offset += int(self._part_starts[part_index])
            part_index = int(np.searchsorted(self._part_starts, offset, side="right")) - 1
            offset -= int(self._part_starts[part_index])
        return corpus.read(part_index), offset, corpus.parts_from(part_index + 1, document_index)


class SentencePairDataset(WindowIndex):
    """Makes sentence pairs for sequences of `seq_length` tokens."""

    def __init__(
        self,
        corpus: PreparedCorpus,
        config: PairFormat,
        seq_length: int,
        vocab_arrays: VocabArrays,
    ) -> None:
        """Raises a UserError for a corpus of one document: B could not come from another one."""
        super().__init__(corpus, seq_length - vocab_arrays.template.num_pair_special_tokens)
        if corpus.num_documents < 2:
            raise UserError(
                f"{corpus.folder}: the corpus has one document, but data.input_format "
                f"{type(config).__name__} takes the second sentences of some pairs from another "
                "document. Prepare the text as more documents (--document-unit blank-line or "
                "line), or choose another data.input_format, such as SingleSegment"
            )
        self._config = config

    def read(
        self, example_index: int, document_index: int, key: int, epoch_key: int
    ) -> SentencePair:
        """Makes the pair of an example, truncated so that it fits with its special tokens."""
        rng = ExampleRng(key)
        target_seq_length = sample_target_seq_length(self.max_num_tokens, self._config, rng)
        part, offset, later_parts = self.find_window_start(example_index, document_index, epoch_key)
        window = take_sentences_from_offset(part, offset, target_seq_length, later_parts)

        def random_next_text(num_tokens: int) -> np.ndarray:
            return self._random_next_text(document_index, num_tokens, rng)

        return make_pair(
            window, target_seq_length, self.max_num_tokens, random_next_text, self._config, rng
        )

    def random_next_sentences(self, keys: np.ndarray) -> np.ndarray:
        """Returns the sentence with which a random B of each example would begin, [E] int64.

        Whether the example has a random B depends on its text.

        Args:
          keys: [E] uint64, the random keys of all examples of an epoch.
        """
        corpus, examples = self.corpus, np.arange(self.num_examples)
        bits = random_bits(keys, Stream.RANDOM_NEXT_SENTENCE, np.array([0]))
        bounds = corpus.first_sentence[corpus.first_part]
        documents = self.find_documents(examples)
        begin, end = bounds[documents], bounds[documents + 1]
        sentences = scale_bits(bits, corpus.num_sentences - (end - begin))
        return sentences + np.where(sentences >= begin, end - begin, 0)

    def sentences_near(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the sentences with which a text must begin to contain tokens of a passage.

        Args:
          begin, end: the passage, tokens [begin, end) of the corpus, all of one document.

        Returns:
          A range of sentences of the corpus; all that can, and a few more.
        """
        document, document_start = self._document_at(begin)
        # A text whose last sentence does not fit may lose tokens at its front.
        reach = self.max_num_tokens + self._max_sentence_tokens(document)
        return (
            self._sentence_at(max(document_start, begin - reach)),
            self._sentence_at(end - 1) + 1,
        )

    def _sentence_at(self, token: int) -> int:
        """Returns the sentence of the corpus that contains a token of the corpus."""
        part_index = int(np.searchsorted(self._part_starts, token, side="right")) - 1
        offset = token - int(self._part_starts[part_index])
        in_part = sentence_at_token(self.corpus.read(part_index), offset)
        return int(self.corpus.first_sentence[part_index]) + in_part

    def _random_next_text(
        self, document_index: int, num_tokens: int, rng: ExampleRng
    ) -> np.ndarray:
        """Draws a sentence uniformly from all other documents; returns the text from there on.

        BERT's code draws a document first, so that sentences of short documents are chosen more
        often and the length of a document tells something about the label. Here they do not.
        """
        corpus = self.corpus
        begin, end = corpus.first_sentence[
            corpus.first_part[document_index : document_index + 2]
        ].tolist()
        # One draw among the sentences of all other documents: the number is moved past the own
        # document, instead of drawing again.
        sentence = rng.randint(corpus.num_sentences - (end - begin), Stream.RANDOM_NEXT_SENTENCE)
        if sentence >= begin:
            sentence += end - begin
        part_index = int(np.searchsorted(corpus.first_sentence, sentence, side="right")) - 1
        sentence_in_part = sentence - int(corpus.first_sentence[part_index])
        later_parts = corpus.parts_from(part_index + 1, corpus.document_of(part_index))
        return take_sentences(
            corpus.read(part_index), sentence_in_part, num_tokens, later_parts
        ).ids


class SingleSegmentDataset(WindowIndex):
    """Makes segments of one document each; their lengths are known without reading the text."""

    def __init__(self, corpus: PreparedCorpus, seq_length: int, vocab_arrays: VocabArrays) -> None:
        self._num_special_tokens = vocab_arrays.template.num_single_special_tokens
        super().__init__(corpus, seq_length - self._num_special_tokens)

    def seq_lengths(self, document_indices: np.ndarray) -> np.ndarray:
        """Returns the tokens [n] of examples of documents [n], special tokens included."""
        return (
            np.minimum(self.corpus.tokens_per_document[document_indices], self.max_num_tokens)
            + self._num_special_tokens
        )

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> np.ndarray:
        """Makes the ids of an example, without special tokens."""
        del key
        part, offset, later_parts = self.find_window_start(example_index, document_index, epoch_key)
        # Not from the start of a sentence on: windows of equal length that begin with sentences
        # would leave tokens between them unread, and read others twice.
        return take_tokens(part, offset, self.max_num_tokens, later_parts)


class DocSentencesDataset(WindowIndex):
    """Makes inputs of whole sentences of one document (RoBERTa's DOC-SENTENCES)."""

    def __init__(self, corpus: PreparedCorpus, seq_length: int, vocab_arrays: VocabArrays) -> None:
        max_num_tokens = seq_length - vocab_arrays.template.num_single_special_tokens
        num_tokens = corpus.tokens_per_document
        num_sentences = np.diff(corpus.first_sentence[corpus.first_part])
        window_tokens = whole_sentence_tokens(max_num_tokens, num_tokens, num_sentences)
        # A document that fits is one window.
        window_tokens[num_tokens <= max_num_tokens] = max_num_tokens
        super().__init__(corpus, max_num_tokens, window_tokens)
        self._sep_id = vocab_arrays.sep_id

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> np.ndarray:
        """Makes the ids of an example, without special tokens."""
        del key
        part, offset, later_parts = self.find_window_start(example_index, document_index, epoch_key)
        return take_sentences_that_fit(part, offset, self.max_num_tokens, later_parts, self._sep_id)


class CorpusWindows:
    """Maps examples to windows of the corpus, which is read as one text, document after document.

    There are round(T / window_tokens) examples for T tokens.
    """

    def __init__(
        self, corpus: PreparedCorpus, max_num_tokens: int, window_tokens: int | None = None
    ) -> None:
        """Takes the tokens that a window holds on average; None: `max_num_tokens`."""
        self.corpus = corpus
        self.max_num_tokens = max_num_tokens
        self._window_tokens = window_tokens or max_num_tokens
        self._part_starts = corpus.part_starts
        self._num_tokens = corpus.num_tokens
        num_windows = windows_per_document(np.array([self._num_tokens]), self._window_tokens)
        self.num_examples = int(num_windows[0])
        self.mean_example_tokens = float(min(self._num_tokens, self._window_tokens))

    def find_documents(self, example_indices: np.ndarray) -> np.ndarray:
        """Returns the documents [n] in the middle of the ranges where examples [n] may begin."""
        tokens_per_example = self._num_tokens / self.num_examples
        part_indices = self._find_parts((example_indices + 0.5) * tokens_per_example)
        return np.searchsorted(self.corpus.first_part, part_indices, side="right") - 1

    def find_window_start(self, example_index: int, epoch_key: int) -> tuple[int, int]:
        """Returns where an example's window begins: index of the part, token in that part."""
        offset = window_offset(
            self._num_tokens,
            example_index,
            self.num_examples,
            self._window_tokens,
            window_phase(epoch_key, 0),
        )
        part_index = int(self._find_parts(np.array(offset)))
        return part_index, offset - int(self._part_starts[part_index])

    def windows_near(self, begin: int, end: int) -> np.ndarray:
        """Finds the examples whose windows may contain tokens, as `WindowIndex.windows_near`."""
        distance = self._num_tokens / self.num_examples
        return _windows_near((begin, end), distance, self.max_num_tokens, self.num_examples)

    def later_parts(self, part_index: int) -> Iterator[DocumentPart]:
        """Yields the parts after `part_index`; each is read when the iterator reaches it."""
        return map(self.corpus.read, range(part_index + 1, len(self._part_starts)))

    def _find_parts(self, tokens: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._part_starts, tokens, side="right") - 1


class FullSentencesDataset(CorpusWindows):
    """Makes inputs of whole sentences that may cross documents (RoBERTa's FULL-SENTENCES)."""

    def __init__(self, corpus: PreparedCorpus, seq_length: int, vocab_arrays: VocabArrays) -> None:
        max_num_tokens = seq_length - vocab_arrays.template.num_single_special_tokens
        (window_tokens,) = whole_sentence_tokens(
            max_num_tokens, np.array([corpus.num_tokens]), np.array([corpus.num_sentences])
        )
        super().__init__(corpus, max_num_tokens, int(window_tokens))
        self._sep_id = vocab_arrays.sep_id

    def read(self, example_index: int, document_index: int, key: int, epoch_key: int) -> np.ndarray:
        """Makes the ids of an example, with separators between documents."""
        del document_index, key
        part_index, offset = self.find_window_start(example_index, epoch_key)
        return take_sentences_that_fit(
            self.corpus.read(part_index),
            offset,
            self.max_num_tokens,
            self.later_parts(part_index),
            self._sep_id,
        )


def _windows_near(
    passage: tuple[int, int], distance: float, reach: int, num_windows: int
) -> np.ndarray:
    """Returns the windows whose text may overlap with tokens [begin, end) of their text.

    Args:
      distance: the tokens between the starts of two windows.
      reach: at least the tokens of a window, and twice the sentence by which its start may move.
    """
    # `window_offset` moves window i by less than a window from i * distance.
    first = int((passage[0] - 2 * reach) / distance) - 1
    stop = int((passage[1] + reach) / distance) + 2
    return np.arange(max(first, 0), min(stop, num_windows))


PretrainingDataset = (
    SentencePairDataset | SingleSegmentDataset | DocSentencesDataset | FullSentencesDataset
)


def make_dataset(
    corpus: PreparedCorpus, input_format: InputFormat, seq_length: int, vocab_arrays: VocabArrays
) -> PretrainingDataset:
    """Makes the dataset of an input format."""
    if isinstance(input_format, PairFormat):
        return SentencePairDataset(corpus, input_format, seq_length, vocab_arrays)
    if isinstance(input_format, FullSentences):
        return FullSentencesDataset(corpus, seq_length, vocab_arrays)
    if isinstance(input_format, DocSentences):
        return DocSentencesDataset(corpus, seq_length, vocab_arrays)
    return SingleSegmentDataset(corpus, seq_length, vocab_arrays)


def whole_sentence_tokens(
    max_num_tokens: int, num_tokens: np.ndarray, num_sentences: np.ndarray
) -> np.ndarray:
    """Estimates how many tokens of texts [D] an input of whole sentences holds, [D] int64.

    The sentence that does not fit leaves part of the input free: the mean length of a sentence, if
    lengths have an exponential distribution.
    """
    mean_sentence = np.rint(num_tokens / np.maximum(num_sentences, 1)).astype(np.int64)
    # At least half: a sentence that is longer than the input is cut, and fills it.
    return np.maximum(max_num_tokens - mean_sentence, (max_num_tokens + 1) // 2)


MAX_SAMPLED_CHUNKS, CHUNK_LENGTH = 1024, 256


# SpanBERT's random tokens have the frequencies of the corpus, which its code keeps in memory. A
# sample of 262,144 tokens, read in 1,024 chunks at equal distances, stands for it; a smaller corpus
# is read completely.
def sample_token_ids(corpus: PreparedCorpus, vocab_arrays: VocabArrays) -> np.ndarray:
    """Reads a sample of the corpus: up to 1024 chunks of 256 tokens, at equal distances.

    The ids have the frequencies of the corpus, exactly those if it has at most 262,144 tokens.
    (SpanBERT's code draws from the whole corpus, which it holds in memory.)

    Returns:
      [n] int32, without special tokens.
    """
    part_starts = corpus.part_starts
    num_tokens = corpus.num_tokens
    num_chunks = min(MAX_SAMPLED_CHUNKS, -(-num_tokens // CHUNK_LENGTH))
    chunks: list[np.ndarray] = []
    for chunk in range(num_chunks):
        begin = chunk * num_tokens // num_chunks
        end = min(begin + CHUNK_LENGTH, (chunk + 1) * num_tokens // num_chunks)
        first_part, last_part = np.searchsorted(part_starts, (begin, end - 1), side="right") - 1
        for part_index in range(first_part, last_part + 1):
            start = int(part_starts[part_index])
            chunks.append(corpus.read(part_index).ids[max(0, begin - start) : end - start])
    ids = np.concatenate(chunks).astype(np.int32)
    ids = ids[~vocab_arrays.is_special[ids]]
    # A corpus of special tokens only is useless, but an index error while it is drawn from would
    # not say so.
    return ids if len(ids) else vocab_arrays.maskable_ids
