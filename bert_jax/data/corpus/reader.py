"""Opens a prepared corpus: any document part by its number, read on demand.

Needs neither TensorFlow nor JAX; grain's ArrayRecord source does the reading.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, CorpusShard, Manifest, read_manifest
from bert_jax.data.corpus.records import DocumentPart, decode_record
from bert_jax.errors import UserError
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.text.tokenizer import Tokenizer, load_tokenizer


def corpus_tokenization(folder: str | Path, manifest: Manifest) -> Tokenization:
    """Describes the vocabulary that made the ids of the prepared corpus in `folder`."""
    return Tokenization(str(folder), manifest.vocab_size, manifest.tokenizer_fingerprint)


def corpus_tokenizer(folder: str | Path) -> Tokenizer:
    """Opens the vocabulary of a prepared corpus without opening the corpus, as recipes do.

    Raises:
      UserError: the corpus is missing or unfinished, or its vocabulary is damaged.
    """
    path = Path(folder) / TOKENIZER_FOLDER
    if not path.exists():
        read_manifest(folder)  # says what is missing
    return load_tokenizer(path)


class PreparedCorpus:
    """The records and documents of a prepared corpus, numbered over all shards.

    R records (document parts), D documents. A document's records are consecutive.

    part_tokens: [R] int32, tokens of each record.
    first_sentence: [R + 1] int64, sentences before each record; the last entry is their total.
    first_part: [D + 1] int64, first record of each document; the last entry is R.
    document_tokens: [D] int64, tokens of each document.
    """

    def __init__(self, folder: str | Path) -> None:
        """Reads manifest and indexes and looks at every shard, at no document.

        Raises:
          UserError: not a prepared corpus, a missing or damaged shard, or no documents at all.
        """
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self._shards = [shard for shard in self.manifest.shards if shard.counts.parts]
        if not self._shards:
            raise UserError(f"{folder}: this prepared corpus holds no documents")
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
        """D, the number of documents."""
        return len(self.tokens_per_document)

    @property
    def num_sentences(self) -> int:
        """The number of sentences in the whole corpus."""
        return int(self.first_sentence[-1])

    def read(self, record: int) -> DocumentPart:
        """The document part with number `record`, in [0, R).

        Raises:
          UserError: the shard is damaged there; it is named.
        """
        try:
            return decode_record(self._records[record])
        except (RuntimeError, UserError) as error:
            shard = self._shards[int(np.searchsorted(self._shard_ends, record, side="right"))]
            raise _damaged(self.folder / shard.records_file, error) from None

    def parts_from(self, record: int, document: int) -> Iterator[DocumentPart]:
        """The parts of a document from one on, each read when it is asked for."""
        for number in range(record, int(self.first_part[document + 1])):
            yield self.read(number)

    def document_of(self, record: int) -> int:
        """Number of the document that a record belongs to."""
        return int(np.searchsorted(self.first_part, record, side="right")) - 1

    def tokenizer(self) -> Tokenizer:
        """The vocabulary that made the ids.

        Raises:
          UserError: the stored vocabulary is not the one in the manifest.
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
        """The vocabulary that made the ids, as the manifest describes it."""
        return corpus_tokenization(self.folder, self.manifest)

    def _read_index(self, shard: CorpusShard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        path = self.folder / shard.index_file
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as index:
                columns = (index["document"], index["tokens"], index["sentences"])
        except FileNotFoundError:
            raise _missing(path) from None
        except Exception as error:  # zipfile, zlib and NumPy each have their own
            raise _damaged(path, error) from None
        if any(len(column) != shard.counts.parts for column in columns):
            num_found = len(columns[0])
            raise _damaged(path, f"{num_found} records, the manifest says {shard.counts.parts}")
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
                    path, f"{num_records} records, the manifest says {shard.counts.parts}"
                )
        return data_source([str(self.folder / shard.records_file) for shard in self._shards])


def _missing(path: Path) -> UserError:
    return UserError(
        f"{path}: missing, although the manifest lists it; copy the whole folder again, "
        "or run the same `bert-jax prepare` again"
    )


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(
        f"{path}: damaged or cut short ({reason}); copy the file again, or delete it and run the "
        "same `bert-jax prepare` again"
    )
