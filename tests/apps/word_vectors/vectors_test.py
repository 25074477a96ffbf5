"""Covers static word vectors in bert_jax/apps/word_vectors/: reading, training, evaluation."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.word_vectors import glove
from bert_jax.apps.word_vectors.evaluate import (
    evaluate_analogies,
    evaluate_similarity,
    evaluation_file,
)
from bert_jax.apps.word_vectors.sentences import read_sentences, split_words
from bert_jax.apps.word_vectors.train import Method, WordVectorConfig, train_word_vectors
from bert_jax.apps.word_vectors.vectors import (
    WordVectors,
    read_word_vectors,
    write_word_vectors,
)
from bert_jax.apps.word_vectors.word_encoder import look_up_words
from bert_jax.errors import ConfigError, MissingExtraError, UserError

gensim_models = pytest.importorskip("gensim.models")

TEXT = (
    "The bank of the river is wet. We don't re-read No. 7!\n\nThe bank lends money to the town.\n"
)


def synonym_sentences() -> list[list[str]]:
    """Returns sentences in which cat and dog, and bus and lorry, have the same contexts."""
    rng = np.random.default_rng(0)
    groups = [
        (["cat", "dog"], ["eats", "sleeps", "purrs"]),
        (["bus", "lorry"], ["drives", "stops"]),
    ]
    return [
        [str(rng.choice(names)), str(rng.choice(verbs)), str(rng.choice(verbs))]
        for names, verbs in (groups[int(rng.integers(2))] for _ in range(600))
    ]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


def test_words_are_lower_case_without_punctuation():
    assert split_words("Don't re-read No. 7, naïve_Ōsaka!") == [
        *("don", "t", "re", "read", "no", "7", "naïve", "ōsaka")
    ]


def test_a_prepared_corpus_has_the_words_of_its_files(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    vocabulary, prepared = tmp_path / "vocabulary", tmp_path / "prepared"
    train = ["tokenizer", "train", "--vocab-size", "80", "--output", str(vocabulary)]
    assert main([*train, str(text_file)]) == 0
    prepare = ["prepare", "--files", str(text_file), "--tokenizer", str(vocabulary)]
    assert main([*prepare, "--output", str(prepared)]) == 0
    capsys.readouterr()
    sentences = read_sentences([str(text_file)])
    assert sentences[0] == ["the", "bank", "of", "the", "river", "is", "wet"]
    assert read_sentences([str(prepared)]) == sentences


def test_vectors_are_read_as_they_were_written(tmp_path: Path):
    array = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    vectors = WordVectors(["a", "bank", "c"], array)
    write_word_vectors(tmp_path / "v.txt", vectors)
    again = read_word_vectors(tmp_path / "v.txt")
    assert again.words == vectors.words
    np.testing.assert_array_equal(again.array, array)
    read = gensim_models.KeyedVectors.load_word2vec_format(tmp_path / "v.txt")
    np.testing.assert_array_equal(read["bank"], array[1])
    lines = (tmp_path / "v.txt").read_text().split("\n", 1)
    (tmp_path / "glove.txt").write_text(lines[1])  # GloVe's format
    np.testing.assert_array_equal(read_word_vectors(tmp_path / "glove.txt").array, array)
    with pytest.raises(UserError, match="no vector of 'bnak'; did you mean 'bank'"):
        vectors["bnak"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 2\na 1 2\n", "1 vectors after the first line '2 2'"),
        ("2 2\na 1 2\nb 1\n", "line 3: 'b 1'; expected a word and 2 numbers"),
        ("2 1\na 1\na 2\n", "'a' has two vectors"),
        ("1 1\na nan\n", "'a' has values that are not finite"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        read_word_vectors(tmp_path / "v.txt")


def test_words_without_a_vector_have_that_of_their_lower_case_or_zeros(tmp_path: Path):
    (tmp_path / "v.txt").write_text("the 1 2\nsea 3 4\n. . 7 8\nThe 5 6\n", "utf-8")
    vectors = read_word_vectors(tmp_path / "v.txt")
    np.testing.assert_array_equal(vectors[". ."], [7, 8])  # as in GloVe's files
    found = look_up_words(vectors, [("The", "SEA"), ("the", "net")])
    np.testing.assert_array_equal(found.values, [[[5, 6], [3, 4], [1, 2], [0, 0]]])
    with pytest.raises(UserError, match="none of the 1 different words has a vector"):
        look_up_words(vectors, [("old",)])


def test_similarity_and_analogies_equal_those_of_gensim(tmp_path: Path):
    pairs, questions = evaluation_file("wordsim353.tsv"), evaluation_file("questions-words.txt")
    lines = [line.split("\t") for line in pairs.read_text().split("\n")[2:]]
    words = {word for line in lines for word in line[:2] if word}
    family = questions.read_text().split(": family\n")[1].split(":")[0]
    words = [*sorted(words | set(family.split())), "Media"]  # the first one, media, counts
    rng = np.random.default_rng(2)
    array = rng.normal(size=(len(words), 3)).astype(np.float32)
    vectors = WordVectors(words, array)
    reference = gensim_models.KeyedVectors(3)
    reference.add_vectors(words, array)
    found = evaluate_similarity(vectors, pairs)
    _, expected, oov_percent = reference.evaluate_word_pairs(str(pairs))
    assert found.spearman == pytest.approx(expected.statistic, abs=1e-6)
    assert 100 * found.missing / (found.missing + found.pairs) == pytest.approx(oov_percent)
    (tmp_path / "family.txt").write_text(f": family\n{family}: gram\nMedia sex money tiger\n")
    accuracy, sections = reference.evaluate_word_analogies(str(tmp_path / "family.txt"))
    analogies = evaluate_analogies(vectors, tmp_path / "family.txt")
    assert analogies["all"].accuracy == pytest.approx(accuracy) and accuracy > 0
    assert analogies["family"].questions == sum(
        len(sections[0][k]) for k in ("correct", "incorrect")
    )


def test_cooccurrences_equal_a_slow_count():
    rng = np.random.default_rng(3)
    sentences = [[f"w{i}" for i in rng.integers(0, 8, rng.integers(1, 9))] for _ in range(30)]
    words, window = [f"w{i}" for i in range(6)], 3  # w6 and w7 have no vector
    expected = np.zeros((6, 6))
    for sentence in sentences:
        known = [int(word[1:]) for word in sentence if word in words]
        for i, first in enumerate(known):
            for j in range(i + 1, min(i + 1 + window, len(known))):
                expected[first, known[j]] += 1 / (j - i)
                expected[known[j], first] += 1 / (j - i)
    found = glove.cooccurrences(sentences, words, window).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_loss_of_glove_and_its_gradients_equal_a_reference(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(glove, "X_MAX", 2.0)  # counts on both sides of it
    params = glove.init_params(jax.random.key(0), 5, 3)
    words, contexts = np.array([0, 1, 1, 4, 0]), np.array([1, 0, 2, 4, 0])
    counts = np.array([0.5, 3.0, 1.5, 2.5, 0.0], np.float32)  # the last is padding
    batch = glove.CountBatch(*map(jax.numpy.asarray, (words, contexts, counts)))
    loss, gradients = jax.value_and_grad(glove.glove_loss)(params, batch)
    tensors = {k: torch.tensor(np.asarray(v), dtype=torch.float64) for k, v in params.items()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for i, j, x in zip(words[:4], contexts[:4], counts[:4].tolist(), strict=True):
        weight = (x / 2.0) ** 0.75 if x < 2.0 else 1.0
        product = tensors["words"][i] @ tensors["contexts"][j]
        bias = tensors["word_biases"][i] + tensors["context_biases"][j]
        total = total + weight * (product + bias - np.log(x)) ** 2
    total.backward()
    assert float(loss) == pytest.approx(total.item(), rel=1e-5)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(gradients[name], np.asarray(tensor.grad), rtol=1e-4, atol=1e-6)
    optimizer = torch.optim.Adagrad(
        [tensors["words"]], lr=glove.LEARNING_RATE, initial_accumulator_value=1.0, eps=0
    )
    # torch adds the square of a gradient before it divides, the authors' program afterwards.
    squares = jax.tree.map(lambda g: 1.0 + g**2, gradients)
    updated, _ = glove.adagrad_update(params, squares, gradients)
    optimizer.step()
    np.testing.assert_allclose(updated["words"], tensors["words"].detach(), rtol=1e-4, atol=1e-6)


def test_an_epoch_of_glove_equals_updates_of_all_rows():
    params = glove.init_params(jax.random.key(0), 7, 3)
    squares = jax.tree.map(jax.numpy.ones_like, params)
    rng = np.random.default_rng(0)
    ids, counts = rng.integers(0, 6, (2, 4, 5)), rng.uniform(0.5, 200, (4, 5)).astype(np.float32)
    counts[-1, -1] = 0.0  # padding
    batches = glove.CountBatch(*map(jax.numpy.asarray, (*ids, counts)))
    (found, found_squares), losses = glove.train_epoch(
        jax.tree.map(jax.numpy.copy, (params, squares)), batches
    )
    for number in range(4):
        batch = glove.CountBatch(*(column[number] for column in batches))
        loss, gradients = jax.value_and_grad(glove.glove_loss)(params, batch)
        params, squares = glove.adagrad_update(params, squares, gradients)
        assert float(losses[number]) == pytest.approx(float(loss), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found_squares, squares)


@pytest.mark.parametrize("method", ["cbow", "skip-gram", "fasttext", "glove"])
def test_words_in_the_same_contexts_have_similar_vectors(method: Method):
    config = WordVectorConfig(method=method, dimensions=8, epochs=200, min_count=2)
    vectors = train_word_vectors(synonym_sentences(), config)
    nearest = [word for word, _ in vectors.nearest(vectors["cat"], 9) if word in ("dog", "bus")]
    assert nearest[0] == "dog"


def test_a_corpus_of_rare_words_is_refused(text_file: Path):
    config = WordVectorConfig(method="glove", min_count=99)
    with pytest.raises(UserError, match="no word occurs 99 times"):
        train_word_vectors(read_sentences([str(text_file)]), config)
    with pytest.raises(ConfigError, match="dimensions is 0, expected a number at least 1"):
        WordVectorConfig(method="glove", dimensions=0)


def test_without_gensim_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(MissingExtraError, match=r"need gensim; install the extra \[word-vectors\]"):
        train_word_vectors([["a"]] * 5, WordVectorConfig(method="cbow"))


def test_the_verbs_train_and_evaluate(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    vectors, pairs = str(tmp_path / "v.txt"), tmp_path / "pairs.tsv"
    train = ["word-vectors", "train", "glove", str(text_file), "--output", vectors]
    assert main([*train, "--min-count", "1", "--dimensions", "4", "--epochs", "2"]) == 0
    pairs.write_text("# comment\nbank\triver\t5\nthe\tTown\t1\nmoney\twet\t2\nx\tbank\t1\n")
    questions = tmp_path / "questions.txt"
    questions.write_text(": all unknown\na b c d\n")
    evaluate = ["word-vectors", "evaluate", vectors, "--similarity", str(pairs)]
    evaluate += ["--analogies", str(questions)]
    assert main([*evaluate, "--output", str(tmp_path / "found.json")]) == 0
    results = json.loads((tmp_path / "found.json").read_text())
    assert results["analogies"]["all"] == {"accuracy": None, "questions": 0, "missing": 1}
    found = results["similarity"]["pairs"]
    assert (found["pairs"], found["missing"]) == (3, 1)
    assert "similarity: pairs" in capsys.readouterr().out
    pairs.write_text("bank river\n")
    assert main(evaluate) == 1
    assert "line 1: 'bank river'; expected two words and a number" in capsys.readouterr().err
