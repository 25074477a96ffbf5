"""Covers apps/static_embeddings/static_model.py and predict/static_embedder.py."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from bert_jax.__main__ import main
from bert_jax.apps.static_embeddings.static_model import (
    distill_static,
    principal_components,
    sif_weights,
    static_tokenizer,
    token_vectors,
)
from bert_jax.apps.testing.models import WORDS, small_model
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.predict.static_embedder import StaticEmbedder, is_static_folder
from bert_jax.pretrained.load import LoadedModel, load_encoder

TEXTS = ["the old man mends a net", "sea", "", "the man unheard sings by the sea .", "unheard"]
TOKENS = ("[PAD]", "[UNK]", *WORDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("made")
    return small_model(folder, initializer_range=0.15, num_hidden_layers=1)


@pytest.fixture(scope="module")
def static(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "small"
    facts = distill_static(model, folder, 8)
    assert (facts.num_tokens, facts.dimensions) == (len(TOKENS), 8)
    assert 0.5 < facts.explained_variance < 1.0
    return folder


@pytest.fixture
def copy(static: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(static, tmp_path / "copy"))


def test_vectors_are_those_of_model2vec(static):
    library = pytest.importorskip("model2vec").StaticModel.from_pretrained(static)
    assert library.dim == 8 and library.tokens == TOKENS
    found = StaticEmbedder(static)(TEXTS)
    np.testing.assert_allclose(found, library.encode(TEXTS), atol=1e-6)
    assert not found[[2, 4]].any()  # no token, and only an unknown one
    assert np.ptp(found[[0, 1, 3]], axis=0).max() > 0.1
    # Of a text beyond the limit, the same characters are read.
    long_text = [("net " * 90 + "sea ") * 30]
    np.testing.assert_allclose(
        StaticEmbedder(static)(long_text), library.encode(long_text), atol=1e-6
    )


@pytest.mark.slow  # the import takes seconds
def test_vectors_are_those_of_sentence_transformers(static):
    library = pytest.importorskip("sentence_transformers").SentenceTransformer
    vectors = library(str(static), device="cpu").encode(TEXTS[:3])
    np.testing.assert_allclose(vectors, StaticEmbedder(static)(TEXTS[:3]), atol=1e-5)


@pytest.mark.slow
def test_distillation_computes_what_model2vec_computes(model, static, tmp_path):
    library = Path(pytest.importorskip("model2vec").__file__).parent
    # The package `distill` itself needs a library for tokenizers, and this module does not.
    spec = importlib.util.spec_from_file_location("inference", library / "distill/inference.py")
    assert spec and spec.loader
    inference: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inference)
    transformers = pytest.importorskip("transformers")
    export(model, tmp_path / "exported")
    assert model.tokenizer is not None
    ids = [model.tokenizer.token_to_id(token) for token in TOKENS]
    found = token_vectors(model.config, model.params["encoder"], model.tokenizer, ids)
    peer = transformers.AutoModel.from_pretrained(tmp_path / "exported")
    expected = inference.create_embeddings(peer, [[2, each, 3] for each in ids], "cpu", 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    weights = inference.compute_weights(len(ids), 1e-4)
    np.testing.assert_allclose(sif_weights(len(ids)), weights, rtol=1e-12)
    reduced = inference.apply_pca(expected, 8) * weights[:, None]
    # Similarities and not vectors: the sign of a component is arbitrary.
    embeddings = load_file(static / "model.safetensors")["embeddings"]
    largest = np.abs(reduced @ reduced.T).max()
    np.testing.assert_allclose(embeddings @ embeddings.T, reduced @ reduced.T, atol=1e-5 * largest)


def test_principal_components_are_those_of_a_known_plane():
    plane = np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    coordinates = np.random.default_rng(0).normal(0, (3.0, 1.0), (50, 2))
    scores, explained = principal_components(coordinates @ plane + 5.0, 2)
    assert explained == pytest.approx(1.0)
    centered = coordinates - coordinates.mean(axis=0)
    np.testing.assert_allclose(scores @ scores.T, centered @ centered.T, atol=1e-9)


def bpe_backend() -> Tokenizer:
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "n": 4, "e": 5, "t": 6, "ne": 7}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("n", "e")], unk_token="<unk>"))
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return backend


def unigram_backend() -> Tokenizer:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁n", "e", "t", "▁ne"]
    backend = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return backend


@pytest.mark.parametrize("make_backend", [bpe_backend, unigram_backend])
def test_tokens_without_a_text_are_removed_from_a_tokenizer(make_backend):
    backend = make_backend()
    rules, remaining = static_tokenizer(json.loads(backend.to_str()))
    assert remaining == [1, 3, 4, 5, 6, 7]
    reduced = Tokenizer.from_str(json.dumps(rules))
    assert sorted(reduced.get_vocab().values()) == list(range(6))
    for text in ("net ne", "tent", "xnet"):
        old_ids = backend.encode(text).ids
        assert [remaining[token] for token in reduced.encode(text).ids] == old_ids


def test_unused_tokens_of_bert_are_removed():
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "[unused7]": 1, "net": 2}, unk_token="[UNK]"))
    rules, remaining = static_tokenizer(json.loads(backend.to_str()))
    assert remaining == [0, 2] and rules["model"]["vocab"] == {"[UNK]": 0, "net": 1}


def test_quantized_vocabularies_of_model2vec_are_read(copy):
    library = pytest.importorskip("model2vec").StaticModel
    plain = StaticEmbedder(copy).embeddings
    tensors = {
        "embeddings": plain[:4],
        "mapping": (np.arange(len(TOKENS)) % 4).astype(np.int64),
        "weights": np.linspace(0.5, 2.0, len(TOKENS)),
    }
    save_file(tensors, copy / "model.safetensors")
    found = StaticEmbedder(copy)(TEXTS)
    np.testing.assert_allclose(found, library.from_pretrained(copy).encode(TEXTS), atol=1e-6)


def test_unknown_tokens_of_a_unigram_vocabulary_are_left_out(copy):
    library = pytest.importorskip("model2vec").StaticModel
    pieces = [("<unk>", 0.0), *((f"\u2581{word}", -float(n)) for n, word in enumerate(TOKENS[2:]))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(copy / "tokenizer.json"))
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(len(pieces), 8)).astype(np.float32)
    save_file({"embeddings": embeddings}, copy / "model.safetensors")
    texts = ["the old zzz man", "the old man"]
    found = StaticEmbedder(copy)(texts)
    np.testing.assert_allclose(found, library.from_pretrained(copy).encode(texts), atol=1e-6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("config.json", b'{"model_type": "bert"}', "model_type is 'bert', expected 'model2vec'"),
        (
            "config.json",
            b'{"model_type": "model2vec", "max_length": "9"}',
            "max_length is '9', expected a positive integer or null",
        ),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", b"{", r"tokenizer.json cannot be read: .*; copy the folder again"),
        ("model.safetensors", b"{", r"model.safetensors cannot be read: "),
    ],
)
def test_damaged_folders_are_refused(copy, file, content, message):
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        StaticEmbedder(copy)


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"other": np.zeros((15, 8), np.float32)}, r"has the tensors \['other'\], expected"),
        ({"embeddings": np.zeros((9, 8), np.float32)}, r"shape \[9, 8\], but .* has 15 tokens"),
        ({"embeddings": np.full((15, 8), np.nan, np.float32)}, "values that are not finite"),
    ],
)
def test_wrong_tensors_are_refused(copy, tensors, message):
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(UserError, match=message):
        StaticEmbedder(copy)


def test_static_folder_is_recognized_and_too_many_dimensions_refused(model, static, tmp_path):
    assert is_static_folder(static) and not is_static_folder(tmp_path)
    for dimensions, message in ((17, "expected a number from 1 to 16"), (16, "only 15 tokens")):
        with pytest.raises(ConfigError, match=message):
            distill_static(model, tmp_path / "new", dimensions)
        assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="model2vec"):
        load_encoder(static)


def test_embed_prints_vectors_of_a_static_folder(static, capsys):
    long = "net " * 600
    assert main(["embed", str(static), TEXTS[0], long]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["truncated"] for record in records] == [False, True]
    vectors = [record["embedding"] for record in records]
    np.testing.assert_allclose(vectors, StaticEmbedder(static)([TEXTS[0], long]), atol=1e-7)
    assert main(["embed", str(static), "sea", "--pooling", "cls"]) == 2
    assert "static embedding model, which does not support --pooling" in capsys.readouterr().err
