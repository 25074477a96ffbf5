"""Covers the examples of probing tasks, and their control tasks."""

from collections import Counter

import numpy as np
import pytest

from bert_jax.apps.probes.probe import expected_layer, pool_spans, span_f1
from bert_jax.apps.probes.tasks import (
    SPLITS,
    TREEBANK_TASKS,
    ProbingTask,
    Split,
    conll_tasks,
    evenly_spaced,
    treebank_tasks,
)
from bert_jax.apps.treebanks.conllu import TreebankSentence

DOGS = TreebankSentence(
    words=("Dogs", "were", "barking", "loudly"),
    upos=("NOUN", "AUX", "VERB", "ADV"),
    xpos=("NNS", "VBD", "VBG", "RB"),
    feats=({"Number": "Plur"}, {"Tense": "Past"}, {"VerbForm": "Part"}, {}),
    heads=(2, 2, -1, 2),
    deprels=("nsubj", "aux", "root", "advmod"),
    first_line=1,
)
HE = TreebankSentence(
    words=("He", "sings"),
    upos=("PRON", "VERB"),
    xpos=("PRP", "VBZ"),
    feats=({"Number": "Sing"}, {"VerbForm": "Fin", "Tense": "Pres"}),
    heads=(1, -1),
    deprels=("nsubj:pass", "root"),
    first_line=6,
)


def split_of(name: str) -> Split:
    splits = {split: [DOGS, HE] for split in ("train", "dev", "test")}
    (task,) = treebank_tasks(splits, [name])
    return task.splits["train"]


@pytest.mark.parametrize(
    ("name", "labels", "spans"),
    [
        ("upos", ["NOUN", "AUX", "VERB", "ADV", "PRON", "VERB"], [[i] for i in range(6)]),
        ("deprel", ["nsubj", "aux", "root", "advmod", "nsubj", "root"], [[i] for i in range(6)]),
        ("arc-label", ["nsubj", "aux", "advmod", "nsubj"], [[0, 2], [1, 2], [3, 2], [4, 5]]),
    ],
)
def test_words_and_arcs(name, labels, spans):
    split = split_of(name)
    assert list(split.labels) == labels
    np.testing.assert_array_equal(split.spans[..., 0], spans)
    np.testing.assert_array_equal(split.spans[..., 1], np.array(spans) + 1)


def test_arcs_and_other_words():
    split = split_of("arc")
    pairs = Counter(split.labels)
    # "He sings" has no word but the head, so no pair that is no arc.
    assert pairs == {"arc": 4, "no arc": 3}
    for (word, other), label in zip(split.spans[..., 0], split.labels, strict=True):
        assert word // 4 == other // 4 and word != other  # both in one sentence
        head = {0: 2, 1: 2, 3: 2, 4: 5}[word]
        assert (other == head) == (label == "arc")


@pytest.mark.parametrize(
    ("name", "labels", "spans"),
    [
        ("length", ["1-4", "1-4"], [[0, 4], [4, 6]]),
        ("depth", ["1", "1"], [[0, 4], [4, 6]]),
        ("tense", ["Pres"], [[4, 6]]),
        ("subject-number", ["Plur", "Sing"], [[0, 4], [4, 6]]),
    ],
)
def test_properties_of_sentences(name, labels, spans):
    split = split_of(name)
    assert list(split.labels) == labels and split.types == ()
    np.testing.assert_array_equal(split.spans[:, 0], spans)


def test_swapped_words():
    splits = {split: [DOGS] * 40 for split in ("train", "dev", "test")}
    (task,) = treebank_tasks(splits, ["swapped-words"])
    split = task.splits["train"]
    counts = Counter(split.labels)
    assert min(counts["swapped"], counts["original"]) > 8
    for words, label in zip(split.sentences, split.labels, strict=True):
        wrong = [i for i in range(4) if words[i] != DOGS.words[i]]
        assert len(wrong) == (2 if label == "swapped" else 0) and sorted(words) == sorted(
            DOGS.words
        )
        assert not wrong or wrong[1] == wrong[0] + 1


def test_every_task_has_examples():
    splits = {split: [DOGS, HE] for split in ("train", "dev", "test")}
    for task in treebank_tasks(splits, TREEBANK_TASKS):
        split = task.splits["test"]
        assert len(split.labels) == len(split.spans) > 0, task.name
        assert split.types == () or len(split.types) == len(split.labels)


def test_control_labels_belong_to_words():
    words = [f"w{i % 50}" for i in range(400)]
    labels = ["A" if i % 4 else "B" for i in range(400)]
    split = Split([words], np.zeros((400, 1, 2), int), labels, words)
    task = ProbingTask(name="x", kind="words", splits=dict.fromkeys(SPLITS, split))
    assert task.classes() == ["A", "B"]
    found = task.control_ids("test")
    by_word: dict[str, set[int]] = {}
    for word, each in zip(words, found.tolist(), strict=True):
        by_word.setdefault(word, set()).add(each)
    assert all(len(ids) == 1 for ids in by_word.values())
    assert 0.1 < (found == 1).mean() < 0.45  # as B in the labels: a quarter
    assert (found != task.label_ids("test")).mean() > 0.2
    assert (task.control_ids("train") == found).all()


def test_conll_files(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nsays VBZ I-VP O\n\nGo VB I-VP O\n"
    files = {}
    for split in ("train", "dev", "test"):
        (tmp_path / split).write_text(text, "utf-8")
        files[split] = str(tmp_path / split)
    chunk, entity = conll_tasks(files, ("chunk", "entity"), lambda split, sentences: [0])
    assert list(chunk.splits["dev"].labels) == ["B-NP", "B-VP"]
    assert list(entity.splits["dev"].labels) == ["B-ORG", "O"]


def test_spans_are_pooled_by_means():
    values = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    spans = np.array([[[0, 1], [2, 3]], [[5, 6], [0, 1]]])
    expected = [np.concatenate([values[:, a], values[:, b]], -1) for a, b in ((0, 2), (5, 0))]
    np.testing.assert_array_equal(pool_spans(values, spans), np.stack(expected, 1))
    spans = np.array([[[0, 4]], [[4, 6]]])
    expected = [values[:, :4].mean(1), values[:, 4:].mean(1)]
    np.testing.assert_allclose(pool_spans(values, spans), np.stack(expected, 1))


def test_f1_of_spans():
    labels = ["O", "B-A", "I-A", "B-A", "O"]
    split = Split([("a", "b", "c"), ("d", "e")], np.zeros((5, 1, 2), int), labels, labels)
    task = ProbingTask(name="entity", kind="words", splits=dict.fromkeys(SPLITS, split))
    ids = {label: index for index, label in enumerate(task.classes())}
    # The second layer has one of two spans, and a wrong one.
    predictions = [labels, ["O", "B-A", "O", "B-A", "O"]]
    found = span_f1(task, np.array([[[ids[tag] for tag in tags] for tags in predictions]]))
    np.testing.assert_allclose(found, [1, 0.5])


def test_expected_layer():
    # Gains of 0.3 in layer 1 and 0.1 in layer 2.
    assert expected_layer(np.array([0.5, 0.8, 0.9])) == pytest.approx((0.3 + 2 * 0.1) / 0.4)
    assert expected_layer(np.array([0.5, 0.4])) is None


def test_sentences_are_evenly_spaced():
    assert evenly_spaced(10, 4) == [0, 2, 5, 7] and evenly_spaced(3, None) == [0, 1, 2]
