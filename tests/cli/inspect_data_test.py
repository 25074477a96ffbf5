"""Tests `bert-jax data inspect`, and the flags that describe a task."""

import argparse
import json
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.text_corpus import topic_words, write_vocabulary
from bert_jax.cli.arguments import TaskArguments
from bert_jax.config.flags import add_flags, from_namespace
from bert_jax.config.labeled_data import Columns, Conll, Glue, Snli, Squad, Swag
from bert_jax.errors import ConfigError

A, B = topic_words(0)[:2]


@pytest.fixture
def vocabulary(tmp_path: Path) -> str:
    return str(write_vocabulary(tmp_path / "vocabulary"))


def parse(*arguments: str):
    parser = argparse.ArgumentParser()
    add_flags(parser, TaskArguments)
    return from_namespace(TaskArguments, parser.parse_args(arguments)).task_config()


def test_inspect_texts(tmp_path, vocabulary, capsys):
    train = tmp_path / "train.csv"
    train.write_text(f"text,pair,label\n{A},{B},yes\n{B} {A} {A} {A} {A} {A},{B},no\n{B},{A},no\n")
    (tmp_path / "dev.csv").write_text(f"text,pair,label\n{A.upper()},{B},no\n{A},{A},\n")
    flags = ["--train", str(train), "--dev", str(tmp_path / "dev.csv"), "--text", "text"]
    flags += ["--text-pair", "pair", "--label", "label", "--tokenizer", vocabulary]
    assert main(["data", "inspect", "columns", *flags, "--max-length=8", "--num-examples=1"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == (
        "columns: classification, labels no, yes; measured by accuracy, f1_macro"
    )
    assert "dev.csv: 1 rows without a label were left out." in out
    assert "train: 3 examples\n  labels: no 2 (66.7%), yes 1 (33.3%)\n" in out
    assert "  tokens: median 5, 95 % within 10, longest 10\n" in out
    assert "  longer than 8, truncated: 1 (33.3%)\n" in out
    assert f"  tokens:         [CLS] {A} [SEP] {B} [SEP]\n  token_type_ids: 0 0 0 1 1\n" in out
    assert "train, example 0: yes" in out and "  labels: 1\n" in out and "example 1" not in out
    assert err == "warning: 1 of 1 examples of dev have a text that also occurs in train\n"


def test_inspect_tags_and_questions(tmp_path, vocabulary, capsys):
    (tmp_path / "a.txt").write_text(f"{A} B-X\n{B} O\n")
    flags = ["--tokenizer", vocabulary, "--max-length", "12"]
    assert main(["data", "inspect", "conll", "--train", str(tmp_path / "a.txt"), *flags]) == 0
    out = capsys.readouterr().out
    assert "conll: token_classification, labels O, B-X, I-X; measured by f1, token_accuracy" in out
    assert "  token_labels: 0 1 0 0\n  token_label_weights: 0.0 1.0 1.0 0.0\n" in out
    question = {"id": "q", "question": A, "answers": [{"text": A, "answer_start": 5}]}
    content = {"data": [{"paragraphs": [{"context": f"{B} {A}", "qas": [question]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert main(["data", "inspect", "squad", "--dev", str(tmp_path / "a.json"), *flags]) == 0
    out = capsys.readouterr().out
    assert f"dev, example q: {A!r}" in out and "start_positions: 4" in out
    assert "longer than 12, cut into windows: 0 (0.0%)" in out


def test_inspect_official_glue_files(shared, capsys):
    vocab = str(shared / "vocab" / "bert-base-uncased" / "vocab.txt")
    flags = ["--glue-dir", str(shared / "glue"), "--tokenizer", vocab, "--max-length", "64"]
    assert main(["data", "inspect", "glue/stsb", *flags]) == 0
    out = capsys.readouterr().out
    assert "dev: 1,500 examples" in out and "(score) 1,500 (100.0%), from 0 to 5, mean" in out


def test_flags_become_task_configs():
    assert parse("glue/rte", "--glue-dir", "g") == Glue(task="rte", folder="g")
    assert parse("glue/rte") == Glue(task="rte")
    assert parse("snli", "--snli-dir", "s") == Snli(folder="s")
    assert parse("squad", "--dev", "d", "--squad-version", "2.0", "--strict") == Squad(
        dev="d", version="2.0", strict=True
    )
    assert parse("conll", "--train", "t", "--tag-column", "1") == Conll(train="t", tag_column=1)
    assert parse("swag", "--test", "t") == Swag(test="t")
    assert parse("swag", "--test", "t", "--encoding", "cp1252") == Swag(test="t", encoding="cp1252")
    assert parse("columns", "--test", "t", "--text", "a", "--kind", "regression") == Columns(
        test="t", text="a", kind="regression"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rte"], r"no task 'rte'; TASK is one of"),
        (["squad/1.1"], r"no task 'squad/1\.1'"),
        (["glue"], r"no task 'glue'"),
        (["glue/rt"], r"GLUE has no task 'rt'; expected one of cola"),
        (
            ["glue/rte", "--train", "t"],
            r"--train is not an option of the task glue/rte; its options are --glue-dir",
        ),
        (["snli"], r"snli needs --snli-dir"),
        (["columns", "--test", "t"], r"columns needs --text"),
        (["conll"], r"Conll has no files; expected a file for train, dev or test"),
    ],
)
def test_invalid_flags_are_reported(arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        parse(*arguments)
