"""Generates random prepared corpora and vocabulary arrays, for tests of code that reads them."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.corpus.manifest import CorpusCounts, CorpusShard, Manifest, write_manifest
from bert_jax.data.corpus.shards import (
    ids_dtype,
    index_file_name,
    shard_file_name,
    split_into_parts,
    write_records,
)
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.text.input_template import BertTemplate

Document = list[list[int]]  # sentences of token ids

PAD, UNK, CLS, SEP, MASK = range(5)


def random_vocab_arrays(vocab_size: int = 1000, word_start_fraction: float = 0.75) -> VocabArrays:
    """Returns a vocabulary without strings: ids 0 to 4 are special tokens.

    Of the other tokens, about `word_start_fraction` begin a word.
    """
    special = np.arange(vocab_size) < 5
    word_starts = np.random.default_rng(0).random(vocab_size) < word_start_fraction
    return VocabArrays(
        pad_id=PAD,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        is_special=special,
        maskable_ids=np.flatnonzero(~special).astype(np.int32),
        word_starts=word_starts | special,
        template=BertTemplate(),
    )


def random_documents(
    num_documents: int,
    *,
    vocab_size: int = 1000,
    seed: int = 0,
    mean_sentences: float = 20,
    mean_tokens: int = 20,
) -> list[Document]:
    """Returns documents of random ids in [5, V).

    The number of sentences is log-normal, the number of tokens in a sentence is uniform.
    """
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        num_sentences = max(1, int(rng.lognormal(np.log(mean_sentences) - 0.5, 1.0)))
        lengths = rng.integers(1, 2 * mean_tokens, num_sentences)
        documents.append([rng.integers(5, vocab_size, length).tolist() for length in lengths])
    return documents


def write_corpus(
    folder: Path,
    documents: Sequence[Document],
    *,
    vocab_size: int = 1000,
    num_shards: int = 1,
    max_part_tokens: int = 8192,
    vocabulary_fingerprint: str = "made up",
) -> Path:
    """Writes a prepared corpus of the documents, in order and in shards of about equal number."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = ids_dtype(vocab_size)
    written: list[CorpusShard] = []
    bounds = np.linspace(0, len(documents), num_shards + 1).astype(int).tolist()
    for shard_index, (begin, end) in enumerate(itertools.pairwise(bounds)):
        path = folder / shard_file_name(shard_index, num_shards)
        parts = [
            part
            for document_index, document in enumerate(documents[begin:end])
            for part in split_into_parts(
                document_index,
                np.concatenate([np.array(sentence, dtype=dtype) for sentence in document]),
                np.cumsum([len(sentence) for sentence in document]),
                max_part_tokens,
            )
        ]
        counts = write_records(path, parts)
        written.append(
            CorpusShard(
                records_file=path.name,
                index_file=index_file_name(path.name),
                counts=CorpusCounts(
                    documents=counts["documents"],
                    parts=counts["records"],
                    sentences=counts["sentences"],
                    tokens=counts["tokens"],
                ),
                dropped={},
                records_sha256="",
                index_sha256="",
                first_document=begin,
            )
        )
    manifest = Manifest(
        source={},
        task=None,
        settings={},
        counts=sum((shard.counts for shard in written), CorpusCounts()),
        dropped={},
        tokenizer_fingerprint=vocabulary_fingerprint,
        vocab_size=vocab_size,
        dtype=str(dtype),
        max_part_tokens=max_part_tokens,
        shards=tuple(written),
        fingerprint="made up",
    )
    write_manifest(folder, manifest)
    return folder
