"""Covers bert_jax/tasks/analysis.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

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
from bert_jax.tasks.analysis import (
    MAX_ERRORS,
    analyze,
    count_labels,
    count_overlap,
    describe_task,
    evaluation_warnings,
    length_stats,
    regression_labels,
)
from bert_jax.tasks.base import MAX_SHOWN_CHARACTERS, excerpt
from bert_jax.tasks.metrics.squad_decoding import Candidate, PredictedAnswer
from bert_jax.tasks.registry import compute_metrics, kind_named, kind_of
from bert_jax.tasks.regression import MAX_SCATTER_POINTS
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer


def make_task(kind: str, examples: Any, labels=(), metrics=("accuracy",)) -> Task:
    splits = {"dev": tuple(examples)}
    return Task(name="made", kind=kind, labels=labels, metrics=metrics, splits=splits)


def analyzed(task: Task, predictions: Any) -> dict[str, Any]:
    examples = task.splits["dev"]
    found = analyze(task, examples, predictions, compute_metrics(task, examples, predictions))
    assert json.loads(json.dumps(found)) == found  # only JSON values
    return found


def texts(count: int, labels=("no", "yes"), seed: int = 0) -> tuple[Task, np.ndarray]:
    random = np.random.default_rng(seed)
    references = random.integers(0, len(labels), count)
    logits = random.normal(0, 1, (count, len(labels))).astype(np.float32)
    logits[np.arange(count), references] += 1
    examples = [
        TextExample(id=f"n{i}", text=f"text {i}", label=labels[g]) for i, g in enumerate(references)
    ]
    return make_task("classification", examples, labels, ("accuracy", "f1", "matthews")), logits


def test_intervals_of_accuracy_equal_the_binomial():
    task, logits = texts(600)
    found = analyzed(task, logits)
    metrics = [row["metric"] for row in found["metrics_with_intervals"]]
    assert metrics == ["accuracy", "f1", "matthews"]
    accuracy = found["metrics_with_intervals"][0]
    low, high = stats.binom(600, accuracy["value"]).ppf([0.025, 0.975]) / 600
    assert accuracy["low"] == pytest.approx(low, abs=0.01)
    assert accuracy["high"] == pytest.approx(high, abs=0.01)
    for row in found["metrics_with_intervals"]:
        assert row["low"] < row["value"] < row["high"]


def test_tables_of_a_classification_are_consistent():
    task, logits = texts(300, ("a", "b", "c"))
    found, references = (
        analyzed(task, logits),
        kind_of(task).get_references(task.splits["dev"], task.labels),
    )
    guess = logits.argmax(axis=1)
    counts = {(g, p): n for g, p, n in found["confusion_matrix"]}
    assert len(counts) == len(found["confusion_matrix"]) and sum(counts.values()) == 300
    for (g, p), n in counts.items():
        assert n == np.sum((references == g) & (guess == p)) > 0
    assert [row["support"] for row in found["classes"]] == np.bincount(references).tolist()
    metrics = compute_metrics(task, task.splits["dev"], logits)
    assert found["calibration"]["error"] == pytest.approx(metrics["calibration_error"], abs=1e-12)
    assert sum(b["count"] for b in found["calibration"]["bins"]) == 300


def test_split_with_one_class_has_the_defined_metrics():
    examples = [TextExample(id=str(i), text="t", label="yes") for i in range(8)]
    task = make_task("classification", examples, ("no", "yes"), ("roc_auc", "matthews", "accuracy"))
    found = analyzed(task, np.tile(np.array([0, 1], np.float32), (8, 1)))
    assert [row["metric"] for row in found["metrics_with_intervals"]] == ["matthews", "accuracy"]
    assert found["top_errors"] == []


def test_errors_are_sorted_by_loss():
    task, logits = texts(400)
    found, examples = analyzed(task, logits), task.splits["dev"]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    references = kind_of(task).get_references(examples, task.labels)
    losses = -np.log(shares[np.arange(400), references])
    wrong = np.flatnonzero(logits.argmax(axis=1) != references)
    expected = wrong[np.argsort(-losses[wrong])][:MAX_ERRORS]
    assert [row["id"] for row in found["top_errors"]] == [f"n{place}" for place in expected]
    for row, place in zip(found["top_errors"], expected, strict=True):
        assert row["loss"] == pytest.approx(losses[place], rel=1e-5)
        assert row["probability"] == pytest.approx(shares[place].max(), rel=1e-5)
        assert row["reference"] == examples[place].label != row["predicted"]


def test_useless_predictions_are_reported():
    labels, values = ("no", "yes"), ["no"] * 3 + ["yes"]
    examples = [TextExample(id=str(n), text=f"t{n}", label=each) for n, each in enumerate(values)]
    task = make_task("classification", examples, labels)
    task.splits["train"] = (TextExample(id="0", text="T2 ", label="no"),)
    always_no = np.array([[1.0, 0.0]] * 4)
    assert evaluation_warnings(task, "dev", always_no) == [
        "1 of 4 examples have a text that is also in train",
        "never predicted, although it occurs: yes",
        "accuracy 0.7500 is no better than always predicting 'no', 0.7500",
    ]
    del task.splits["train"]
    assert evaluation_warnings(task, "dev", np.eye(2)[[0, 0, 0, 1]]) == []
    note = kind_of(task).metrics_note(labels)
    assert note == "f1 is the F1 of the class 'yes'"


def test_regression_lists_value_pairs_and_distances():
    references = np.linspace(0, 5, 1201)
    values = (references + np.sin(40 * references)).astype(np.float32)
    examples = [TextExample(id=str(i), text="t", label=float(g)) for i, g in enumerate(references)]
    found = analyzed(make_task("regression", examples, metrics=("pearson", "spearman")), values)
    assert 0.8 * MAX_SCATTER_POINTS < len(found["reference_vs_predicted"]) <= MAX_SCATTER_POINTS
    assert found["reference_vs_predicted"][0] == [0.0, 0.0]
    distances = [row["loss"] for row in found["top_errors"]]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] == pytest.approx(np.abs(values - references).max())


def test_token_classification_counts_entity_errors():
    words = ("Ann", "Lee", "left", "Rome")
    tags = ("B-PER", "I-PER", "O", "B-LOC")
    examples = [TaggedExample(id=f"s{i}", words=words, tags=tags) for i in range(3)]
    task = make_task(
        "token_classification", examples, ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), ("f1",)
    )
    predictions = [list(tags), ["B-PER", "O", "O", "O"], ["B-PER", "I-PER", "B-LOC", "B-LOC"]]
    found = analyzed(task, predictions)
    errors = {row.pop("type"): row for row in found["entity_errors"]}
    assert errors["PER"]["wrong_boundary"] == 1 and errors["PER"]["correct"] == 2
    assert errors["LOC"]["missed"] == 1 and errors["LOC"]["spurious"] == 1
    assert [row["id"] for row in found["top_errors"]] == ["s1", "s2"]
    assert found["top_errors"][0]["loss"] == 3  # two different persons, and a location
    assert found["top_errors"][0]["reference"] == "PER Ann Lee; LOC Rome"
    assert found["top_errors"][0]["predicted"] == "PER Ann"


def answer(text: str, start: int, probability: float, declined: float = 0.0) -> PredictedAnswer:
    """Returns a prediction with an answer, and "no answer" with probability `declined`."""
    best = Candidate(
        text=text, start=start, end=start + len(text), score=0.0, probability=probability
    )
    none = Candidate(text="", start=-1, end=-1, score=0.0, probability=declined)
    ordered = (none, best) if declined > probability else (best, none)
    return PredictedAnswer(best=best, no_answer_score=declined - probability, n_best=ordered)


def test_questions_list_question_words_and_confident_errors():
    context = "x" * 900 + " Ann Lee left Rome " + "y" * 900
    place = context.index("Rome")
    references = (Answer(text="Rome", start=place), Answer(text="Rome", start=place))
    asked = [
        QuestionExample(id="right", question="Where?", context=context, answers=references),
        QuestionExample(id="half", question="Where to?", context=context, answers=references),
        QuestionExample(id="sure", question="Who?", context=context, is_impossible=True),
        QuestionExample(id="shy", question="Which town?", context=context, answers=references),
    ]
    task = make_task("question_answering", asked, metrics=("f1", "exact_match"))
    predictions = [
        answer("Rome", place, 0.9),
        answer("left Rome", place - 5, 0.6),
        answer("Ann Lee", 901, 0.8),
        answer("Rome", place, 0.3, declined=0.5),
    ]
    found = analyzed(task, predictions)
    assert {row["word"]: row["count"] for row in found["by_question_word"]} == {
        "where": 2,
        "who": 1,
        "which": 1,
    }
    assert [row["id"] for row in found["top_errors"]] == ["sure", "shy", "half"]
    assert [row["loss"] for row in found["top_errors"]] == pytest.approx([0.8, 0.5, 0.6 / 3])
    sure, shy, half = found["top_errors"]
    assert (sure["reference"], sure["predicted"]) == ("no answer", "Ann Lee")
    assert (shy["reference"], shy["predicted"]) == ("Rome", "no answer")
    for row in (sure, shy, half):
        assert "Ann Lee left Rome" in row["texts"]["context"]
        assert len(row["texts"]["context"]) <= MAX_SHOWN_CHARACTERS + 2


def test_choices_are_listed_as_texts():
    examples = [
        ChoiceExample(id=str(i), context="It rains.", prompt="She", choices=("a", "b"), label=0)
        for i in range(2)
    ]
    found = analyzed(make_task("multiple_choice", examples), np.array([[1, 0], [0, 2]], np.float32))
    (row,) = found["top_errors"]
    assert (row["id"], row["reference"], row["predicted"]) == ("1", "a", "b")
    assert row["texts"] == {"context": "It rains. She"}
    assert found["calibration"]["error"] > 0


@pytest.mark.parametrize("around", [0, 3, 500, 998, 999])
def test_excerpt_contains_its_position_and_has_its_length(around):
    text = "".join(chr(0x4E00 + n) for n in range(1000))
    shown = excerpt(text, around, 100)
    assert text[around] in shown and shown.strip("…") in text
    assert len(shown.strip("…")) == 100
    assert shown.startswith("…") == (text[0] not in shown)
    assert shown.endswith("…") == (text[-1] not in shown)
    assert excerpt("short", 3, 100) == "short"


def test_task_description_has_counts():
    task, _ = texts(5)
    about = describe_task(task)
    assert about["examples"] == {"dev": 5} and about["labels"] == ["no", "yes"]


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
