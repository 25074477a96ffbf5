"""Covers bert_jax/data/finetuning/readers/load_task.py."""

import json

import pytest

from bert_jax.config.labeled_data import Columns, TrainingFile
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.readers.load_task import has_soft_labels, load_task
from bert_jax.errors import ConfigError, UserError


@pytest.fixture
def columns(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,no\nb,yes\n")
    (tmp_path / "dev.csv").write_text("text,label\nc,no\n")
    train, dev = (str(tmp_path / f"{split}.csv") for split in ("train", "dev"))
    return Columns(train=train, dev=dev, text="text", label="label")


def test_files_replace_the_training_examples_of_a_task(columns, tmp_path):
    file = tmp_path / "train.jsonl"
    examples = [
        TextExample(id="7", text="a\u2028b\x85c", label="no"),  # no ends of lines
        TextExample(id="8", text="e", label="yes"),
    ]
    file.write_text(
        '{"id": "7", "text": "a\u2028b\x85c", "label": "no"}\n'
        '{"id": "8", "text": "e", "label": "yes"}\n',
        encoding="utf-8",
    )
    task = load_task(TrainingFile(task=columns, file=str(file)))
    assert list(task.splits["train"]) == examples
    assert [example.id for example in task.splits["dev"]] == ["0"]
    assert not has_soft_labels(task)


def test_soft_labels_may_all_favor_one_class(columns, tmp_path):
    file = tmp_path / "train.jsonl"
    examples = [
        TextExample(id="7", text="d", label="yes", label_logits=(-0.5, 1.5)),
        TextExample(id="8", text="e", label="yes", label_logits=(0.0, 0.25)),
    ]
    file.write_text(
        '{"id": "7", "text": "d", "logits": [-0.5, 1.5]}\n'
        '{"id": "8", "text": "e", "logits": [0.0, 0.25]}\n'
    )
    task = load_task(TrainingFile(task=columns, file=str(file)))
    assert list(task.splits["train"]) == examples
    assert has_soft_labels(task)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "1", "text": "a"}'], 'line 1: expected a JSON object with "id"'),
        (["no JSON"], "line 1: not valid JSON"),
        (['{"id": "1", "text": "a", "logits": [1]}'], "expected 2 finite numbers"),
        (['{"id": "1", "text": "a", "logits": [1, NaN]}'], "expected 2 finite numbers"),
        (['{"id": "1", "text": "a", "text_pair": 3, "label": "no"}'], '"text_pair" is 3'),
        (
            [
                '{"id": "1", "text": "a", "label": "no"}',
                '{"id": "2", "text": "a", "logits": [1, 2]}',
            ],
            "some lines have a label and others logits",
        ),
    ],
)
def test_invalid_lines_are_refused(columns, tmp_path, lines, message):
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=message):
        load_task(TrainingFile(task=columns, file=str(tmp_path / "train.jsonl")))


def test_other_kinds_of_tasks_are_refused(columns, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,1.5\nb,2\n")
    (tmp_path / "dev.csv").write_text("text,label\nc,0.5\n")
    (tmp_path / "train.jsonl").write_text(json.dumps({"id": "1", "text": "a", "label": "1"}))
    with pytest.raises(ConfigError, match=r"kind of task of .* is regression"):
        load_task(TrainingFile(task=columns, file=str(tmp_path / "train.jsonl")))
