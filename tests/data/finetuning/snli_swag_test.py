"""Tests reading SNLI in its two formats, and SWAG.

Sources: bert_jax/data/finetuning/readers/glue.py, bert_jax/data/finetuning/readers/columns.py.
"""

import json
from collections import Counter
from typing import Any

import pytest

from bert_jax.config.labeled_data import Snli, Swag, TaskConfig
from bert_jax.data.finetuning.example import ChoiceExample
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import UserError

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
ROW = '0,v1,3,"A man sits. He","A man sits, tired.",He,gold,"sleeps, long.",flies.,melts.,is blue.'


def read(config: TaskConfig) -> Any:
    """Reads a task; untyped, because its examples have many types."""
    return load_task(config)


def test_shared_snli_has_its_official_counts(shared):
    task = read(Snli(folder=str(shared / "nli")))
    assert {split: len(found) for split, found in task.splits.items()} == {
        "dev": 9842, "test": 9824
    }  # fmt: skip
    dev = Counter(e.label for e in task.splits["dev"])
    assert dev == {"entailment": 3329, "neutral": 3235, "contradiction": 3278}
    assert task.labels == ("entailment", "neutral", "contradiction")
    first = task.splits["dev"][0]
    assert first.label == "neutral" and first.text.startswith("Two women are embracing")
    assert first.text_pair is not None and first.text_pair.startswith("The sisters are hugging")


def test_snli_of_the_authors(tmp_path):
    rows = [("entailment", "a", "b"), ("-", "c", "d"), ("contradiction", "e", "f")]
    lines = [json.dumps({"gold_label": g, "sentence1": a, "sentence2": b}) for g, a, b in rows]
    path = tmp_path / "snli_1.0_train.jsonl"
    path.write_text("\n".join(lines))
    task = read(Snli(folder=str(tmp_path)))
    assert [(e.text, e.text_pair, e.label) for e in task.splits["train"]] == [
        ("a", "b", "entailment"), ("e", "f", "contradiction")
    ]  # fmt: skip
    assert task.notes == (f"{path}: 1 rows without an agreed label were left out.",)
    path.write_text(lines[0].replace("entailment", "entails"))
    with pytest.raises(
        UserError, match=r"line 1: the label is 'entails'; expected one of entailment"
    ):
        read(Snli(folder=str(tmp_path)))
    path.write_text('{"premise": "a"}')
    with pytest.raises(UserError, match=r"no column 'sentence1'"):
        read(Snli(folder=str(tmp_path)))
    path.unlink()
    with pytest.raises(UserError, match=r"has no file of SNLI; expected snli_1\.0_train\.jsonl"):
        read(Snli(folder=str(tmp_path)))


def test_swag(tmp_path):
    (tmp_path / "train.csv").write_text(f"{HEADER},label\n{ROW},0\n{ROW},3\n")
    (tmp_path / "test.csv").write_text(f"{HEADER}\n{ROW}\n")
    task = read(Swag(train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv")))
    endings = ("sleeps, long.", "flies.", "melts.", "is blue.")
    expected = {"context": "A man sits, tired.", "prompt": "He", "choices": endings}
    assert task.splits == {
        "train": (
            ChoiceExample(id="0", label=0, **expected),
            ChoiceExample(id="1", label=3, **expected),
        ),
        "test": (ChoiceExample(id="0", **expected),),
    }
    assert task.kind == "multiple_choice" and task.labels == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER},label\n{ROW},4\n", r"line 2: the label is '4'; expected a number from 0 to 3"),
        (f"{HEADER},label\n{ROW}\n", r"line 2: 11 columns; expected 12"),
        (f"{HEADER},label\n{ROW.replace('melts.', '')},1\n", r"the column 'ending2' is empty"),
        (f"{HEADER}\n{ROW}\n", r"no column 'label'"),
        ("sent1,sent2,ending1,label\na,b,c,0\n", r"expected columns ending0, ending1"),
    ],
)
def test_invalid_swag_files_are_reported(tmp_path, text: str, message: str):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read(Swag(train=str(tmp_path / "a.csv")))


def test_swag_with_other_numbers_of_endings(tmp_path):
    (tmp_path / "a.csv").write_text("sent1,sent2,ending0,ending1,label\na,b,c,d,0\n")
    (tmp_path / "b.csv").write_text("sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,0\n")
    with pytest.raises(UserError, match=r"files have different numbers of endings: 2 in .* 3 in"):
        read(Swag(train=str(tmp_path / "a.csv"), dev=str(tmp_path / "b.csv")))
