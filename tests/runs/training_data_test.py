"""Covers bert_jax/runs/training_data.py and the fingerprints of training data."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.sentence_embeddings.text_groups import TextGroups
from bert_jax.errors import UserError
from bert_jax.runs.training_data import (
    check_fingerprint,
    examples_fingerprint,
    write_fingerprint,
)


def test_other_data_are_refused_and_the_file_stays(tmp_path: Path):
    check_fingerprint(tmp_path, "before config.json exists")
    (tmp_path / "config.json").write_text('{"config": {}}')
    check_fingerprint(tmp_path, "a run of an earlier version")
    for fingerprint in ("first", "second"):
        write_fingerprint(tmp_path, fingerprint)
    check_fingerprint(tmp_path, "second")
    check_fingerprint(tmp_path, None)
    message = r"fingerprint third, expected second \(data_fingerprint in config.json\); restore"
    with pytest.raises(UserError, match=message):
        check_fingerprint(tmp_path, "third")
    write_fingerprint(tmp_path, None)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved == {"config": {}, "data_fingerprint": "second"}


def test_fingerprint_depends_on_every_field_and_on_the_order():
    first = TextExample(id="0", text="a", label="yes")
    second = TextExample(id="1", text="b", text_pair="c", label="no", label_logits=(0.5, 1.0))
    variants = [
        [first, second],
        [second, first],
        [first],
        [dataclasses.replace(first, id="2"), second],
        [dataclasses.replace(first, label="no"), second],
        [dataclasses.replace(first, text="A"), second],
        [first, dataclasses.replace(second, text_pair=None)],
        [first, dataclasses.replace(second, label_logits=(0.5, 1.5))],
    ]
    assert len({examples_fingerprint(each) for each in variants}) == len(variants)
    same = [dataclasses.replace(first), dataclasses.replace(second)]
    assert examples_fingerprint(variants[0]) == examples_fingerprint(same)


def test_optional_field_that_is_added_later_keeps_the_fingerprint():
    @dataclass(frozen=True)
    class Earlier:
        text: str

    @dataclass(frozen=True)
    class Later:
        text: str
        language: str | None = None

    assert examples_fingerprint([Earlier("a")]) == examples_fingerprint([Later("a")])
    assert examples_fingerprint([Earlier("a")]) != examples_fingerprint([Later("a", "en")])


def test_fingerprint_of_text_groups_depends_on_texts_scores_and_labels():
    texts = [("a", "b"), ("c", "d")]
    scores = np.array([0.0, 1.0], np.float32)
    variants = [
        TextGroups(name="file", texts=texts),
        TextGroups(name="file", texts=[("a", "b"), ("c", "e")]),
        TextGroups(name="file", texts=texts, scores=scores),
        TextGroups(name="file", texts=texts, scores=scores[::-1].copy()),
        TextGroups(name="file", texts=texts, labels=["x", "y"]),
        TextGroups(name="file", texts=texts, labels=["y", "x"]),
    ]
    assert len({each.fingerprint() for each in variants}) == len(variants)
    moved = dataclasses.replace(variants[0], name="the same texts in another file")
    assert moved.fingerprint() == variants[0].fingerprint()
