"""Reads a prepared corpus: any document part by its number, on demand.

Imports neither TensorFlow nor JAX; grain's ArrayRecord data source reads the records.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, CorpusShard, Manifest, read_manifest
from bert_jax.data.corpus.records import DocumentPart, decode_record
from bert_jax.errors import UserError
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer


def corpus_tokenization(folder: str | Path, manifest: Manifest) -> Tokenization:
    """Describes the tokenizer that made the ids of the prepared corpus in `folder`."""
    return Tokenization(str(folder), manifest.vocab_size, manifest.tokenizer_fingerprint)


def corpus_tokenizer(folder: str | Path) -> Tokenizer:
    """Loads the tokenizer of a prepared corpus without opening the corpus, for recipes.

    Raises:
      UserError: the corpus is missing or unfinished, or its tokenizer is damaged.
    """
    path = Path(folder) / TOKENIZER_FOLDER
    if not path.exists():
        read_manifest(folder)  # raises an error that says what is missing
    return load_tokenizer(path)


class PreparedCorpus:
    """Gives access to the records and documents of a corpus, numbered over all shards.

    There are R records (document parts) and D documents. Records of a document are consecutive.

    Attributes:
      tokens_per_part: [R] int32, number of tokens of each record.
      first_sentence: [R + 1] int64, number of sentences before each record; the last entry is the
        number of all sentences.
      first_part: [D + 1] int64, first record of each document; the last entry is R.
      tokens_per_document: [D] int64, number of tokens of each document.
    """

    def __init__(self, folder: str | Path) -> None:
        """Reads the manifest and the indexes, and checks that every shard can be opened.

        Raises:
          UserError: not a prepared corpus, a shard is missing or damaged, or it has no documents.
        """
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self._shards = [shard for shard in self.manifest.shards if shard.counts.parts]
        if not self._shards:
            raise UserError(f"{folder}: the prepared corpus has no documents")
        self._shard_ends = np.cumsum([shard.counts.parts for shard in self._shards])
        documents, tokens, sentences = zip(*map(self._read_index, self._shards), strict=True)
        self.tokens_per_part: np.ndarray = np.concatenate(tokens)
        self.first_sentence = np.concatenate(([0], np.cumsum(np.concatenate(sentences))))
        is_first = np.concatenate([np.diff(numbers, prepend=-1) != 0 for numbers in documents])
        self.first_part = np.append(np.flatnonzero(is_first), len(is_first))
        self.tokens_per_document = np.add.reduceat(
            self.tokens_per_part, self.first_part[:-1], dtype=np.int64
        )
        self._records = self._open_records()

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.tokens_per_document)

    @property
    def num_sentences(self) -> int:
        """Number of sentences in the whole corpus."""
        return int(self.first_sentence[-1])

    def read(self, record: int) -> DocumentPart:
        """Reads the document part with number `record`, in [0, R).

        Raises:
          UserError: the shard is damaged there; the message names its file.
        """
        try:
            return decode_record(self._records[record])
        except (RuntimeError, UserError) as error:
            shard = self._shards[int(np.searchsorted(self._shard_ends, record, side="right"))]
            raise _damaged(self.folder / shard.records_file, error) from None

    def parts_from(self, record: int, document: int) -> Iterator[DocumentPart]:
        """Yields the parts of a document from `record` on; each is read when it is needed."""
        for number in range(record, int(self.first_part[document + 1])):
            yield self.read(number)

    def document_of(self, record: int) -> int:
        """Returns the number of the document that a record belongs to."""
        return int(np.searchsorted(self.first_part, record, side="right")) - 1

    def tokenizer(self) -> Tokenizer:
        """Loads the tokenizer that made the ids.

        Raises:
          UserError: the stored tokenizer is not the one that the manifest names.
        """
        path = self.folder / TOKENIZER_FOLDER
        tokenizer = load_tokenizer(path)
        check_same_tokenizer(
            self.tokenization,
            Tokenization.of(tokenizer, str(path)),
            "Copy the whole folder again, or prepare the corpus again with `bert-jax prepare`.",
        )
        return tokenizer

    @property
    def tokenization(self) -> Tokenization:
        """The tokenizer that made the ids, as the manifest describes it."""
        return corpus_tokenization(self.folder, self.manifest)

    def _read_index(self, shard: CorpusShard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        path = self.folder / shard.index_file
        try:
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
        f"{path}: damaged or cut short ({reason}); copy the file again, or delete it and run the "
        "same `bert-jax prepare` again"
    )
