"""Prepared corpus -> example number e of an epoch, for sentence pairs and for single windows.

Examples are numbered document by document; each document has the slots that `slot_counts` gives
it, in every epoch the same. What an example holds depends on the corpus, its number and its key.
"""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.config import SentencePairs
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.records import DocumentPart
from bert_jax.data.pretraining.rng import ExampleRng, Stream
from bert_jax.data.pretraining.sentence_pairs import (
    NUM_PAIR_SPECIAL_TOKENS,
    NUM_SINGLE_SPECIAL_TOKENS,
    SentencePair,
    make_pair,
    sample_target_seq_length,
)
from bert_jax.data.pretraining.windows import (
    sentence_at_token,
    take_sentences,
    take_sentences_from_offset,
    window_offset,
    windows_per_document,
)
from bert_jax.errors import UserError


class WindowIndex:
    """The windows of a corpus for one width: which document and which slot an example is."""

    def __init__(self, corpus: PreparedCorpus, max_num_tokens: int) -> None:
        self.corpus = corpus
        self.max_num_tokens = max_num_tokens
        counts = windows_per_document(corpus.tokens_per_document, max_num_tokens)
        self.first_example = np.concatenate(([0], np.cumsum(counts)))
        self._part_starts = (
            np.cumsum(corpus.tokens_per_part, dtype=np.int64) - corpus.tokens_per_part
        )

    @property
    def num_examples(self) -> int:
        """Examples in one epoch."""
        return int(self.first_example[-1])

    def find_documents(self, example_indices: np.ndarray) -> np.ndarray:
        """Documents [n] that examples [n] come from."""
        return np.searchsorted(self.first_example, example_indices, side="right") - 1

    def find_window_start(
        self, example_index: int, document_index: int, rng: ExampleRng
    ) -> tuple[DocumentPart, int, Iterator[DocumentPart]]:
        """Where an example's window begins: the part, the token in it, and the later parts."""
        corpus, first_example = self.corpus, int(self.first_example[document_index])
        num_windows = int(self.first_example[document_index + 1]) - first_example
        num_tokens = int(corpus.tokens_per_document[document_index])
        offset = window_offset(
            num_tokens, example_index - first_example, num_windows, self.max_num_tokens, rng
        )
        record = int(corpus.first_part[document_index])
        if record + 1 < corpus.first_part[document_index + 1]:
            offset += int(self._part_starts[record])
            record = int(np.searchsorted(self._part_starts, offset, side="right")) - 1
            offset -= int(self._part_starts[record])
        return corpus.read(record), offset, corpus.parts_from(record + 1, document_index)


class SentencePairDataset(WindowIndex):
    """Sentence pairs for rows of `length` tokens."""

    def __init__(self, corpus: PreparedCorpus, config: SentencePairs, seq_length: int) -> None:
        """Raises a UserError for a corpus of one document: B could not come from another one."""
        super().__init__(corpus, seq_length - NUM_PAIR_SPECIAL_TOKENS)
        if corpus.num_documents < 2:
            raise UserError(
                f"{corpus.folder} holds one document only; sentence pairs take B from another "
                "one. Prepare more documents (--documents-by blank-line?) or use SingleSegment()"
            )
        self._config = config

    def read(self, example_index: int, document_index: int, key: int) -> SentencePair:
        """The pair of an example, truncated to length - 3 tokens."""
        rng = ExampleRng(key)
        target_seq_length = sample_target_seq_length(self.max_num_tokens, self._config, rng)
        part, offset, later_parts = self.find_window_start(example_index, document_index, rng)
        window = take_sentences_from_offset(part, offset, target_seq_length, later_parts)

        def random_next_text(num_tokens: int) -> np.ndarray:
            return self._random_next_text(document_index, num_tokens, rng)

        return make_pair(
            window, target_seq_length, self.max_num_tokens, random_next_text, self._config, rng
        )

    def _random_next_text(
        self, document_index: int, num_tokens: int, rng: ExampleRng
    ) -> np.ndarray:
        """Text from a sentence drawn uniformly from all sentences of all other documents.

        Longer documents are met more often than in the original, which draws the document first:
        so B is spread like the text itself, and the document's length says nothing of the label.
        """
        corpus = self.corpus
        begin, end = corpus.first_sentence[
            corpus.first_part[document_index : document_index + 2]
        ].tolist()
        sentence = rng.randint(corpus.num_sentences - (end - begin), Stream.RANDOM_NEXT_SENTENCE)
        if sentence >= begin:
            sentence += end - begin
        record = int(np.searchsorted(corpus.first_sentence, sentence, side="right")) - 1
        sentence_in_part = sentence - int(corpus.first_sentence[record])
        later_parts = corpus.parts_from(record + 1, corpus.document_of(record))
        return take_sentences(corpus.read(record), sentence_in_part, num_tokens, later_parts).ids


class SingleSegmentDataset(WindowIndex):
    """Windows of one document each; `lengths` are known without reading any text."""

    def __init__(self, corpus: PreparedCorpus, seq_length: int) -> None:
        super().__init__(corpus, seq_length - NUM_SINGLE_SPECIAL_TOKENS)

    def seq_lengths(self, document_indices: np.ndarray) -> np.ndarray:
        """Row tokens [n] of examples of documents [n], with [CLS] and [SEP]."""
        return (
            np.minimum(self.corpus.tokens_per_document[document_indices], self.max_num_tokens)
            + NUM_SINGLE_SPECIAL_TOKENS
        )

    def read(self, example_index: int, document_index: int, key: int) -> np.ndarray:
        """The ids of an example, at most length - 2."""
        part, offset, later_parts = self.find_window_start(
            example_index, document_index, ExampleRng(key)
        )
        # From the sentence that holds the offset: so the text is never shorter than it can be.
        window = take_sentences(
            part, sentence_at_token(part, offset), self.max_num_tokens, later_parts
        )
        return window.ids[: self.max_num_tokens]
