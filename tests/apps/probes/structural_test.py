"""Covers structural probes: distances, spanning trees and scores against slow definitions."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from bert_jax.apps.probes.structural import (
    StructuralProbeConfig,
    linear_baseline,
    make_trees,
    minimum_spanning_tree,
    score_probes,
    score_trees,
    train_structural_probes,
    tree_distances,
)
from bert_jax.apps.treebanks.conllu import TreebankSentence
from bert_jax.errors import UserError


def random_sentence(rng: np.random.Generator, size: int) -> TreebankSentence:
    """Returns a sentence with a random tree, whose word 1 is punctuation unless it is the root."""
    order = rng.permutation(size)
    heads = [-1] * size
    for index, word in enumerate(order[1:], 1):
        heads[word] = int(order[rng.integers(index)])
    upos = tuple("PUNCT" if i == 1 and heads[1] >= 0 else "NOUN" for i in range(size))
    words = tuple(map(str, range(size)))
    return TreebankSentence(words, upos, upos, ({},) * size, tuple(heads), ("dep",) * size, 1)


@pytest.fixture(scope="module")
def sentences() -> list[TreebankSentence]:
    """Returns sentences of 3 to 9 words."""
    rng = np.random.default_rng(0)
    return [random_sentence(rng, 3 + index % 7) for index in range(60)]


def slow_distances(sentence: TreebankSentence) -> np.ndarray:
    """Counts edges by Floyd and Warshall."""
    size = len(sentence.words)
    found = np.full((size, size), np.inf)
    np.fill_diagonal(found, 0)
    for word, head in enumerate(sentence.heads):
        if head >= 0:
            found[word, head] = found[head, word] = 1
    for k, i, j in itertools.product(range(size), repeat=3):
        found[i, j] = min(found[i, j], found[i, k] + found[k, j])
    return found


def kruskal(distances: np.ndarray, words: list[int]) -> set[frozenset[int]]:
    """Adds the shortest edge that joins two components, as in Hewitt's code."""
    component = {word: word for word in words}
    edges = set()
    for i, j in sorted(itertools.combinations(words, 2), key=lambda pair: distances[pair]):
        if component[i] != component[j]:
            edges.add(frozenset((i, j)))
            old, new = component[i], component[j]
            component = {w: new if c == old else c for w, c in component.items()}
    return edges


def test_distances_and_depths(sentences):
    for sentence in sentences:
        expected = slow_distances(sentence)
        np.testing.assert_array_equal(tree_distances(sentence), expected)
        np.testing.assert_array_equal(sentence.depths(), expected[sentence.root])


def test_scores_equal_a_slow_definition(sentences):
    rng = np.random.default_rng(1)
    predicted = []
    for sentence in sentences:
        vectors = rng.normal(size=(len(sentence.words), 4))
        distances = np.square(vectors[:, None] - vectors).sum(-1)
        predicted.append((distances, rng.normal(size=len(vectors))))
    found = score_trees(predicted, sentences)
    correct = edges = roots = right_roots = 0
    by_length: dict[int, list] = {}
    for (distances, depths), sentence in zip(predicted, sentences, strict=True):
        labels, size = slow_distances(sentence), len(sentence.words)
        words = [i for i in range(size) if sentence.upos[i] != "PUNCT"]
        # A tree without an inner punctuation mark has one minimum only.
        true_edges = {frozenset(e) for e in minimum_spanning_tree(labels[np.ix_(words, words)])}
        true_edges = {frozenset(words[i] for i in edge) for edge in true_edges}
        correct += len(true_edges & kruskal(distances, words))
        edges += len(true_edges)
        roots += 1
        right_roots += min(words, key=lambda word: depths[word]) == sentence.root
        if size >= 5:
            by_distance, by_depth = by_length.setdefault(size, [[], []])
            by_distance += [spearmanr(distances[i], labels[i])[0] for i in range(size)]
            by_depth.append(spearmanr(depths, labels[sentence.root])[0])
    assert found.uuas == pytest.approx(correct / edges)
    assert found.root_accuracy == pytest.approx(right_roots / roots)
    means = np.mean([[np.mean(d), np.mean(e)] for d, e in by_length.values()], axis=0)
    assert [found.distance_spearman, found.depth_spearman] == pytest.approx(means)


def test_true_trees_have_the_best_scores(sentences):
    predicted = [(slow_distances(each), np.array(each.depths())) for each in sentences]
    assert tuple(score_trees(predicted, sentences)) == pytest.approx((1, 1, 1, 1))
    linear = linear_baseline(sentences)
    assert 0 < linear.uuas < 0.8


def test_probes_find_planted_trees(sentences):
    """A word's vector is the sum of its ancestors' directions, so distances are those of trees."""
    rng = np.random.default_rng(2)
    directions = np.eye(9)
    planted = []
    for sentence in sentences:
        for start in range(len(sentence.words)):
            vector, word = np.zeros(9), start
            while word >= 0 and sentence.heads[word] >= 0:
                vector += directions[word]
                word = sentence.heads[word]
            planted.append(vector)
    noise = rng.normal(size=(len(planted), 9))
    features = np.stack([noise, np.array(planted)]).astype(np.float32)
    config = StructuralProbeConfig(rank=9, learning_rate=3e-2, batch_size=10, max_epochs=30)
    trees, values = make_trees(sentences), jnp.asarray(features)
    distance, depth = (
        train_structural_probes(values, trees, values, trees, (0, 1), target, config)
        for target in ("distance", "depth")
    )
    assert distance.shape == (2, 2, 9, 9)
    for noise_scores, planted_scores in score_probes(distance, depth, features, sentences):
        assert planted_scores.uuas > 0.95 and planted_scores.root_accuracy > 0.95
        assert min(planted_scores.distance_spearman, planted_scores.depth_spearman) > 0.9
        assert noise_scores.uuas < 0.6 and noise_scores.depth_spearman < 0.6
    alone = train_structural_probes(values[1:], trees, values[1:], trees, (1,), "distance", config)
    np.testing.assert_allclose(alone[0, 0], distance[1, 1], atol=1e-4)


def test_long_sentences():
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="no sentence has at most 50 words"):
        make_trees([random_sentence(rng, 51)])
