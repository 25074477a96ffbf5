"""Made-up prepared corpora and token tables, for tests of whatever reads them."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.manifest import Counts, Manifest, Shard, write_manifest
from bert_jax.data.records import ids_dtype, index_file, shard_file, split_into_parts, write_shard
from bert_jax.data.token_table import TokenTable

Document = list[list[int]]  # sentences of token ids

PAD, UNK, CLS, SEP, MASK = range(5)


def token_table(size: int = 1000, word_start_share: float = 0.75) -> TokenTable:
    """A vocabulary of ids alone: 0 to 4 are special, the given share of the rest begins a word."""
    special = np.arange(size) < 5
    word_starts = np.random.default_rng(0).random(size) < word_start_share
    return TokenTable(
        pad_id=PAD,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special=special,
        ordinary=np.flatnonzero(~special).astype(np.int32),
        word_starts=word_starts | special,
    )


def random_documents(
    count: int,
    *,
    size: int = 1000,
    seed: int = 0,
    mean_sentences: float = 20,
    mean_tokens: int = 20,
) -> list[Document]:
    """Documents of log-normal numbers of sentences of uniform lengths; ids in [5, V)."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        sentences = max(1, int(rng.lognormal(np.log(mean_sentences) - 0.5, 1.0)))
        lengths = rng.integers(1, 2 * mean_tokens, sentences)
        documents.append([rng.integers(5, size, length).tolist() for length in lengths])
    return documents


def write_corpus(
    folder: Path,
    documents: Sequence[Document],
    *,
    size: int = 1000,
    shards: int = 1,
    max_part_tokens: int = 8192,
    vocabulary_fingerprint: str = "made up",
) -> Path:
    """Writes a prepared corpus of the documents, in order and in shards of about equal number."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = ids_dtype(size)
    written: list[Shard] = []
    bounds = np.linspace(0, len(documents), shards + 1).astype(int).tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        path = folder / shard_file(number, shards)
        parts = [
            part
            for local, document in enumerate(documents[begin:end])
            for part in split_into_parts(
                local,
                np.concatenate([np.array(sentence, dtype=dtype) for sentence in document]),
                np.cumsum([len(sentence) for sentence in document]),
                max_part_tokens,
            )
        ]
        counts = write_shard(path, parts)
        written.append(
            Shard(
                file=path.name,
                index=index_file(path.name),
                counts=Counts(
                    documents=counts["documents"],
                    parts=counts["records"],
                    sentences=counts["sentences"],
                    tokens=counts["tokens"],
                ),
                dropped={},
                sha256="",
                index_sha256="",
                first_document=begin,
            )
        )
    manifest = Manifest(
        source={},
        task=None,
        settings={},
        counts=sum((shard.counts for shard in written), Counts()),
        dropped={},
        vocabulary_fingerprint=vocabulary_fingerprint,
        vocabulary_size=size,
        dtype=str(dtype),
        max_part_tokens=max_part_tokens,
        shards=tuple(written),
        fingerprint="made up",
    )
    write_manifest(folder, manifest)
    return folder
