"""Tests the features of every kind of task: inputs, targets, and what truncation loses.

Sources: bert_jax/tasks/, bert_jax/data/finetuning/features.py.
"""

import dataclasses

import numpy as np
import pytest

from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.data.finetuning.example import (
    Answer,
    ChoiceExample,
    QuestionExample,
    TaggedExample,
    Task,
    TextExample,
)
from bert_jax.data.finetuning.features import Features, build_inputs_with_special_tokens
from bert_jax.errors import ConfigError, UserError
from bert_jax.tasks.features import make_features

WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran", "##s", "who", "?", ".")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return word_tokenizer(tmp_path_factory.mktemp("vocabulary"), WORDS)


def task(kind, *examples, labels=()):
    return Task(name="test", kind=kind, labels=labels, metrics=("f1",), splits={"train": examples})


def tokens(vocabulary, ids):
    return [vocabulary.id_to_token(int(id)) for id in ids]


def test_features_of_a_text_and_a_pair(vocabulary):
    made = make_features(
        task(
            "classification",
            TextExample(id="1", text="the cat sat", label="no"),
            TextExample(id="2", text="the cat", text_pair="a dog ran .", label="yes"),
            labels=("no", "yes"),
        ),
        "train",
        vocabulary,
        10,
    )
    assert tokens(vocabulary, made.input_ids[0]) == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert tokens(vocabulary, made.input_ids[1])[3:] == ["[SEP]", "a", "dog", "ran", ".", "[SEP]"]
    assert made.token_type_ids[1].tolist() == [0] * 4 + [1] * 5
    assert made.targets == {"labels": [0, 1]} and made.lengths.tolist() == [5, 9]
    assert made.num_truncated == 0 and made.example_index.tolist() == [0, 1]


def test_regression_and_unlabeled_examples(vocabulary):
    scored = [TextExample(id=str(i), text="a cat", label=float(i)) for i in range(3)]
    made = make_features(task("regression", *scored), "train", vocabulary, 8)
    assert made.targets == {"label_values": [0.0, 1.0, 2.0]}
    unlabeled = [dataclasses.replace(e, label=None) for e in scored]
    assert not make_features(task("regression", *unlabeled), "train", vocabulary, 8).targets


@pytest.mark.parametrize(
    ("first", "second", "max_tokens", "lengths"),
    [
        (5, 5, 20, (5, 5)),
        (9, 2, 8, (6, 2)),
        (2, 9, 8, (2, 6)),
        (9, 9, 8, (4, 4)),
        (9, 8, 7, (4, 3)),
        (8, 9, 7, (3, 4)),
    ],
)
def test_longer_text_of_a_pair_is_truncated_first(vocabulary, first, second, max_tokens, lengths):
    a, b = np.full(first, 5), np.full(second, 6)
    ids, _, cut = build_inputs_with_special_tokens(a, b, vocabulary, max_tokens + 3)
    assert ((ids == 5).sum(), (ids == 6).sum()) == lengths
    assert cut == (lengths != (first, second))


def test_tags_are_at_the_first_token_of_each_word(vocabulary):
    example = TaggedExample(id="1", words=("cats", "ran", "§"), tags=("B-A", "O", "I-A"))
    labels = ("O", "B-A", "I-A")
    made = make_features(
        task("token_classification", example, labels=labels), "train", vocabulary, 16
    )
    row = tokens(vocabulary, made.input_ids[0])
    assert row == ["[CLS]", "cat", "##s", "ran", "[UNK]", "[SEP]"]
    assert made.word_ids[0].tolist() == [-1, 0, -1, 1, 2, -1]
    assert np.asarray(made.targets["token_labels"][0]).tolist() == [0, 1, 0, 0, 2, 0]
    assert np.asarray(made.targets["token_label_weights"][0]).tolist() == [0, 1, 0, 1, 1, 0]


def test_every_word_of_a_long_example_is_in_one_window(vocabulary):
    words = tuple(WORDS[i % 6] for i in range(50))
    tags = tuple("B-A" if word == "cat" else "O" for word in words)
    example = TaggedExample(id="1", words=words, tags=tags)
    made = make_features(
        task("token_classification", example, labels=("O", "B-A")),
        "train",
        vocabulary,
        16,
        window_overlap=4,
    )
    assert len(made) > 3 and made.lengths.max() == 16
    word_indices = np.concatenate([word_ids[word_ids >= 0] for word_ids in made.word_ids])
    assert sorted(word_indices) == list(range(50))
    for word_ids, labels in zip(made.word_ids, made.targets["token_labels"], strict=True):
        for place in np.flatnonzero(word_ids >= 0):
            assert np.asarray(labels)[place] == (tags[word_ids[place]] == "B-A")


CONTEXT = "the cat sat on a mat . a dog ran . " * 6


def question(start, text, **changes):
    values = {"id": "q", "question": "who ran ?", "context": CONTEXT, "answers": ()}
    if text:
        values["answers"] = (Answer(text=text, start=start),)
    return QuestionExample(**{**values, **changes})


def test_answers_are_in_the_windows_that_contain_them(vocabulary):
    begin = CONTEXT.index("a dog", 100)
    example = question(begin, "a dog ran")
    made = make_features(
        task("question_answering", example), "train", vocabulary, 24, window_overlap=8
    )
    assert len(made) > 2
    starts = np.asarray(made.targets["start_positions"])
    ends = np.asarray(made.targets["end_positions"])
    held = [row for row in range(len(made)) if (starts[row], ends[row]) != (0, 0)]
    assert held
    for row in range(len(made)):
        offsets = made.offsets[row]
        inside = offsets[(offsets >= 0).all(1)]
        whole = inside[0, 0] <= begin and inside[-1, 1] >= begin + len("a dog ran")
        assert (row in held) == whole
        if row in held:
            assert CONTEXT[offsets[starts[row], 0] : offsets[ends[row], 1]] == "a dog ran"
    pieces = sum(int(central.sum()) for central in made.is_max_context)
    assert pieces == len(vocabulary.encode(CONTEXT))


def test_question_without_an_answer_has_the_position_of_cls(vocabulary):
    made = make_features(
        task("question_answering", question(0, "", is_impossible=True)), "train", vocabulary, 96
    )
    assert made.targets == {"start_positions": [0], "end_positions": [0]}


def test_question_that_fills_the_sequence_is_rejected(vocabulary):
    example = question(0, "the", question="who ran ? " * 10)
    with pytest.raises(ConfigError, match="7 tokens of context after the question 'q' of 30"):
        make_features(task("question_answering", example), "train", vocabulary, 40)


def test_choices_are_sequences_of_one_example(vocabulary):
    example = ChoiceExample(
        id="1", context="the cat", prompt="a dog", choices=("ran", "sat on a mat"), label=1
    )
    made = make_features(task("multiple_choice", example), "train", vocabulary, 16)
    assert len(made) == 1 and made.num_choices == 2 and made.targets == {"labels": [1]}
    assert tokens(vocabulary, made.input_ids[1])[4:] == [
        *("a", "dog", "sat", "on", "a", "mat"),
        "[SEP]",
    ]
    assert made.lengths.tolist() == [11]
    other = dataclasses.replace(example, choices=("ran", "sat", "sat on"))
    with pytest.raises(UserError, match=r"examples have \[2, 3\] choices"):
        make_features(task("multiple_choice", example, other), "train", vocabulary, 16)


def test_unknown_label_error_names_the_label(vocabulary):
    example = TextExample(id="row 7", text="a cat", label="maybe")
    with pytest.raises(UserError, match=r"'row 7' has the label 'maybe'; expected one of .*: 'no'"):
        make_features(task("classification", example, labels=("no", "yes")), "train", vocabulary, 8)


def test_empty_split_has_no_features(vocabulary):
    assert len(make_features(task("regression"), "train", vocabulary, 8)) == 0
    assert len(Features()) == 0
