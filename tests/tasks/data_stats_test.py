"""Tests the statistics of `data inspect` on examples counted by hand."""

from pathlib import Path

import pytest

from bert_jax.apps.testing.text_corpus import topic_words, write_vocabulary
from bert_jax.data.finetuning.example import (
    Answer,
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    Task,
    TextExample,
)
from bert_jax.tasks import kind_named
from bert_jax.tasks.data_stats import (
    count_labels,
    count_overlap,
    length_stats,
    regression_labels,
)
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    return load_tokenizer(write_vocabulary(folder))


def task(kind: str, labels: tuple[str, ...] = (), **splits: tuple[Example, ...]) -> Task:
    return Task(name="t", kind=kind, labels=labels, metrics=("accuracy",), splits=splits)


def text(content: str, label: str | float | None = None, pair: str | None = None) -> TextExample:
    return TextExample(id="0", text=content, text_pair=pair, label=label)


def test_label_balance_of_every_kind():
    found = task("classification", ("b", "a"), dev=(text("x", "a"), text("y", "b"), text("z", "a")))
    assert list(count_labels(found, "dev").items()) == [("b", 1), ("a", 2)]
    assert count_labels(task("classification", ("a", "b"), test=(text("x"),)), "test") == {
        "(no label)": 1
    }
    found = task("regression", dev=(text("x", 1.5), text("y", 2.0), text("z")))
    assert count_labels(found, "dev") == {"(score)": 2, "(no label)": 1}
    assert regression_labels(found, "dev").tolist() == [1.5, 2.0]
    tagged = TaggedExample(id="0", words=tuple("abcd"), tags=("B-X", "I-X", "B-X", "O"))
    assert count_labels(
        task("token_classification", ("O", "B-X", "I-X"), dev=(tagged,)), "dev"
    ) == {"X": 2}
    questions = (
        QuestionExample(id="0", question="q", context="c", answers=(Answer(text="c", start=0),)),
        QuestionExample(id="1", question="q", context="c", is_impossible=True),
        QuestionExample(id="2", question="q", context="c"),
    )
    assert count_labels(task("question_answering", dev=questions), "dev") == {
        "answer": 1,
        "no answer": 1,
        "(no label)": 1,
    }
    assert [kind_named("question_answering").format_label(q) for q in questions] == [
        "'c'",
        "no answer",
        "(no label)",
    ]
    choice = ChoiceExample(id="0", context="c", choices=("a", "b"), label=1)
    assert count_labels(task("multiple_choice", dev=(choice,)), "dev") == {"1": 1}
    assert kind_named("multiple_choice").format_label(choice) == "1"
    assert kind_named("token_classification").format_label(tagged) == "B-X I-X B-X O"


def test_lengths_are_those_of_untruncated_examples(vocabulary):
    word = topic_words(0)[0]
    dev = tuple(text(" ".join([word] * n), "a") for n in (1, 2, 3, 100))
    lengths = length_stats(task("classification", ("a",), dev=dev), "dev", vocabulary, 5)
    assert lengths == (5, 102, 102, 1)  # with [CLS] and [SEP]: 3, 4, 5, 102
    tagged = TaggedExample(id="0", words=(word,) * 300, tags=("O",) * 300)
    lengths = length_stats(
        task("token_classification", ("O",), dev=(tagged,)), "dev", vocabulary, 128
    )
    assert lengths == (302, 302, 302, 1)


def test_overlap_compares_texts_not_labels():
    train = (text("The sea", "a", "net"), text("a net", "b"))
    dev = (text("the sea ", "b", "Net"), text("the sea", "a"), text("a", "a"))
    found = task("classification", ("a", "b"), train=train, dev=dev)
    assert count_overlap(found, "dev") == 1 and count_overlap(found, "train") == 2
    assert count_overlap(task("classification", dev=dev), "dev") == 0
    question = QuestionExample(id="0", question="who?", context="The sea.")
    other = QuestionExample(id="1", question="what?", context="The sea.")
    assert count_overlap(task("question_answering", train=(question,), dev=(other,)), "dev") == 1
