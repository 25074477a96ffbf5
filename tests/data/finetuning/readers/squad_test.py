"""Tests reading SQuAD's JSON: official counts, answers not at their offset, errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config.labeled_data import Squad, TaskConfig
from bert_jax.data.finetuning.example import Answer, QuestionExample
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError

CONTEXT = "The tower is 300 metres tall. It stands in Paris, and Paris is in France."


def read(config: TaskConfig) -> Any:
    """Reads a task; untyped, because its examples have many types."""
    return load_task(config)


def write(folder: Path, name: str, *questions: dict[str, Any]) -> str:
    qas = [{"id": str(n), "question": "Where?", **q} for n, q in enumerate(questions)]
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    (folder / name).write_text(json.dumps(content))
    return str(folder / name)


def answers(*pairs: tuple[str, int]) -> dict[str, Any]:
    return {"answers": [{"text": text, "answer_start": start} for text, start in pairs]}


def only(path: str, **settings) -> QuestionExample:
    (example,) = read(Squad(train=path, **settings)).splits["train"]
    assert isinstance(example, QuestionExample)
    return example


def test_official_counts(shared):
    folder = shared / "squad"
    task = read(
        Squad(
            train=str(folder / "train-v1.1.first12articles.json.gz"),
            dev=str(folder / "dev-v1.1.json.gz"),
            strict=True,
        )
    )
    assert {split: len(found) for split, found in task.splits.items()} == {
        "train": 4370, "dev": 10570
    }  # fmt: skip
    assert len({e.context for e in task.splits["dev"]}) == 2067
    for example in (*task.splits["train"], *task.splits["dev"]):
        assert example.answers and not example.is_impossible
        assert all(example.context[a.start :].startswith(a.text) for a in example.answers)
    assert task.metrics[0] == "f1" and task.notes == ()

    dev = str(folder / "v2.0" / "cs224n-dev-v2.0.json.gz")
    task = read(Squad(dev=dev, version="2.0"))
    found = task.splits["dev"]
    assert len(found) == 6078 and sum(e.is_impossible for e in found) == 3168
    assert all(e.is_impossible != bool(e.answers) for e in found)
    with pytest.raises(UserError, match=r"is marked as impossible.*--squad-version 2\.0"):
        read(Squad(dev=dev))


@pytest.mark.parametrize(("name", "count"), [("xquad.en.json", 1190),
                                             ("tydiqa.goldp.en.train.json.gz", 3696)])  # fmt: skip
def test_other_files_in_the_format(shared, name, count):
    task = read(Squad(train=str(shared / "squad" / name)))
    assert len(task.splits["train"]) == count


def test_answer_near_its_offset_is_found(tmp_path):
    path = write(tmp_path, "train.json", answers(("Paris", 41)))
    assert only(path).answers == (Answer(text="Paris", start=43),)
    later = write(tmp_path, "later.json", answers(("Paris", 52)))
    assert only(later).answers == (Answer(text="Paris", start=54),)
    assert read(Squad(train=path)).notes == (
        f"{path}: 1 answers were not at their offset; the nearest occurrence was used.",
    )
    with pytest.raises(
        UserError, match=r"answer 'Paris' of the question '0' is not at its offset 41"
    ):
        read(Squad(train=path, strict=True))


def test_answer_that_is_not_in_the_context(tmp_path):
    """Tests that train skips the question, and that other splits keep it for scores."""
    questions = [answers(("Rome", 3)), answers(("Rome", 3), ("Paris", 43))]
    path = write(tmp_path, "a.json", *questions)
    task = read(Squad(train=path, dev=path))
    (remaining,) = task.splits["train"]
    assert (remaining.id, remaining.answers) == ("1", (Answer(text="Paris", start=43),))
    assert [e.answers[0] for e in task.splits["dev"]] == [Answer(text="Rome", start=-1)] * 2
    assert task.notes == (
        f"{path}: 2 answers are not in their context.",
        f"{path}: 1 questions without a remaining answer were left out.",
        f"{path}: 2 answers are not in their context; predictions are still scored against them.",
    )


def test_questions_without_answers(tmp_path):
    path = write(
        tmp_path, "a.json", {"answers": []}, answers(("Paris", 43)), {"is_impossible": True}
    )
    found = read(Squad(dev=path, version="2.0")).splits["dev"]
    assert [(e.is_impossible, len(e.answers)) for e in found] == [(True, 0), (False, 1), (True, 0)]
    bare = write(tmp_path, "b.json", {}, {"answers": []})
    found = read(Squad(test=bare)).splits["test"]
    assert [(e.is_impossible, e.answers) for e in found] == [(False, ())] * 2
    with pytest.raises(UserError, match=r"b\.json: the question '0' has no answers"):
        read(Squad(dev=bare))


def test_invalid_files_are_reported(tmp_path):
    path = write(tmp_path, "a.json", {"id": "x", **answers(("Paris", 43))},
                 {"id": "x", **answers(("Paris", 43))})  # fmt: skip
    with pytest.raises(UserError, match=r"2 questions have the id 'x'"):
        read(Squad(dev=path))
    task = read(Squad(train=path))
    assert [e.id for e in task.splits["train"]] == ["0:x", "1:x"] and len(task.notes) == 1
    path = write(tmp_path, "a.json", {"answers": [{"text": "Paris"}]})
    with pytest.raises(UserError, match=r"qas\[0\]\.answers has no number 'answer_start'"):
        read(Squad(train=path))
    path = write(tmp_path, "a.json", {"question": None})
    with pytest.raises(
        UserError, match=r"data\[0\]\.paragraphs\[0\]\.qas\[0\] has no text 'question'"
    ):
        read(Squad(train=path))
    with pytest.raises(UserError, match=r"a\.json has no questions"):
        read(Squad(train=write(tmp_path, "a.json")))
    (tmp_path / "a.json").write_text('{"data": [')
    with pytest.raises(UserError, match=r"a\.json: not valid JSON at line 1"):
        read(Squad(train=str(tmp_path / "a.json")))
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(UserError, match=r"has no list 'data'"):
        read(Squad(train=str(tmp_path / "a.json")))
    with pytest.raises(ConfigError, match=r"Squad\.version is '3', expected '1\.1' or '2\.0'"):
        Squad(train="a.json", version="3")  # type: ignore[arg-type]
