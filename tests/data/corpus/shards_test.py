"""Tests records and prepared folders: round trips, and all kinds of damage."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.apps.testing.random_corpus import random_documents, write_corpus
from bert_jax.data.corpus.reader import PreparedCorpus, corpus_tokenizer
from bert_jax.data.corpus.shards import (
    DocumentPart,
    decode_record,
    encode_record,
    ids_dtype,
    index_file_name,
    shard_file_name,
    split_into_parts,
    write_records,
    write_shard,
)
from bert_jax.errors import UserError


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=50),
    document=st.integers(0, 2**40),
    size=st.sampled_from([1000, 1 << 16, 1 << 17]),
)
def test_decode_inverts_encode(lengths: list[int], document: int, size: int) -> None:
    ids = np.random.default_rng(0).integers(0, size, sum(lengths)).astype(ids_dtype(size))
    part = DocumentPart(document, 3, ids, np.cumsum(lengths).astype(np.uint32))
    back = decode_record(encode_record(part))
    assert (back.document, back.part) == (document, 3)
    assert back.ids.dtype == ids.dtype
    np.testing.assert_array_equal(back.ids, ids)
    np.testing.assert_array_equal(back.sentence_ends, part.sentence_ends)


def test_ids_dtype_is_the_smallest_for_the_vocabulary() -> None:
    assert ids_dtype(65_536) == np.uint16
    assert ids_dtype(65_537) == np.uint32


@pytest.mark.parametrize("ends", [[], [2], [0, 3], [2, 2, 3], [3, 2]])
def test_encode_raises_for_invalid_sentence_ends(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="sentence ends"):
        encode_record(
            DocumentPart(0, 0, np.arange(3, dtype=np.uint16), np.array(ends, dtype=np.uint32))
        )


def test_decode_raises_for_incomplete_records() -> None:
    record = encode_record(
        DocumentPart(0, 0, np.arange(3, dtype=np.uint16), np.array([3], np.uint32))
    )
    for damaged in (b"", record[:-1], record + b"x", b"XXXX" + record[4:]):
        with pytest.raises(UserError, match="record"):
            decode_record(damaged)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    max_part_tokens=st.integers(1, 100),
)
def test_parts_are_whole_sentences_of_the_whole_document(
    lengths: list[int], max_part_tokens: int
) -> None:
    ids = np.arange(sum(lengths), dtype=np.uint16)
    ends = np.cumsum(lengths)
    parts = list(split_into_parts(7, ids, ends, max_part_tokens))
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.document for part in parts} == {7}
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), ids)
    starts = np.cumsum([0, *(len(part.ids) for part in parts)])[:-1]
    all_ends = np.concatenate([p.sentence_ends + s for p, s in zip(parts, starts, strict=True)])
    np.testing.assert_array_equal(all_ends, ends)
    for part, later in zip(parts, [*parts[1:], None], strict=True):
        assert len(part.ids) <= max_part_tokens or len(part.sentence_ends) == 1
        if later is not None:  # each part has the maximum length
            assert len(part.ids) + later.sentence_ends[0] > max_part_tokens


def test_failed_writer_leaves_no_files(tmp_path: Path) -> None:
    def parts():
        yield DocumentPart(0, 0, np.arange(3, dtype=np.uint16), np.array([3], np.uint32))
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_records(tmp_path / shard_file_name(0, 1), parts())
    assert list(tmp_path.iterdir()) == []


def test_error_of_a_document_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    def documents():
        yield "empty"
        raise RuntimeError("the tokenizer failed")

    with pytest.raises(RuntimeError, match="the tokenizer failed"):
        write_shard(
            tmp_path / shard_file_name(0, 1),
            documents(),
            max_part_tokens=100,
            plan_fingerprint="",
        )
    assert list(tmp_path.iterdir()) == []


def test_shard_bytes_depend_only_on_its_parts(tmp_path: Path) -> None:
    documents = random_documents(20)
    first = write_corpus(tmp_path / "a", documents, num_shards=2)
    second = write_corpus(tmp_path / "b", documents, num_shards=2)
    names = sorted(path.name for path in first.iterdir())
    assert len(names) == 5
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_reading_a_corpus_returns_its_documents(tmp_path: Path, shards: int) -> None:
    documents = random_documents(7, seed=shards)  # one of 8 shards is empty
    corpus = PreparedCorpus(
        write_corpus(tmp_path, documents, num_shards=shards, max_part_tokens=100)
    )
    assert corpus.num_documents == 7
    assert corpus.num_sentences == sum(map(len, documents))
    assert len(corpus.tokens_per_part) > 7
    for number, document in enumerate(documents):
        parts = list(corpus.parts_from(int(corpus.first_part[number]), number))
        ids = np.concatenate([part.ids for part in parts])
        np.testing.assert_array_equal(ids, [token for sentence in document for token in sentence])
        assert corpus.tokens_per_document[number] == len(ids)
        assert corpus.document_of(int(corpus.first_part[number + 1]) - 1) == number


def test_missing_shard_or_index_is_named(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path, random_documents(10), num_shards=2)
    for name in (shard_file_name(1, 2), index_file_name(shard_file_name(0, 2))):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"{name}: no such file"):
            PreparedCorpus(folder)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_truncated_shard_or_index_is_named(tmp_path: Path, keep: float) -> None:
    folder = write_corpus(tmp_path, random_documents(100), num_shards=2)
    for name in (shard_file_name(1, 2), index_file_name(shard_file_name(0, 2))):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(keep * len(content))])
        with pytest.raises(UserError, match=f"{name}: damaged or cut short"):
            PreparedCorpus(folder)
        (folder / name).write_bytes(content)


def test_flipped_bit_raises_when_it_is_read(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path, random_documents(50))
    path = folder / shard_file_name(0, 1)
    content = bytearray(path.read_bytes())
    corpus = PreparedCorpus(folder)
    needle = corpus.read(20).ids[:8].tobytes()
    content[content.find(needle)] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name}: damaged"):
        PreparedCorpus(folder).read(20)


def test_shard_of_another_corpus_raises(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "a", random_documents(10))
    other = write_corpus(tmp_path / "b", random_documents(11))
    (folder / shard_file_name(0, 1)).write_bytes((other / shard_file_name(0, 1)).read_bytes())
    with pytest.raises(UserError, match="11 records, expected 10 from the manifest"):
        PreparedCorpus(folder)


def test_tokenizer_that_differs_from_the_manifest_raises(tmp_path: Path) -> None:
    corpus = PreparedCorpus(write_corpus(tmp_path, random_documents(3)))
    word_tokenizer(tmp_path / "vocabulary")
    with pytest.raises(UserError, match=r"different vocabularies: .* 1,000 tokens.* 18 tokens"):
        corpus.tokenizer()


def test_missing_corpus_is_not_reported_as_missing_tokenizer(tmp_path: Path) -> None:
    message = r"trainx: no such folder; .* which `bert-jax prepare` makes"
    for open_it in (PreparedCorpus, corpus_tokenizer):
        with pytest.raises(UserError, match=message):
            open_it(tmp_path / "trainx")


def test_corpus_without_documents_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no documents"):
        PreparedCorpus(write_corpus(tmp_path, []))
    with pytest.raises(UserError, match="not a prepared corpus"):
        (tmp_path / "empty").mkdir()
        PreparedCorpus(tmp_path / "empty")
