"""Finds texts in what a pretraining run has read: documents, updates, and predicted tokens."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_jax.apps.seen.passage_index import MIN_SIMILARITY, Passage, PassageIndex
from bert_jax.apps.seen.reading_history import Reading, ReadingHistory
from bert_jax.data.corpus.shards import encode_document
from bert_jax.errors import UserError
from bert_jax.text.sentences import get_sentence_splitter
from bert_jax.text.tokenizer import Tokenizer

INDEX_FOLDER = "passages"
"""The default folder of the index, in the folder of the prepared corpus."""

MAX_PASSAGES = 10_000
"""The largest number of passages of one text in one corpus."""

# A word that no text begins with: what follows it is encoded as in the middle of a sentence.
_BEFORE = "x "


@dataclass(frozen=True, kw_only=True)
class FoundPassage:
    """Describes a passage of the corpus that equals a text, or is similar to it.

    Attributes:
      corpus: the folder of the prepared corpus.
      document: the number of the document in it.
      begin, end: the tokens of the passage in the corpus, [begin, end).
      similarity: 1 for equal tokens; else 1 - (edit distance / tokens of the text).
      text: the tokens of the passage as text.
      readings: when it was read; a reading may have a part of the tokens.
    """

    corpus: str
    document: int
    begin: int
    end: int
    similarity: float
    text: str
    readings: list[Reading]


class TextFinder:
    """Finds texts in the corpora of a run.

    Args:
      run: a pretraining run, or one of its checkpoints; later updates are not counted.
      index: the folder of the indexes; None: in the folder of each corpus. They are made at the
        first use, in seconds for ten million tokens.

    Raises:
      UserError: it is no pretraining run, or its corpora are missing or have changed.
    """

    def __init__(self, run: str | Path, *, index: str | Path | None = None) -> None:
        self.history = ReadingHistory(Path(run))
        self._tokenizer: Tokenizer = self.history.corpora[0].tokenizer()
        self._indexes = []
        for corpus in self.history.corpora:
            folder = corpus.folder / INDEX_FOLDER
            if index is not None:
                folder = Path(index) / corpus.manifest.fingerprint[:16]
            self._indexes.append(PassageIndex(corpus, folder))

    def find(
        self, texts: Sequence[str], min_similarity: float = MIN_SIMILARITY
    ) -> list[list[FoundPassage]]:
        """Returns the passages of each text, those with the highest similarity first.

        Args:
          min_similarity: of passages whose tokens differ; 1: only equal tokens.

        Raises:
          UserError: a text has no tokens.
        """
        found = [self._passages(text, min_similarity) for text in texts]
        flat = [each for passages in found for each in passages]
        first = self.history.first_tokens.tolist()
        readings = iter(
            self.history.read([(first[c] + p.begin, first[c] + p.end) for c, p in flat])
        )
        return [
            [self._describe(corpus, passage, next(readings)) for corpus, passage in passages]
            for passages in found
        ]

    def _passages(self, text: str, min_similarity: float) -> list[tuple[int, Passage]]:
        """Returns (index of the corpus, passage), most similar first."""
        variants = self._encodings(text)
        found: list[tuple[int, Passage]] = []
        for corpus, index in enumerate(self._indexes):
            passages = {
                # The variants differ in a first space, so one passage may contain the other.
                passage.end: passage
                for ids in variants
                for passage in index.find_exact(ids)
            }
            if len(passages) > MAX_PASSAGES:
                raise UserError(
                    f"{text!r}: occurs {len(passages):,} times in "
                    f"{self.history.corpora[corpus].folder}, expected at most {MAX_PASSAGES:,}; "
                    "give more words"
                )
            exact = list(passages.values())
            found += [(corpus, passage) for passage in exact]
            if min_similarity < 1:
                similar = index.find_similar(variants[0], min_similarity)
                found += [
                    (corpus, passage)
                    for passage in similar
                    if not any(_overlap(passage, other) for other in exact)
                ]
        return sorted(found, key=lambda each: (-each[1].similarity, each[0], each[1].begin))

    def _encodings(self, text: str) -> list[np.ndarray]:
        """Returns the ids of a text as the beginning and, if they differ, in the middle."""
        splitter = get_sentence_splitter("rules")
        encoded = encode_document(text, self._tokenizer, splitter)
        before = encode_document(_BEFORE + text, self._tokenizer, splitter)
        if isinstance(encoded, str) or isinstance(before, str):
            raise UserError(f"{text!r}: a text without tokens; expected at least one word")
        prefix = len(self._tokenizer.encode(_BEFORE.strip()))
        first, middle = encoded.ids, before.ids[prefix:]
        return [first] if np.array_equal(first, middle) else [first, middle]

    def _describe(self, corpus: int, passage: Passage, readings: list[Reading]) -> FoundPassage:
        index = self._indexes[corpus]
        return FoundPassage(
            corpus=str(self.history.corpora[corpus].folder),
            document=int(index.documents_of(np.array([passage.begin]))[0]),
            begin=passage.begin,
            end=passage.end,
            similarity=passage.similarity,
            text=self._tokenizer.decode(index.token_ids(passage)),
            readings=readings,
        )

    def show_reading(self, passage: FoundPassage, reading: Reading) -> str:
        """Returns the tokens that were read as text, with brackets around those predicted."""
        corpus = [str(each.folder) for each in self.history.corpora].index(passage.corpus)
        found = Passage(passage.begin, passage.end, passage.similarity)
        ids = self._indexes[corpus].token_ids(found)
        read = [ids[token] for token in reading.tokens]
        is_predicted = np.isin(reading.tokens, reading.predicted or ())
        stops = (np.flatnonzero(is_predicted[1:] != is_predicted[:-1]) + 1).tolist()
        shown, before = "", ""
        for start, stop in itertools.pairwise([0, *stops, len(read)]):
            # From the start, because the space before a token depends on the one before it.
            text = self._tokenizer.decode(read[:stop])
            piece, before = text[len(before) :], text
            if is_predicted[start]:
                word = piece.lstrip()
                piece = f"{piece[: len(piece) - len(word)]}[{word}]"
            shown += piece
        return shown.strip()


def _overlap(a: Passage, b: Passage) -> bool:
    return a.begin < b.end and b.begin < a.end
