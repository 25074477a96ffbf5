"""Covers bert_jax/data/sentence_embeddings/: loader.py and the reading of NLI and STS-B."""

import functools
import itertools

import numpy as np
import pytest

from bert_jax.batch import PACKED_TOKENS
from bert_jax.config.labeled_data import Glue, Snli
from bert_jax.config.sentence_embeddings import NliFiles, StsBenchmark, TextFile
from bert_jax.data.finetuning.features import Features
from bert_jax.data.sentence_embeddings.loader import (
    SentenceEmbeddingLoader,
    WordDeletion,
    distinct_batches,
)
from bert_jax.data.sentence_embeddings.text_groups import TextGroups, read_text_groups, text_ids
from bert_jax.errors import ConfigError, UserError

SIZE = 60
# 40 anchors, so that a third of them occurs twice; each example has a positive of its own.
PAIRS = TextGroups(name="pairs", texts=[(f"anchor {n % 40}", f"positive {n}") for n in range(SIZE)])
NLI = """premise\thypothesis\tlabel
p1\te1\t0
p1\tc1\t2
p1\te2\t0
p2\te3\t0
p2\tn1\t1
p3\tc2\t2
"""


def make_loader(distinct: bool = True, by_length: bool = False, **fields):
    """Returns a loader of `PAIRS`, whose first token is the index of the example."""
    lengths = [4 + n % 9 for n in range(SIZE)]
    fields = {"batch_size": 8, "seed": 3, "pad_id": 0, **fields}
    features = Features(num_choices=2, example_index=np.arange(SIZE))
    for n, length in enumerate(lengths):
        for _ in range(2):
            features.input_ids.append(np.full(length, n, np.int32))
            features.token_type_ids.append(np.zeros(length, np.int32))
    ids = text_ids(PAIRS) if distinct else None
    return SentenceEmbeddingLoader(features, ids, (8, 16), by_length=by_length, **fields)


def examples(batch) -> list[int]:
    return batch["choice_input_ids"][:, 0, 0].tolist()


def test_whole_words_are_deleted_and_one_always_stays():
    starts = np.array([True] * 8 + [False, False])  # 8 and 9 continue a word
    text = np.array([2, 4, 8, 5, 6, 9, 8, 7, 3], np.int32)
    words = [(4, 8), (5,), (6, 9, 8), (7,)]
    rng = np.random.default_rng(0)
    counts, num_draws = np.zeros(5), 4000
    for _ in range(num_draws):
        rest = WordDeletion(starts, 0.6).apply(text, rng).tolist()
        assert (rest[0], rest[-1]) == (2, 3)
        stays = [word for word in words if word[0] in rest]
        assert rest[1:-1] == [token for word in stays for token in word]
        counts[len(stays)] += 1
    # Of 4 words, a binomial number stays, and one if it is 0.
    expected = [0.6**4, 4 * 0.4 * 0.6**3, 6 * 0.4**2 * 0.6**2, 4 * 0.4**3 * 0.6, 0.4**4]
    expected = [0, expected[0] + expected[1], *expected[2:]]
    np.testing.assert_allclose(counts / num_draws, expected, atol=0.03)
    empty = np.array([2, 3], np.int32)
    assert WordDeletion(starts, 0.6).apply(empty, rng).tolist() == [2, 3]


def test_each_epoch_deletes_other_words_and_a_restart_the_same():
    deletion = WordDeletion(np.ones(SIZE, bool), 0.6)
    loader = make_loader(distinct=False, by_length=True, deletion=deletion)
    batches = [next(loader) for _ in range(2 * loader.num_batches(0))]
    plain = make_loader(distinct=False, by_length=True)
    removed: dict[int, set[int]] = {}
    for batch in batches:
        original = next(plain)
        for name in ("choice_input_ids", "choice_attention_mask"):
            np.testing.assert_array_equal(batch[name][:, 1], original[name][:, 1])
        mask = batch["choice_attention_mask"][:, 0]
        assert (np.diff(mask, axis=1) <= 0).all()  # padding is on the right
        np.testing.assert_array_equal(batch["choice_input_ids"][:, 0][mask == 0], 0)
        full = original["choice_attention_mask"][:, 0].sum(axis=1)
        for example, size, whole in zip(examples(batch), mask.sum(axis=1), full, strict=True):
            assert 3 <= size <= whole
            removed.setdefault(example, set()).add(int(whole - size))
    assert any(len(sizes) > 1 for sizes in removed.values())
    restarted = make_loader(distinct=False, by_length=True, deletion=deletion, start=24)
    np.testing.assert_array_equal(
        next(restarted)["choice_input_ids"], batches[3]["choice_input_ids"]
    )


def test_processes_have_their_part_of_the_packed_rows():
    rows = make_loader(process_count=2).count_packed_rows(5, multiple=4)
    assert list(rows) == [16] and rows[16] % 4 == 0
    whole = make_loader(packed_rows=rows)
    parts = [
        make_loader(packed_rows=rows, process_index=process, process_count=2) for process in (0, 1)
    ]
    for _ in range(5):
        batch, shared = next(whole), [next(part) for part in parts]
        packed = np.concatenate([part[PACKED_TOKENS] for part in shared])
        assert packed.shape == batch[PACKED_TOKENS].shape == (rows[16], 16)
        # The same tokens, since both processes together have the same texts.
        for tokens in (packed, batch[PACKED_TOKENS]):
            ids, mask = batch["choice_input_ids"].ravel(), batch["choice_attention_mask"].ravel()
            found = tokens[tokens >= 0]
            np.testing.assert_array_equal(np.sort(found), np.flatnonzero(mask))
            assert sorted(ids[found].tolist()) == sorted(ids[mask > 0].tolist())


def test_no_text_is_twice_in_a_batch_and_no_example_twice_in_an_epoch():
    loader = make_loader()
    epochs = [[examples(next(loader)) for _ in range(loader.num_batches(e))] for e in range(20)]
    seen = set()
    for batches in epochs:
        sampled = list(itertools.chain(*batches))
        assert len(set(sampled)) == len(sampled) >= SIZE - 2 * 8
        seen |= set(sampled)
        for batch in batches:
            texts = [text for n in batch for text in PAIRS.texts[n]]
            assert len(set(texts)) == len(texts)
    assert seen == set(range(SIZE))  # the examples that are left out differ
    assert epochs[0] != epochs[1]


def test_duplicates_are_postponed_in_order():
    texts = [{0}, {0}, {1}, {0}, {2}, {3}, {4}]
    assert distinct_batches(texts, np.arange(7), 2).tolist() == [[0, 2], [1, 4], [3, 5]]


def test_batches_by_length_have_each_example_once_and_little_padding():
    loader, by_length = make_loader(distinct=False), make_loader(distinct=False, by_length=True)
    seen, num_tokens = set(), {loader: 0, by_length: 0}
    for epoch in range(9):
        batches = by_length.epoch_batches(epoch)
        assert len(batches) == loader.num_batches(epoch) == SIZE // 8
        assert len(set(batches.flat)) == batches.size
        seen |= set(batches.flat)
        for each in (loader, by_length):
            for _ in range(each.num_batches(epoch)):
                num_tokens[each] += next(each)["choice_input_ids"].shape[-1]
    assert seen == set(range(SIZE))  # the four examples that are left out differ
    # 5 of 9 examples have at most 8 tokens; a batch with other neighbors has 16.
    assert num_tokens[by_length] < 0.85 * num_tokens[loader]
    assert not np.array_equal(by_length.epoch_batches(0), by_length.epoch_batches(1))


@pytest.mark.parametrize(("distinct", "by_length"), [(1, 0), (0, 0), (0, 1)])
def test_batches_depend_on_the_position_only(distinct, by_length):
    make = functools.partial(make_loader, bool(distinct), bool(by_length))
    loader = make()
    batches = [next(loader) for _ in range(15)]  # more than one epoch
    assert loader.position == 15 * 8
    resumed = make(start=10 * 8)
    for batch in batches[10:]:
        assert examples(next(resumed)) == examples(batch)
    parts = [make(process_index=i, process_count=2) for i in range(2)]
    assert examples(next(parts[0])) + examples(next(parts[1])) == examples(batches[0])
    lengths = {batch["choice_input_ids"].shape[-1] for batch in batches}
    assert sorted(lengths) == loader.distinct_batch_lengths(15)


def test_too_few_different_texts_are_an_error():
    with pytest.raises(UserError, match=r"of the 60 training examples no 41 with different texts"):
        make_loader(batch_size=41).num_batches(0)


def test_nli_becomes_pairs_triples_and_classes(tmp_path):
    (tmp_path / "train.tsv").write_text(NLI)
    forms = {
        form: read_text_groups(NliFiles(tasks=(Snli(folder=str(tmp_path)),), form=form))
        for form in ("pairs", "triples", "classes")
    }
    assert forms["pairs"].texts == [("p1", "e1"), ("p1", "e2"), ("p2", "e3")]
    assert forms["triples"].texts == [("p1", "e1", "c1"), ("p1", "e2", "c1")]
    assert len(forms["classes"].texts) == 6
    labels = forms["classes"].labels
    assert labels is not None and labels[:2] == ["entailment", "contradiction"]
    with pytest.raises(UserError, match=r"snli has the splits train; expected one of dev"):
        read_text_groups(NliFiles(tasks=(Snli(folder=str(tmp_path)),), splits=("dev",)))


def test_scores_of_sts_b_are_mapped_to_0_to_1(tmp_path):
    (tmp_path / "STS-B").mkdir()
    file = tmp_path / "STS-B/dev.tsv"
    file.write_text("sentence1\tsentence2\tscore\na\tb\t5.000\nc\td\t2.5\n")
    groups = read_text_groups(StsBenchmark(folder=str(tmp_path), split="dev"))
    assert groups.texts == [("a", "b"), ("c", "d")]
    np.testing.assert_array_equal(groups.scores, [1.0, 0.5])
    file.write_text("sentence1\tsentence2\tscore\na\tb\t5.5\n")
    with pytest.raises(UserError, match=r"has the score 5.5; expected a number from 0 to 5"):
        read_text_groups(StsBenchmark(folder=str(tmp_path), split="dev"))
    with pytest.raises(UserError, match=r"STS-B has no split 'train'; it has dev"):
        read_text_groups(StsBenchmark(folder=str(tmp_path)))


def test_errors_of_data_configs():
    with pytest.raises(ConfigError, match="expected mnli"):
        NliFiles(tasks=(Glue(task="rte", folder="glue"),))
    with pytest.raises(ConfigError, match="different names"):
        TextFile(path="a.csv", texts=("text", "text"))
    with pytest.raises(ConfigError, match="expected the lowest score and then the highest"):
        TextFile(path="a.csv", texts=("a", "b"), score="s", score_range=(5.0, 0.0))
