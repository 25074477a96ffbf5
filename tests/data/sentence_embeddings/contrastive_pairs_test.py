"""Covers bert_jax/data/sentence_embeddings/loader.py and the reading of such pairs."""

import dataclasses
from collections import Counter
from itertools import combinations_with_replacement

import numpy as np
import pytest

from bert_jax.config.labeled_data import Columns
from bert_jax.config.sentence_embeddings import ContrastivePairs, PairSampling
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.sentence_embeddings import text_groups
from bert_jax.data.sentence_embeddings.loader import negative_pairs, positive_pairs, sample_pairs
from bert_jax.data.sentence_embeddings.text_groups import read_text_groups
from bert_jax.errors import UserError

CLASS_IDS = np.array([2, 0, 1, 1, 0, 1, 2, 1, 1])


def all_pairs() -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Returns the positive and the negative pairs that setfit's `shuffle_combinations` gives."""
    pairs = list(combinations_with_replacement(range(len(CLASS_IDS)), 2))
    positive = {(i, j) for i, j in pairs if CLASS_IDS[i] == CLASS_IDS[j]}
    return positive, set(pairs) - positive


def unordered(pairs: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(sorted(pair)) for pair in pairs.tolist()]


def test_each_pair_has_a_number():
    positive, negative = all_pairs()
    for make, expected in ((positive_pairs, positive), (negative_pairs, negative)):
        found = unordered(make(CLASS_IDS, np.arange(len(expected))))
        assert len(found) == len(set(found)) and set(found) == expected


def test_pairs_of_a_large_class_have_exact_numbers():
    class_ids = np.zeros(100_000, np.int64)
    total = 100_000 * 100_001 // 2
    numbers = np.array([0, 99_999, 100_000, 199_998, 199_999, total - 3, total - 2, total - 1])
    expected = [(0, 0), (0, 99_999), (1, 1), (1, 99_999), (2, 2)]
    expected += [(99_998, 99_998), (99_998, 99_999), (99_999, 99_999)]
    assert unordered(positive_pairs(class_ids, numbers)) == expected


@pytest.mark.parametrize(
    ("sampling", "num_iterations", "counts"),
    [
        # 2 x 3 + 15 = 21 positive and 45 - 21 = 24 negative pairs exist.
        ("unique", None, (21, 24)),
        ("oversampling", None, (24, 24)),
        ("undersampling", None, (21, 21)),
        ("oversampling", 7, (63, 63)),
    ],
)
def test_samples_have_the_sizes_of_setfit(
    sampling: PairSampling, num_iterations: int | None, counts: tuple[int, int]
):
    pairs, scores = sample_pairs(CLASS_IDS, sampling, num_iterations=num_iterations, seed=3)
    assert Counter(scores.tolist()) == {1.0: counts[0], 0.0: counts[1]}
    for score, every in zip((1, 0), all_pairs(), strict=True):
        sampled = Counter(unordered(pairs[scores == score]))
        assert set(sampled) <= every
        # No pair is drawn again before all others were.
        assert max(sampled.values()) - min(sampled[pair] for pair in every) <= 1


def test_order_of_pairs_depends_on_the_seed():
    first, again, other = (
        sample_pairs(CLASS_IDS, "undersampling", seed=seed)[0] for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_pairs_of_a_task_have_scores(tmp_path):
    (tmp_path / "train.csv").write_text("a,b,label\nx,y,no\nz,,yes\nu,v,no\n".replace(",,", ",w,"))
    task = Columns(train=str(tmp_path / "train.csv"), text="a", text_pair="b", label="label")
    groups = read_text_groups(ContrastivePairs(task=task, sampling="unique"))
    assert groups.scores is not None
    found = {
        (frozenset(texts), score)
        for texts, score in zip(groups.texts, groups.scores.tolist(), strict=True)
    }
    no, yes = ("x y", "u v"), "z w"
    positive = {frozenset({no[0]}), frozenset({no[1]}), frozenset({yes}), frozenset(no)}
    assert found == {(pair, 1.0) for pair in positive} | {(frozenset({n, yes}), 0.0) for n in no}


def test_too_many_pairs_are_refused():
    with pytest.raises(UserError, match=r"75,497,472 pairs of 9 .* expected at most 16,777,216"):
        sample_pairs(CLASS_IDS, "unique", num_iterations=2**22, seed=0)


def test_example_without_a_label(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("a,label\nx,no\nz,yes\n")
    config = Columns(train=str(tmp_path / "train.csv"), text="a", label="label")
    task = load_task(config)
    examples = [dataclasses.replace(example, label=None) for example in task.splits["train"]]
    task = dataclasses.replace(task, splits={"train": tuple(examples)})
    monkeypatch.setattr(text_groups, "load_task", lambda config: task)
    with pytest.raises(UserError, match="has no label; expected one of no, yes"):
        read_text_groups(ContrastivePairs(task=config))


def test_one_class_has_no_pairs():
    with pytest.raises(UserError, match="all training examples have the same label"):
        sample_pairs(np.zeros(4, np.int64), "unique", seed=0)
