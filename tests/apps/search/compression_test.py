"""Covers bert_jax/apps/search/compression.py with NumPy written from ColBERTv2."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.search import build as build_module
from bert_jax.apps.search import compression
from bert_jax.apps.search.build import build_index
from bert_jax.apps.search.compression import (
    CompressedTokenVectors,
    ResidualCodec,
    nearest_centroids,
)
from bert_jax.apps.search.documents import Document
from bert_jax.apps.search.encoder import EncoderId
from bert_jax.apps.search.index import SearchIndex
from bert_jax.apps.search.late_interaction import StoredTokenVectors, pool_tokens
from bert_jax.apps.search.nearest import NO_ROW, Neighbors
from bert_jax.errors import ConfigError, UserError
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.tasks.metrics.vectors import normalize_vectors

WIDTH = 20


def words(seed: int, count: int) -> np.ndarray:
    """Returns unit vectors near some of 60 topics, as tokens in context are."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(0).normal(size=(60, WIDTH))
    vectors = topics[rng.integers(60, size=count)] + 0.3 * rng.normal(size=(count, WIDTH))
    return normalize_vectors(vectors.astype(np.float32))


class TopicEncoder:
    """Makes the vectors of a text from its number: text "7" has those of seed 7."""

    kind: EmbeddingKind = "multi_vector"
    max_length, num_truncated = 512, 0

    def __init__(self) -> None:
        self.id = EncoderId("topics", "topics")

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        self.num_truncated += sum(text == "3" for text in texts)
        return [words(int(text), 5 + int(text) % 17) for text in texts]

    def encode_queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the first tokens of the documents with noise, so that they are found."""
        rng = np.random.default_rng(1)
        documents = [words(int(text), 5 + int(text) % 17)[:5] for text in texts]
        return [
            normalize_vectors(each + 0.1 * rng.normal(size=each.shape).astype(np.float32))
            for each in documents
        ]


DOCUMENTS = [Document(f"d{n}", str(n)) for n in range(600)]
QUERIES = [str(n) for n in range(0, 600, 30)]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, SearchIndex]:
    root = tmp_path_factory.mktemp("indexes")
    return {
        bits: build_index(root / str(bits), DOCUMENTS, TopicEncoder(), bits=bits)
        for bits in (None, 1, 2, 4)
    }


def recall(found: Neighbors, expected: Neighbors) -> float:
    pairs = zip(found.rows, expected.rows, strict=True)
    return float(np.mean([len({*a} & {*b}) / len(b) for a, b in pairs]))


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("width", [5, 8])
def test_codec_equals_a_slow_reference(bits, width):
    rng = np.random.default_rng(2)
    centroids = rng.normal(size=(6, width)).astype(np.float32)
    levels = 2**bits
    cutoffs = np.sort(rng.normal(size=levels - 1)).astype(np.float32)
    values = np.sort(rng.normal(size=levels)).astype(np.float32)
    codec = ResidualCodec(centroids, cutoffs, values, is_unit=False)
    vectors = rng.normal(size=(30, width)).astype(np.float32)
    codes, residuals = codec.encode(vectors)
    assert codec.bits == bits and residuals.dtype == np.uint8
    assert residuals.shape == (30, -(-width * bits // 8)) == (30, codec.num_bytes())
    for vector, code, decoded in zip(vectors, codes, codec.decode(codes, residuals), strict=True):
        assert code == np.argmin([np.linalg.norm(vector - each) for each in centroids])
        for component in range(width):
            residual = vector[component] - centroids[code, component]
            level = sum(residual > cutoff for cutoff in cutoffs)
            assert decoded[component] == centroids[code, component] + values[level]


def test_trained_codec(monkeypatch):
    vectors = words(0, 2000)
    errors = []
    for bits in (1, 2, 4):
        codec = ResidualCodec.train(vectors, 100_000, bits)
        decoded = codec.decode(*codec.encode(vectors))
        np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, rtol=1e-5)
        errors.append(np.linalg.norm(decoded - vectors, axis=1).mean())
    assert len(codec.centroids) == 512  # at most half of the sample; 16 sqrt(100,000) is 5,059
    assert len(ResidualCodec.train(vectors, 400, 1).centroids) == 256  # 16 sqrt(400) is 320
    assert errors[0] > 1.5 * errors[1] > 1.5**2 * errors[2]
    assert len(ResidualCodec.train(vectors[:1], 1, 2).centroids) == 1
    not_unit = ResidualCodec.train(2 * vectors, 1000, 4)
    decoded = not_unit.decode(*not_unit.encode(2 * vectors))
    assert np.linalg.norm(decoded - 2 * vectors, axis=1).mean() < 0.2
    monkeypatch.setattr(compression, "_PRODUCTS_PER_BLOCK", 64 * 100)
    products = vectors[:1000] @ vectors[:64].T
    np.testing.assert_array_equal(
        nearest_centroids(vectors[:1000], vectors[:64]), products.argmax(axis=1)
    )


def test_more_bits_find_more_of_the_best_documents(indexes):
    encoder = TopicEncoder()
    exact = indexes[None].neighbors(encoder, QUERIES, 10)
    assert [rows[0] for rows in exact.rows] == [int(query) for query in QUERIES]
    recalls = [
        recall(indexes[bits].neighbors(encoder, QUERIES, 10, "exact"), exact) for bits in (1, 2, 4)
    ]
    assert recalls == sorted(recalls) and recalls[0] > 0.6 and recalls[2] > 0.95, recalls
    for bits in (1, 2, 4):
        index = indexes[bits]
        approximate = index.neighbors(encoder, QUERIES, 10)
        all_scored = index.neighbors(encoder, QUERIES, 10, "exact")
        assert recall(approximate, all_scored) > 0.95
        # Found documents have the score of MaxSim on decompressed vectors.
        assert isinstance(index.vectors, CompressedTokenVectors)
        vectors = index.vectors[0:600]
        for query, rows, scores in zip(
            encoder.encode_queries(QUERIES), approximate.rows, approximate.scores, strict=True
        ):
            expected = [(query @ vectors[row].T).max(axis=1).sum() for row in rows]
            np.testing.assert_allclose(scores, expected, rtol=1e-5)
    sizes = [indexes[bits].vectors.num_bytes for bits in (1, 2, 4)]
    tokens = indexes[None].vectors.num_bytes // (4 * WIDTH)
    centroids = 1024 * 4 * WIDTH
    assert sizes == [centroids + tokens * (4 + size) for size in (3, 5, 10)]


def test_number_of_candidates(monkeypatch, indexes):
    encoder, index = TopicEncoder(), indexes[4]
    approximate = index.neighbors(encoder, QUERIES[:2], 600, "approximate")
    all_scored = index.neighbors(encoder, QUERIES[:2], 600, "exact")
    np.testing.assert_allclose(approximate.scores, all_scored.scores, rtol=1e-5)
    monkeypatch.setattr(compression, "_MIN_DECOMPRESSED", 20)
    few = index.neighbors(encoder, QUERIES, 5)
    found = recall(few, index.neighbors(encoder, QUERIES, 5, "exact"))
    assert 0.7 < found < 1
    codec = ResidualCodec.train(words(0, 9), 9, 2)
    codes, residuals = codec.encode(words(1, 4))
    some = CompressedTokenVectors(codec, codes, residuals, np.array([1, 0, 3], np.int32))
    for found in (some.exact([words(1, 2)], 3), some.approximate([words(1, 2)], 3)):
        assert sorted(found.rows[0, :2]) == [0, 2] and found.rows[0, 2] == NO_ROW
    assert some.approximate([], 2).rows.shape == (0, 2)
    with pytest.raises(UserError, match="at least one vector of this width"):
        some.approximate([words(1, 2)[:, 1:]], 1)


@pytest.mark.parametrize("num_documents", [300, 599])
def test_compressed_index_grows_and_continues(indexes, num_documents, tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "_GROUP_SIZE", 100)
    output, encoder = tmp_path / "index", TopicEncoder()
    build_index(output, DOCUMENTS[:num_documents], encoder, bits=2)
    assert encoder.num_truncated == 1  # the sample for the codec is not counted
    codec = (output / "codec.npz").read_bytes()
    with monkeypatch.context() as context:
        calls = iter((True, True, False))
        real = TopicEncoder.encode_documents

        def interrupted(self: TopicEncoder, texts: Sequence[str]) -> list[np.ndarray]:
            if not next(calls):
                raise KeyboardInterrupt
            return real(self, texts)

        context.setattr(TopicEncoder, "encode_documents", interrupted)
        if num_documents == 300:
            with pytest.raises(KeyboardInterrupt):
                build_index(output, DOCUMENTS, encoder, append=True)
    index = build_index(output, DOCUMENTS, encoder, append=True)
    assert index.info.vectors.bits == 2 and len(index) == 600
    assert (output / "codec.npz").read_bytes() == codec
    found = index.neighbors(encoder, QUERIES, 10)
    assert recall(found, indexes[None].neighbors(encoder, QUERIES, 10)) > 0.6


def test_other_bits_than_an_index_has(indexes, tmp_path):
    encoder, folder = TopicEncoder(), indexes[2].folder
    with pytest.raises(UserError, match=r"is an index with 2 bits, not 4 bits; choose another"):
        build_index(folder, DOCUMENTS, encoder, bits=4)
    with pytest.raises(UserError, match="with 2 bits, not uncompressed vectors"):
        build_index(folder, DOCUMENTS, encoder)
    with pytest.raises(UserError, match="with the pool factor 1, not the pool factor 3"):
        build_index(folder, DOCUMENTS, encoder, bits=2, pool_factor=3)
    with pytest.raises(UserError, match="with 2 bits, not 1 bits"):
        build_index(folder, DOCUMENTS, encoder, bits=1, append=True)
    assert build_index(folder, DOCUMENTS, encoder, bits=2).info == indexes[2].info
    for bits in (0, 3, 8):
        with pytest.raises(ConfigError, match=f"--bits is {bits}; expected 1, 2 or 4"):
            build_index(tmp_path / "index", DOCUMENTS, encoder, bits=bits)
    dense = TopicEncoder()
    dense.kind = "dense"
    with pytest.raises(ConfigError, match="--bits is for multi-vector models"):
        build_index(tmp_path / "index", DOCUMENTS, dense, bits=2)
    with pytest.raises(ConfigError, match="--pool-factor is for multi-vector models"):
        build_index(tmp_path / "index", DOCUMENTS, dense, pool_factor=2)
    with pytest.raises(ConfigError, match="--pool-factor is 0"):
        build_index(tmp_path / "index", DOCUMENTS, encoder, pool_factor=0)


def test_damaged_codec(indexes, tmp_path: Path):
    folder = shutil.copytree(indexes[2].folder, tmp_path / "index")
    content = (folder / "codec.npz").read_bytes()
    shutil.copy(indexes[4].folder / "codec.npz", folder)
    with pytest.raises(UserError, match=r"codec.npz has the shapes .* for 2 bits and the width 20"):
        SearchIndex(folder)
    for damaged in (content[:-30], b"", content[:100] + bytes(200) + content[300:]):
        (folder / "codec.npz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"codec.npz cannot be read"):
            SearchIndex(folder)
    (folder / "codec.npz").write_bytes(content)
    np.save(folder / "residuals.npy", np.load(folder / "residuals.npy")[:, :-1])
    with pytest.raises(UserError, match=r"residuals.npy has the shape"):
        SearchIndex(folder)


def test_pooled_tokens(tmp_path):
    vectors = words(5, 13)
    pooled = pool_tokens(vectors, 3)
    assert pooled.shape == (5, WIDTH)
    np.testing.assert_array_equal(pooled[0], vectors[0])
    np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), 1, rtol=1e-5)
    assert pool_tokens(vectors, 1) is vectors and len(pool_tokens(vectors[:2], 4)) == 2
    assert len(pool_tokens(vectors, 100)) == 2
    two = normalize_vectors(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float32))
    expected = normalize_vectors(np.stack([two[:2].mean(0), two[2:].mean(0)]))
    np.testing.assert_allclose(pool_tokens(np.concatenate([two[:1], two]), 2)[1:], expected, 1e-6)
    index = build_index(tmp_path / "index", DOCUMENTS[:50], TopicEncoder(), pool_factor=2)
    assert isinstance(index.vectors, StoredTokenVectors)
    lengths = [1 + (4 + n % 17) // 2 for n in range(50)]
    assert index.vectors.lengths.tolist() == lengths
