"""Reads the parts of a prepared corpus by their index, each when it is needed.

A part is a document, or a piece of a long one, and is stored as one record of an ArrayRecord file.
Imports neither TensorFlow nor JAX; grain's ArrayRecord data source reads the records.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, CorpusShard, Manifest, read_manifest
from bert_jax.data.corpus.shards import DocumentPart, decode_record
from bert_jax.errors import UserError
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer


def corpus_tokenization(folder: str | Path, manifest: Manifest) -> Tokenization:
    """Returns the tokenization of the prepared corpus in `folder`, as its manifest describes it."""
    return Tokenization(str(folder), manifest.vocab_size, manifest.tokenizer_fingerprint)


def corpus_tokenizer(folder: str | Path) -> Tokenizer:
    """Loads the tokenizer of a prepared corpus, and reads no other file; recipes call this.

    Unlike `PreparedCorpus.tokenizer`, it does not compare the tokenizer with the manifest, so it is
    fast for corpora with many shards.

    Raises:
      UserError: there is no tokenizer, because the corpus is missing or unfinished, or the
        tokenizer is damaged.
    """
    path = Path(folder) / TOKENIZER_FOLDER
    if not path.exists():
        read_manifest(folder)  # raises an error that says what is missing
    return load_tokenizer(path)


class PreparedCorpus:
    """Reads the parts of the documents of a corpus; indices count over all shards.

    There are P parts and D documents. The parts of a document have consecutive indices.

    Attributes:
      tokens_per_part: [P] int32, number of tokens of each part.
      part_starts: [P] int64, number of tokens before each part.
      first_sentence: [P + 1] int64, number of sentences before each part; the last entry is the
        number of all sentences.
      first_part: [D + 1] int64, index of the first part of each document; the last entry is P.
      tokens_per_document: [D] int64, number of tokens of each document.
    """

    def __init__(self, folder: str | Path) -> None:
        """Reads the manifest and the indexes, and checks that every shard can be opened.

        Raises:
          UserError: the folder is not a prepared corpus, the corpus has no documents, or a shard
            is missing or damaged.
        """
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self._shards = [shard for shard in self.manifest.shards if shard.counts.parts]
        if not self._shards:
            raise UserError(f"{folder}: the prepared corpus has no documents")
        self._shard_ends = np.cumsum([shard.counts.parts for shard in self._shards])
        documents, tokens, sentences = zip(*map(self._read_index, self._shards), strict=True)
        self.tokens_per_part: np.ndarray = np.concatenate(tokens)
        # int64, because a corpus has more tokens than an int32 holds.
        self.part_starts: np.ndarray = (
            np.cumsum(self.tokens_per_part, dtype=np.int64) - self.tokens_per_part
        )
        self.first_sentence = np.concatenate(([0], np.cumsum(np.concatenate(sentences))))
        # The parts of a shard are in the order of its documents, which are numbered from 0 in each
        # shard, and no document spans two shards. So a document begins where the number changes.
        is_first = np.concatenate([np.diff(numbers, prepend=-1) != 0 for numbers in documents])
        self.first_part = np.append(np.flatnonzero(is_first), len(is_first))
        # int64, because a document may have more tokens than an int32 holds once parts are added
        # up.
        self.tokens_per_document = np.add.reduceat(
            self.tokens_per_part, self.first_part[:-1], dtype=np.int64
        )
        self._data_source = self._open_records()

    @property
    def num_documents(self) -> int:
        """Returns the number of documents, D."""
        return len(self.tokens_per_document)

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens in the whole corpus."""
        return int(self.tokens_per_document.sum())

    @property
    def num_sentences(self) -> int:
        """Returns the number of sentences in the whole corpus."""
        return int(self.first_sentence[-1])

    def read(self, part_index: int) -> DocumentPart:
        """Reads a document part by its index, in [0, P).

        Raises:
          UserError: the record of the part is damaged; the message names the file of its shard.
        """
        try:
            return decode_record(self._data_source[part_index])
        except (RuntimeError, UserError) as error:
            shard = self._shards[int(np.searchsorted(self._shard_ends, part_index, side="right"))]
            raise _damaged(self.folder / shard.records_file, error) from None

    def parts_from(self, part_index: int, document_index: int) -> Iterator[DocumentPart]:
        """Yields the remaining parts of a document, beginning with the part `part_index`.

        Each part is read when the iterator reaches it.
        """
        for index in range(part_index, int(self.first_part[document_index + 1])):
            yield self.read(index)

    def document_of(self, part_index: int) -> int:
        """Returns the index of the document that a part belongs to."""
        return int(np.searchsorted(self.first_part, part_index, side="right")) - 1

    def tokenizer(self) -> Tokenizer:
        """Loads the tokenizer that made the ids.

        Raises:
          UserError: the tokenizer in the folder is damaged, or its fingerprint is not the one in
            the manifest.
        """
        path = self.folder / TOKENIZER_FOLDER
        tokenizer = load_tokenizer(path)
        check_same_tokenizer(
            self.tokenization,
            Tokenization.of(tokenizer, str(path)),
            "copy the whole folder again, or prepare the corpus again with `bert-jax prepare`",
        )
        return tokenizer

    @property
    def tokenization(self) -> Tokenization:
        """Returns the tokenization of the corpus, as the manifest describes it."""
        return corpus_tokenization(self.folder, self.manifest)

    def _read_index(self, shard: CorpusShard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        path = self.folder / shard.index_file
        try:
            # A pickle in a file that was downloaded could run code.
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as index:
                columns = (index["document"], index["tokens"], index["sentences"])
        except FileNotFoundError:
            raise _missing(path) from None
        except Exception as error:  # zipfile, zlib and NumPy raise different exceptions
            raise _damaged(path, error) from None
        if any(len(column) != shard.counts.parts for column in columns):
            num_found = len(columns[0])
            raise _damaged(
                path, f"{num_found} records, expected {shard.counts.parts} from the manifest"
            )
        return columns

    def _open_records(self) -> Any:
        import grain

        data_source: Any = grain.sources.ArrayRecordDataSource
        for shard in self._shards:
            path = self.folder / shard.records_file
            if not path.is_file():
                raise _missing(path)
            try:
                num_records = len(data_source(str(path)))
            except RuntimeError as error:
                raise _damaged(path, error) from None
            if num_records != shard.counts.parts:
                raise _damaged(
                    path, f"{num_records} records, expected {shard.counts.parts} from the manifest"
                )
        return data_source([str(self.folder / shard.records_file) for shard in self._shards])


def _missing(path: Path) -> UserError:
    return UserError(
        f"{path}: no such file, but the manifest lists it; copy the whole folder again, "
        "or run the same `bert-jax prepare` again"
    )


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(
        f"{path}: damaged or cut short ({reason}); copy the file again, or run the same "
        "`bert-jax prepare` again, which repairs it"
    )
