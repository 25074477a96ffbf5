"""Covers bert_jax/cli/predict.py for task heads: input, output and rejected input."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.models.heads.config import (
    MultipleChoiceHead,
    QuestionAnsweringHead,
    SequenceClassificationHead,
    TokenClassificationHead,
)

HEADS = {
    "texts": SequenceClassificationHead(labels=("no", "yes")),
    "words": TokenClassificationHead(labels=("O", "B-X", "I-X")),
    "questions": QuestionAnsweringHead(),
    "choices": MultipleChoiceHead(),
    "headless": None,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, head in HEADS.items():
        model = small_model(folder / f"{name}-vocabulary", head=head, initializer_range=0.3)
        export(model, folder / name)
    return folder


@pytest.fixture
def predict(exported, capsys):
    """Returns a function that runs the verb with a model and returns its JSON lines."""

    def run(model: str, *arguments: str) -> list[dict]:
        assert main(["predict", str(exported / model), *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def error_of(exported, capsys):
    """Returns a function that runs the verb with a model and returns its one-line error."""

    def run(model: str, *arguments: str, code: int = 1) -> str:
        assert main(["predict", str(exported / model), *arguments]) == code
        error = capsys.readouterr().err.strip()
        assert error.startswith("error: ") and "Traceback" not in error
        return error

    return run


def typed(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_texts_come_from_arguments_lines_and_standard_input(predict, tmp_path, monkeypatch):
    expected = predict("texts", "a net", "the sea")
    assert [row["text"] for row in expected] == ["a net", "the sea"]
    assert all(set(row) == {"text", "label", "probabilities"} for row in expected)
    with_empty_line = [expected[0], {"text": "", "label": None, "probabilities": None}, expected[1]]
    (tmp_path / "texts.txt").write_text("a net\n\nthe sea\n")
    assert predict("texts", "--file", str(tmp_path / "texts.txt")) == with_empty_line
    typed(monkeypatch, b"a net\n\nthe sea")
    assert predict("texts") == with_empty_line


def test_pairs_questions_and_choices_are_consecutive_arguments(predict, monkeypatch):
    expected = predict("texts", "--pairs", "a net", "the sea", "old", "man")
    assert [(row["text"], row["text_pair"]) for row in expected] == [
        ("a net", "the sea"),
        ("old", "man"),
    ]
    typed(monkeypatch, b"a net\tthe sea\n\nold\tman\n")
    found = predict("texts", "--pairs")
    assert [found[0], found[2]] == expected and found[1]["label"] is None
    (row,) = predict("questions", "the net", "the old man mends a net")
    assert row["context"][row["start"] : row["end"]] == row["answer"]
    (row,) = predict("choices", "the man", "a net", "the sea", "old")
    assert row["choices"] == ["a net", "the sea", "old"] and len(row["probabilities"]) == 3


def test_tables_are_read_by_column_names(predict, tmp_path):
    rows = [["7", "a net", "the sea", "unheard of"], ["8", 'the "old" man', "a", ""]]
    with (tmp_path / "t.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["number", "one", "two", "label"], *rows])
    (tmp_path / "t.tsv").write_text('number\tone\ttwo\n7\ta net\tthe sea\n8\tthe "old" man\ta\n')
    objects = [{"number": int(n), "one": one, "two": two} for n, one, two, _ in rows]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in objects))
    flags = ["--text", "one", "--text-pair", "two", "--id", "number"]
    expected = predict("texts", "--pairs", "a net", "the sea", 'the "old" man', "a")
    for row in expected:
        del row["text"], row["text_pair"]
    for name, number in (("t.csv", "7"), ("t.tsv", "7"), ("t.jsonl", "7")):
        found = predict("texts", "--file", str(tmp_path / name), *flags)
        assert found[0].pop("id") == number and found[1].pop("id") == "8"
        assert found == expected


def test_parquet(predict, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a net", "the sea"]}), tmp_path / "t.parquet")
    found = predict("texts", "--file", str(tmp_path / "t.parquet"))
    assert [row["id"] for row in found] == ["0", "1"]


def test_questions_are_read_from_tables_and_squad_json(predict, tmp_path):
    context = "the old man mends a net"
    (tmp_path / "q.csv").write_text(f"q,c\nthe net,{context}\n")
    qa = {"id": "0", "question": "the net"}
    content = {"data": [{"title": "x", "paragraphs": [{"context": context, "qas": [qa]}]}]}
    (tmp_path / "q.json").write_text(json.dumps(content))
    flags = ["--question", "q", "--context", "c"]
    expected = predict("questions", "--file", str(tmp_path / "q.csv"), *flags)
    assert expected == predict("questions", "--file", str(tmp_path / "q.json"))
    assert expected[0]["id"] == "0" and expected[0]["answer"] in context


def test_words_and_texts_are_tagged(predict, tmp_path):
    (tmp_path / "w.conll").write_text("the\nold\nman\n\na B-NEVER\n".replace(" B-NEVER", ""))
    rows = predict("words", "--file", str(tmp_path / "w.conll"))
    assert [row["id"] for row in rows] == ["0", "1"] and len(rows[0]["tags"]) == 3
    (tmp_path / "w.txt").write_text("the old man\na\n")
    lines = predict("words", "--file", str(tmp_path / "w.txt"), "--format", "lines")
    assert [row["tags"] for row in lines] == [row["tags"] for row in rows]
    assert lines[0]["words"] == ["the", "old", "man"]
    for row in lines:
        for entity in row["entities"]:
            assert row["text"][entity["start"] : entity["end"]] == entity["text"]


def test_truncated_inputs_are_reported(predict, exported, capsys):
    assert main(["predict", str(exported / "texts"), "the " * 30, "a"]) == 0
    assert "1 of the inputs are longer than 20 tokens" in capsys.readouterr().err
    predict("texts", "the " * 30, "--truncation", "windows", "--window-pooling", "max")
    assert main(["predict", str(exported / "texts"), "the " * 9]) == 0
    assert "were truncated" not in capsys.readouterr().err


def test_empty_standard_input_is_reported(exported, capsys, monkeypatch):
    typed(monkeypatch, b"")
    assert main(["predict", str(exported / "texts")]) == 0
    found = capsys.readouterr()
    assert found.out == "" and "there is no input" in found.err


def test_output_file_is_complete_or_unchanged(predict, error_of, tmp_path):
    output = tmp_path / "predictions.jsonl"
    assert predict("texts", "a net", "--output", str(output)) == []
    before = output.read_text()
    assert json.loads(before)["text"] == "a net"
    (tmp_path / "bad.csv").write_text("text\n a\n  \n")
    error = error_of("texts", "--file", str(tmp_path / "bad.csv"), "--output", str(output))
    assert "bad.csv, line 3: the text in the column 'text' is empty" in error
    assert output.read_text() == before and not list(tmp_path.glob(".*"))
    assert "cannot be written" in error_of("texts", "a", "--output", str(output / "x"))


def test_invalid_input_is_reported(error_of, tmp_path):
    (tmp_path / "t.csv").write_text("review,number\na net,1\n")
    table = str(tmp_path / "t.csv")
    assert "no column 'reviews'; did you mean 'review'?" in error_of(
        "texts", "--file", table, "--text", "reviews"
    )
    assert "no column 'text'; the columns are review, number" in error_of("texts", "--file", table)
    assert "--question cannot be used with a classification model" in error_of(
        "texts", "--file", table, "--question", "review", code=2
    )
    assert "has no head for a task" in error_of("headless", "a net")
    assert "a text is empty" in error_of("texts", "--pairs", "a", " ")
    assert "expected pairs" in error_of("texts", "--pairs", "a", code=2)
    assert "expected pairs" in error_of("questions", "a", code=2)
    assert "TEXT and --file are both given" in error_of("texts", "a", "--file", table, code=2)
    assert "--text needs --file" in error_of("texts", "a", "--text", "review", code=2)
    (tmp_path / "w.txt").write_text("a\n")
    words = str(tmp_path / "w.txt")
    assert "--format lines or --format conll" in error_of("words", "--file", words)
    assert "--text selects a column, but the format is lines, not table" in error_of(
        "texts", "--file", words, "--text", "review", code=2
    )
    assert "no file matches" in error_of("texts", "--file", str(tmp_path / "none.csv"))
    pairs = error_of("words", "--pairs", "a", "b", code=2)
    assert "--pairs is not supported for token_classification models" in pairs
    pairs = error_of("texts", "--file", table, "--pairs", code=2)
    assert "the format is table, not lines; remove --pairs and select" in pairs
