"""Prepared corpus -> example number e of an epoch, for sentence pairs and for single windows.

Examples are numbered document by document; each document has the slots that `slot_counts` gives
it, in every epoch the same. What an example holds depends on the corpus, its number and its key.
"""

from collections.abc import Iterator

import numpy as np

from bert_jax.data.config import Pairs
from bert_jax.data.pairs import (
    PAIR_SPECIALS,
    SINGLE_SPECIALS,
    Pair,
    make_pair,
    target_tokens,
)
from bert_jax.data.prepared import PreparedCorpus
from bert_jax.data.random import Draws, Stream
from bert_jax.data.records import DocumentPart
from bert_jax.data.windows import (
    sentence_at,
    slot_counts,
    take_from,
    take_sentences,
    window_offset,
)
from bert_jax.errors import UserError


class _Slots:
    """The windows of a corpus for one width: which document and which slot an example is."""

    def __init__(self, corpus: PreparedCorpus, width: int) -> None:
        self.corpus = corpus
        self.width = width
        counts = slot_counts(corpus.document_tokens, width)
        self.first_example = np.concatenate(([0], np.cumsum(counts)))
        self._part_starts = np.cumsum(corpus.part_tokens, dtype=np.int64) - corpus.part_tokens

    @property
    def count(self) -> int:
        """Examples in one epoch."""
        return int(self.first_example[-1])

    def documents(self, examples: np.ndarray) -> np.ndarray:
        """Documents [n] that examples [n] come from."""
        return np.searchsorted(self.first_example, examples, side="right") - 1

    def start(
        self, example: int, document: int, draws: Draws
    ) -> tuple[DocumentPart, int, Iterator[DocumentPart]]:
        """Where an example's window begins: the part, the token in it, and the later parts."""
        corpus, first = self.corpus, int(self.first_example[document])
        slots = int(self.first_example[document + 1]) - first
        tokens = int(corpus.document_tokens[document])
        offset = window_offset(tokens, example - first, slots, self.width, draws)
        record = int(corpus.first_part[document])
        if record + 1 < corpus.first_part[document + 1]:
            offset += int(self._part_starts[record])
            record = int(np.searchsorted(self._part_starts, offset, side="right")) - 1
            offset -= int(self._part_starts[record])
        return corpus.read(record), offset, corpus.parts_from(record + 1, document)


class PairExamples(_Slots):
    """Sentence pairs for rows of `length` tokens."""

    def __init__(self, corpus: PreparedCorpus, config: Pairs, length: int) -> None:
        """Raises a UserError for a corpus of one document: B could not come from another one."""
        super().__init__(corpus, length - PAIR_SPECIALS)
        if corpus.documents < 2:
            raise UserError(
                f"{corpus.folder} holds one document only; sentence pairs take B from another "
                "one. Prepare more documents (--documents-by blank-line?) or use Single()"
            )
        self._config = config

    def read(self, example: int, document: int, key: int) -> Pair:
        """The pair of an example, truncated to length - 3 tokens."""
        draws = Draws(key)
        target = target_tokens(self.width, self._config, draws)
        part, offset, following = self.start(example, document, draws)
        window = take_from(part, offset, target, following)

        def other_text(tokens: int) -> np.ndarray:
            return self._other_text(document, tokens, draws)

        return make_pair(window, target, self.width, other_text, self._config, draws)

    def _other_text(self, document: int, tokens: int, draws: Draws) -> np.ndarray:
        """Text from a sentence drawn uniformly from all sentences of all other documents.

        Longer documents are met more often than in the original, which draws the document first:
        so B is spread like the text itself, and the document's length says nothing of the label.
        """
        corpus = self.corpus
        begin, end = corpus.first_sentence[corpus.first_part[document : document + 2]].tolist()
        sentence = draws.below(corpus.sentences - (end - begin), Stream.OTHER)
        if sentence >= begin:
            sentence += end - begin
        record = int(np.searchsorted(corpus.first_sentence, sentence, side="right")) - 1
        local = sentence - int(corpus.first_sentence[record])
        following = corpus.parts_from(record + 1, corpus.document_of(record))
        return take_sentences(corpus.read(record), local, tokens, following).ids


class SingleExamples(_Slots):
    """Windows of one document each; `lengths` are known without reading any text."""

    def __init__(self, corpus: PreparedCorpus, length: int) -> None:
        super().__init__(corpus, length - SINGLE_SPECIALS)

    def lengths(self, documents: np.ndarray) -> np.ndarray:
        """Row tokens [n] of examples of documents [n], with [CLS] and [SEP]."""
        return np.minimum(self.corpus.document_tokens[documents], self.width) + SINGLE_SPECIALS

    def read(self, example: int, document: int, key: int) -> np.ndarray:
        """The ids of an example, at most length - 2."""
        part, offset, following = self.start(example, document, Draws(key))
        # From the sentence that holds the offset: so the text is never shorter than it can be.
        window = take_sentences(part, sentence_at(part, offset), self.width, following)
        return window.ids[: self.width]
