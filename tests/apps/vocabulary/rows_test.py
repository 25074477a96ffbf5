"""Covers apps/vocabulary/rows.py: means, copied rows, and FOCUS against slow references."""

import numpy as np
import pytest

from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.apps.vocabulary.rows import added_rows, replaced_rows, sparsemax
from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.errors import UserError
from bert_jax.text.learn import train_tokenizer

TEXT = "the old man mends a net by the sea and sings; the men mend nets, an older man sings. " * 3


def test_rows_of_words_are_means_of_old_rows(tmp_path):
    old = word_tokenizer(tmp_path)
    ids = [old.encode("mends"), [old.unk_id], [old.unk_id, *old.encode("sea net")]]
    rows = added_rows(old, ids)
    assert rows.counts == {"copied": 18, "old_tokens": 2, "average": 1}
    # Two unused rows, as training programs add, are left out.
    table = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    new = rows.apply(table)
    assert new.dtype == np.float32 and new.shape == (21, 3)
    np.testing.assert_array_equal(new[:18], table[:18])
    for row, words in ((18, ("mend", "##s")), (20, ("sea", "net"))):
        expected = np.mean([table[old.token_to_id(word)] for word in words], axis=0)
        np.testing.assert_allclose(new[row], expected, rtol=1e-6)
    np.testing.assert_allclose(new[19], table[5:18].mean(axis=0), rtol=1e-5)  # no special tokens
    bias = table[:, 0]
    np.testing.assert_array_equal(rows.apply(bias), new[:, 0])


def test_random_rows_have_the_mean_and_deviation_of_the_old_ones(tmp_path):
    old = word_tokenizer(tmp_path)
    rows = added_rows(old, [old.encode("mends")] * 4000)
    table = np.random.default_rng(0).normal(3.0, 0.5, size=(18, 2)).astype(np.float32)
    new = rows.apply(table, np.random.default_rng(1))
    np.testing.assert_array_equal(new[:18], table)
    np.testing.assert_allclose(new[18:].mean(axis=0), table.mean(axis=0), atol=0.04)
    np.testing.assert_allclose(new[18:].std(axis=0), table.std(axis=0), atol=0.03)


def slow_sparsemax(scores: np.ndarray) -> np.ndarray:
    """Finds the threshold with which the positive parts have the sum 1, by bisection."""
    low, high = scores.min() - 1, scores.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(scores - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(scores - low, 0)


def test_sparsemax_is_the_projection_on_the_simplex():
    scores = np.random.default_rng(0).normal(size=(50, 30))
    scores[0], scores[1, 3] = 0.25, 100.0
    found = sparsemax(scores)
    np.testing.assert_allclose(found, [slow_sparsemax(row) for row in scores], atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (found == 0).any(axis=1)[2:].all() and found[1, 3] == 1.0


def test_tokens_of_both_vocabularies_are_copied_and_others_are_means(tmp_path):
    old = word_tokenizer(tmp_path / "old")
    new = word_tokenizer(tmp_path / "new", ("sea", "##s", "mends", "oldman", "x", "##net", "s"))
    rows = replaced_rows(old, new)
    table = np.arange(18.0)
    at = old.token_to_id
    # WordPiece has [UNK] for "oldman", because "##man" is not in the old vocabulary. "##net" is
    # made of the token that begins a word, since no token continues one with these letters.
    assert rows.sources[5:] == [
        "copied", "copied", "old_tokens", "average", "average", "old_tokens", "average"
    ]  # fmt: skip
    ordinary = table[5:].mean()
    expected = [*range(5), at("sea"), at("##s"), (at("mend") + at("##s")) / 2]
    expected += [ordinary, ordinary, at("net"), ordinary]
    np.testing.assert_allclose(rows.apply(table), expected)


@pytest.mark.parametrize("kinds", [("wordpiece", "unigram"), ("unigram", "wordpiece")])
def test_vocabularies_of_other_kinds_have_common_tokens(kinds):
    old, new = (
        train_tokenizer([TEXT], TokenizerTrainingConfig(kind=kind, vocab_size=50))[0]
        for kind in kinds
    )
    rows = replaced_rows(old, new)
    table = np.arange(float(old.vocab_size))
    found = rows.apply(table)
    in_unigram = {old.kind: old, new.kind: new}["unigram"]
    in_wordpiece = {old.kind: old, new.kind: new}["wordpiece"]
    common = 0
    for token_id in range(5, in_wordpiece.vocab_size):
        token = in_wordpiece.id_to_token(token_id)
        other = token.removeprefix("##") if token.startswith("##") else f"▁{token}"
        if other in in_unigram:
            old_token, new_token = (other, token) if old is in_unigram else (token, other)
            assert rows.sources[new.token_to_id(new_token)] == "copied"
            assert found[new.token_to_id(new_token)] == old.token_to_id(old_token)
            common += 1
    assert rows.counts["copied"] == common + 5 > 15
    assert found[new.mask_id] == old.mask_id
    assert rows.counts.get("average", 0) <= 1


def test_continuations_and_bytes_of_bpe_are_made_of_their_old_tokens():
    old, new = (
        train_tokenizer([text], TokenizerTrainingConfig(kind="bpe", vocab_size=size))[0]
        for text, size in ((TEXT, 290), ("café thesea menders é" * 9, 300))
    )
    rows = replaced_rows(old, new)
    assert "average" not in rows.counts
    weights = rows.weights.toarray()
    for token_id in range(new.vocab_size):
        if rows.sources[token_id] == "copied":
            continue
        text = new.decode([token_id])
        if "\ufffd" not in text:  # otherwise a part of the two bytes of é
            counts = np.bincount(old.encode(text), minlength=old.vocab_size)
            np.testing.assert_allclose(weights[token_id], counts / counts.sum(), err_msg=text)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)


def test_focus_is_the_sparsemax_of_cosines_of_copied_tokens(tmp_path):
    old = word_tokenizer(tmp_path / "old")
    new = word_tokenizer(tmp_path / "new", ("sea", "##s", "ocean", "man", "waves", "net", "rare"))
    rng = np.random.default_rng(0)
    words = ["waves", "man", "sea", "ocean", "net"]  # by frequency; "##s" and "rare" are too rare
    vectors = WordVectors(words, rng.normal(size=(5, 4)))
    rows = replaced_rows(old, new, vectors)
    table = rng.normal(size=(18, 3))
    found = rows.apply(table)
    assert rows.counts == {"copied": 9, "nearest": 2, "average": 1}
    for word in ("waves", "ocean"):
        common = ("man", "sea", "net")
        cosines = np.array(
            [vectors[word] @ vectors[k] / np.linalg.norm(vectors[k]) for k in common]
        )
        weights = slow_sparsemax(cosines / np.linalg.norm(vectors[word]))
        expected = weights @ [table[old.token_to_id(k)] for k in common]
        np.testing.assert_allclose(found[new.token_to_id(word)], expected, rtol=1e-5)
    with pytest.raises(UserError, match="no token with a static vector is in both vocabularies"):
        replaced_rows(old, new, WordVectors(["ocean"], np.ones((1, 4))))
