"""Tests n-gram baselines: by hand, as distributions, and on text with a known entropy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.apps.studies import ngram_comparison
from bert_jax.apps.studies.ngram_comparison import NgramBaselines, fit_weights, masked_pairs
from bert_jax.errors import UserError

MASK, CLS = 1, 0


def a_batch(original: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Replaces all `positions` [B, P] by [MASK]; position 0 marks an unused slot."""
    rows = np.arange(len(original))[:, None]
    masked = original.copy()
    masked[rows, positions] = MASK
    masked[:, 0] = CLS
    used = positions > 0
    return {
        "input_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": np.where(used, original[rows, positions], 0),
        "masked_lm_weights": used.astype(np.float32),
    }


def a_markov_text(rng: np.random.Generator, num_parts: int, length: int, V: int) -> list:
    """Samples parts of a Markov chain over the ids 2..V-1, where each token has few successors."""
    transitions = rng.dirichlet(np.full(V - 2, 0.05), size=V - 2).cumsum(axis=1)
    parts = []
    for _ in range(num_parts):
        ids = [int(rng.integers(V - 2))]
        for u in rng.random(length - 1):
            ids.append(min(int(np.searchsorted(transitions[ids[-1]], u)), V - 3))
        parts.append(np.array(ids, np.uint16) + 2)
    return parts


def test_tiny_corpus_by_hand():
    # Nine parts "2 3" are counted; the tenth, also "2 3", fits the weights.
    model = NgramBaselines.fit([np.array([2, 3])] * 10, vocab_size=5)
    assert model.token_counts.tolist() == [0, 0, 10, 10, 0]
    assert model.pair_keys.tolist() == [2 * 5 + 3]
    assert model.pair_counts.tolist() == [10]
    # 3 always follows 2, so the pair counts get all the weight.
    np.testing.assert_allclose(model.bigram_probability(np.array([2]), np.array([3])), [1], 1e-4)
    # 3 is half of all tokens, which is better than 1/5 for every token of the tuning part.
    np.testing.assert_allclose(model.unigram_probability(np.array([3, 2])), [0.5, 0.5], 1e-4)
    # 3 has no successor: the bigram model backs off to the unigram one.
    np.testing.assert_allclose(
        model.bigram_probability(np.array([3, 3]), np.array([2, 4])),
        model.unigram_probability(np.array([2, 4])),
    )


def test_losses_use_the_true_previous_token_even_if_masked():
    model = NgramBaselines(
        vocab_size=4,
        token_counts=np.array([0, 0, 3, 1]),
        history_counts=np.array([0, 0, 2, 0]),
        pair_keys=np.array([2 * 4 + 2, 2 * 4 + 3]),
        pair_counts=np.array([1, 1]),
        unigram_weights=np.array([0.5, 0.5]),
        bigram_weights=np.tile([0.5, 0.3, 0.2], (ngram_comparison.NUM_BUCKETS, 1)),
    )
    # The sequence [CLS] 2 3 with both tokens masked, and one unused slot.
    batch = a_batch(np.array([[0, 2, 3]]), np.array([[1, 2, 0]]))
    assert batch["input_ids"].tolist() == [[CLS, MASK, MASK]]
    unigram = [0.5 * 3 / 4 + 0.5 / 4, 0.5 * 1 / 4 + 0.5 / 4]
    bigram = [0.3 * 3 / 4 + 0.2 / 4, 0.5 * 1 / 2 + 0.3 * 1 / 4 + 0.2 / 4]
    assert model.losses([batch]) == pytest.approx(
        {
            "unigram": -sum(map(math.log, unigram)) / 2,
            "bigram": -sum(map(math.log, bigram)) / 2,
            "tokens": 2,
        }
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=12), min_size=10, max_size=40),
)
def test_probabilities_sum_to_one_for_every_history(parts):
    V = 8  # one id more than occurs in the text
    model = NgramBaselines.fit([np.array(p, np.uint16) for p in parts], V)
    everything = np.arange(V)
    assert model.unigram_probability(everything).sum() == pytest.approx(1)
    for previous in range(V):
        row = model.bigram_probability(np.full(V, previous), everything)
        assert row.sum() == pytest.approx(1)
        assert row.min() >= 0


def test_sparse_counts_equal_dense_ones_for_all_chunk_sizes(monkeypatch):
    rng = np.random.default_rng(0)
    V = 30
    parts = [rng.integers(0, V, size=rng.integers(1, 50)) for _ in range(100)]
    dense = np.zeros((V, V), int)
    for part in parts:
        for previous, following in itertools.pairwise(part):
            dense[previous, following] += 1
    whole = NgramBaselines.fit(parts, V)
    monkeypatch.setattr(ngram_comparison, "CHUNK_TOKENS", 64)
    chunked = NgramBaselines.fit(parts, V)
    for model in (whole, chunked):
        keys = np.flatnonzero(dense)
        np.testing.assert_array_equal(model.pair_keys, keys)
        np.testing.assert_array_equal(model.pair_counts, dense.ravel()[keys])
        np.testing.assert_array_equal(model.history_counts, dense.sum(axis=1))
    np.testing.assert_array_equal(whole.bigram_weights, chunked.bigram_weights)


def test_expectation_maximization_finds_the_mixture_weights():
    # Samples from 0.7 * A + 0.3 * B, with A and B two distributions over four outcomes.
    a, b = np.array([0.7, 0.1, 0.1, 0.1]), np.array([0.1, 0.1, 0.1, 0.7])
    rng = np.random.default_rng(1)
    outcomes = rng.choice(4, size=50_000, p=0.7 * a + 0.3 * b)
    components = np.stack([a[outcomes], b[outcomes]], axis=1)
    weights, likelihoods = fit_weights(
        components,
        np.zeros(len(outcomes), int),
        np.array([[0.1, 0.9], [0.4, 0.6]]),
        np.ones(len(outcomes)),
    )
    assert all(np.diff(likelihoods) > -1e-12)
    assert likelihoods[-1] > likelihoods[0] + 0.1
    np.testing.assert_allclose(weights[0], [0.7, 0.3], atol=0.02)
    np.testing.assert_array_equal(weights[1], [0.4, 0.6])  # no samples of this outcome


def test_loss_on_a_markov_chain_is_close_to_its_entropy():
    rng = np.random.default_rng(2)
    V, length = 50, 200
    parts = a_markov_text(rng, num_parts=550, length=length, V=V)
    model = NgramBaselines.fit(parts[:500], V)
    held_out = np.stack(parts[500:]).astype(np.int32)
    positions = np.stack([rng.choice(np.arange(1, length), 30, replace=False) for _ in held_out])
    losses = model.losses([a_batch(held_out, positions)])
    previous, following, _ = masked_pairs(a_batch(held_out, positions))
    # The true entropy, estimated from all text by counting; the model must be close to it.
    counts = np.full((V, V), 1e-9)
    for part in parts:
        np.add.at(counts, (part[:-1], part[1:]), 1)
    best = -np.log((counts / counts.sum(axis=1, keepdims=True))[previous, following]).mean()
    assert best - 0.05 < losses["bigram"] < best + 0.1
    assert losses["bigram"] < losses["unigram"] - 0.5
    assert losses["unigram"] == pytest.approx(-np.log(model.unigram_probability(following)).mean())


def test_bigram_is_better_than_unigram_on_real_text(shared):
    files = sorted((shared / "text").rglob("*.txt"))
    if not files:
        pytest.skip("no plain text files among the shared data")
    text = "\n".join(f.read_text(errors="replace") for f in files[:12]).lower()
    words: dict[str, int] = {}
    ids = np.array([words.setdefault(w, 2 + len(words)) for w in text.split()])
    cut = int(0.9 * len(ids))
    model = NgramBaselines.fit(np.array_split(ids[:cut], 200), 2 + len(words))
    rows = ids[cut:][: (len(ids) - cut) // 100 * 100].reshape(-1, 100)
    positions = np.tile(np.arange(5, 100, 7), (len(rows), 1))
    losses = model.losses([a_batch(rows, positions)])
    assert losses["bigram"] < losses["unigram"] - 0.3
    assert 5 < losses["unigram"] < np.log(2 + len(words))


def test_invalid_inputs_are_rejected():
    with pytest.raises(UserError, match="too little training text"):
        NgramBaselines.fit([np.array([2, 3])] * 3, 5)
    with pytest.raises(UserError, match=r"id 9 .* 5 entries"):
        NgramBaselines.fit([np.array([2, 9])] * 10, 5)
    model = NgramBaselines.fit([np.array([2, 3])] * 10, 5)
    with pytest.raises(UserError, match="no masked positions"):
        model.losses([a_batch(np.array([[0, 2, 3]]), np.array([[0, 0, 0]]))])
