"""Tests labeled tasks in seqio: features, mixing rates, TFDS as a source."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from bert_jax.apps.testing.text_corpus import topic_words, write_vocabulary
from bert_jax.batch import FIELDS
from bert_jax.config.labeled_data import (
    GLUE_NAMES,
    CappedMixing,
    Columns,
    Conll,
    EqualMixing,
    Glue,
    GlueName,
    Squad,
    Swag,
    TaskConfig,
    TemperatureMixing,
)
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import UserError
from bert_jax.tasks.features import make_features
from bert_jax.tasks.seqio_tasks import register_labeled_task, register_mixture
from bert_jax.text.load_tokenizer import load_tokenizer

LENGTH = 20
A, B, C = topic_words(0)[:3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a vocabulary, and a file of each kind of task with texts longer than LENGTH."""
    folder = tmp_path_factory.mktemp("labeled")
    write_vocabulary(folder / "vocabulary")
    rows = [f"{A} {B},{C},{'xy'[n % 2]},{n / 2 + 0.25}" for n in range(6)]
    rows += [f"{' '.join([A] * 30)},{' '.join([B] * 3)},x,1"]
    (folder / "texts.csv").write_text("\n".join(["a,b,label,score", *rows]))
    (folder / "test.csv").write_text(f"a,b\n{A},{B}\n")
    (folder / "tags.txt").write_text(f"{A} O\n{B} B-X\n{C} I-X\n\n" + f"{A} B-Y\n" * 50)
    qas = [{"id": "0", "question": f"{A}?", "answers": [{"text": B, "answer_start": 0}]}]
    context = f"{B} " + f"{C} " * 40
    content = {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
    (folder / "questions.json").write_text(str(content).replace("'", '"'))
    header = "sent1,sent2,ending0,ending1,ending2,label\n"
    (folder / "swag.csv").write_text(f"{header}{A},{B},{C},{C} {C},{A},1\n{A},{A},{C},{B},{B},2\n")
    return folder


@pytest.fixture(autouse=True)
def forget_tasks():
    yield
    seqio.TaskRegistry.reset()
    seqio.MixtureRegistry.reset()


def config_of(folder: Path, kind: str) -> TaskConfig:
    texts = str(folder / "texts.csv")
    return {
        "classification": Columns(
            train=texts, test=str(folder / "test.csv"), text="a", text_pair="b", label="label"
        ),
        "multi-label": Columns(
            train=texts,
            test=str(folder / "test.csv"),
            text="a",
            text_pair="b",
            label="label",
            kind="multi-label",
        ),
        "regression": Columns(train=texts, text="a", text_pair="b", label="score"),
        "token_classification": Conll(train=str(folder / "tags.txt")),
        "question_answering": Squad(train=str(folder / "questions.json")),
        "multiple_choice": Swag(train=str(folder / "swag.csv")),
    }[kind]


def rows_of(name: str, split: str = "train", **settings) -> list[dict[str, Any]]:
    task = seqio.get_mixture_or_task(name)
    settings = {"shuffle": False, **settings}
    dataset = task.get_dataset(sequence_length={"input_ids": LENGTH}, split=split, **settings)
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        "multi-label",
        "regression",
        "token_classification",
        "question_answering",
        "multiple_choice",
    ],
)
def test_seqio_features_equal_the_loader(folder, kind):
    config, vocabulary = config_of(folder, kind), str(folder / "vocabulary" / "vocab.txt")
    register_labeled_task("mine", config, tokenizer=vocabulary, task_id=7, window_overlap=4)
    rows = rows_of("mine")
    task = load_task(config)
    features = make_features(task, "train", load_tokenizer(vocabulary), LENGTH, 4)
    assert task.kind == kind and len(rows) == len(features) and len(rows) > 1
    choices = features.num_choices
    for number, row in enumerate(rows):
        assert row.pop("task_id") == 7
        for name, value in row.items():
            assert value.dtype == FIELDS[name].dtype
            if name.endswith(("input_ids", "token_type_ids")):
                every = getattr(features, name.removeprefix("choice_"))
                texts = every[number * choices : (number + 1) * choices]
                got = value if choices > 1 else value[None]
                assert got.shape == (choices, max(map(len, texts)))
                for padded, text in zip(got, texts, strict=True):
                    assert padded[: len(text)].tolist() == text.tolist()
                    assert not padded[len(text) :].any()
            elif name in features.targets:
                np.testing.assert_array_equal(value, features.targets[name][number])
            else:
                assert value == -1 and kind in ("classification", "regression")
        assert set(features.targets) <= set(row)


def test_unlabeled_examples(folder):
    vocabulary = str(folder / "vocabulary" / "vocab.txt")
    config = config_of(folder, "classification")
    register_labeled_task("mine", config, tokenizer=vocabulary)
    (row,) = rows_of("mine", split="test")
    assert row["labels"] == -1 and row["token_type_ids"].tolist() == [0, 0, 0, 1, 1]
    register_labeled_task("several", config_of(folder, "multi-label"), tokenizer=vocabulary)
    (row,) = rows_of("several", split="test")
    assert row["label_indicators"].tolist() == [-1, -1]


@pytest.mark.parametrize(
    "mixing",
    [
        TemperatureMixing(temperature=2.0),
        # tests/data/finetuning/mixture_test.py computes the rates of all.
        pytest.param(EqualMixing(), marks=pytest.mark.slow),
        pytest.param(CappedMixing(max_examples=100), marks=pytest.mark.slow),
    ],
)
def test_mixtures_sample_at_their_rates(folder, tmp_path, mixing):
    sizes = {"small": 36, "large": 900}
    vocabulary = str(folder / "vocabulary" / "vocab.txt")
    for number, (name, size) in enumerate(sizes.items()):
        rows = [f"{A},{'xy'[n % 2]}" for n in range(size)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]))
        config = Columns(train=str(tmp_path / f"{name}.csv"), text="text", label="label")
        register_labeled_task(name, config, tokenizer=vocabulary, task_id=number)
    mixture = register_mixture("both", list(sizes), mixing)
    expected = {EqualMixing: 1 / 2, TemperatureMixing: 6 / (6 + 30), CappedMixing: 36 / 136}[
        type(mixing)
    ]
    rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
    assert rates == pytest.approx({"small": expected, "large": 1 - expected})
    dataset = mixture.get_dataset({"input_ids": LENGTH}, "train", seed=0, num_epochs=None)
    counts = Counter(
        int(row["task_id"]) for row in itertools.islice(dataset.as_numpy_iterator(), 800)
    )
    deviation = np.sqrt(800 * expected * (1 - expected))
    assert abs(counts[0] - 800 * expected) < 5 * deviation


def test_only_tasks_with_scalar_labels_can_be_mixed(folder):
    vocabulary = str(folder / "vocabulary" / "vocab.txt")
    for kind in ("classification", "regression", "token_classification"):
        register_labeled_task(kind, config_of(folder, kind), tokenizer=vocabulary)
    register_mixture("texts", ["classification", "regression"], EqualMixing())
    rows = rows_of("texts", num_epochs=1)
    assert {row["labels"] == -1 for row in rows} == {True, False}
    with pytest.raises(UserError, match="have sequences with different fields"):
        register_mixture("all", ["classification", "token_classification"], EqualMixing())
    with pytest.raises(UserError, match="'none' is not registered; registered tasks: classific"):
        register_mixture("all", ["none"], EqualMixing())


def write_glue(folder: Path, task: GlueName) -> None:
    """Writes small official files of one task: 7 train examples, 2 in each other split."""
    spec = GLUE_TASKS[task]
    header = spec.header or tuple(c for c in ("index", spec.text, spec.text_pair, spec.label) if c)
    labels = spec.label_aliases or spec.labels or ("1.500", "4.25")
    mark = "\ufeff" if task == "mrpc" else ""
    for split, name in spec.files.items():
        unlabeled = split.startswith("test")
        columns = [c for c in header if not (unlabeled and c == spec.label)]
        lines = [] if spec.header and not unlabeled else ["\t".join(columns)]
        for row in range(7 if split == "train" else 2):
            cells = {c: f'{split} "{c} {row}' for c in columns} | {"index": str(row)}
            cells |= {} if unlabeled else {spec.label: labels[row % len(labels)]}
            lines.append("\t".join(cells[c] for c in columns))
        file = folder / spec.folder_names[0] / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a task's files, and runs TFDS's builder on them as if they were downloaded."""

    def fetch(_: Any, url: Any) -> Any:
        if isinstance(url, str):
            return str(tmp_path / "AX" / "diagnostic.tsv" if "bit.ly" in url else tmp_path)
        # MRPC: TFDS splits one file by a list of the pairs in dev; here dev is a part of train.
        (tmp_path / "ids").write_text("d0\td0\nd1\td1\n")
        train = (tmp_path / "MRPC" / "train.tsv").read_text(encoding="utf-8").splitlines()
        dev = (tmp_path / "MRPC" / "dev.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in train + dev[1:]]
        numbered = [["#1 ID", "#2 ID"], *([f"t{n}"] * 2 for n in range(7)), ["d0"] * 2, ["d1"] * 2]
        lines = ["\t".join(r + n) for r, n in zip(rows, numbered, strict=True)]
        (tmp_path / "msr").write_text("\n".join(lines) + "\n", encoding="utf-8")
        test = str(tmp_path / "MRPC" / "test.tsv")
        return {"dev_ids": str(tmp_path / "ids"), "train": str(tmp_path / "msr"), "test": test}

    def prepare(*tasks: GlueName) -> str:
        for task in tasks:
            write_glue(tmp_path, task)
        for task in tasks:
            name = f"glue/{task}:2.0.0"
            tfds.builder(name, data_dir=tmp_path / "tfds").download_and_prepare()
        return str(tmp_path)

    for method in ("download", "download_and_extract"):
        monkeypatch.setattr(tfds.download.DownloadManager, method, fetch)
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path / "tfds"))
    return prepare


def without_ids(task: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {s: [(e.text, e.text_pair, e.label) for e in rows] for s, rows in task.splits.items()}


# One task of each form of files and labels.
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("cola", "stsb", "mnli", "ax", "wnli")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in GLUE_NAMES
    ],
)
def test_tfds_and_official_files_give_the_same_examples(official, name):
    folder = official(name, "ax") if name == "mnli" else official(name)
    from_files = load_task(Glue(task=name, folder=folder))
    from_tfds = load_task(Glue(task=name))
    assert without_ids(from_tfds) == without_ids(from_files)
    assert (from_tfds.labels, from_tfds.metrics) == (from_files.labels, from_files.metrics)


def test_seqio_reads_tfds_tasks(folder, official):
    files = official("rte")
    vocabulary = str(folder / "vocabulary" / "vocab.txt")
    register_labeled_task("files", Glue(task="rte", folder=files), tokenizer=vocabulary)
    register_labeled_task("tfds", Glue(task="rte"), tokenizer=vocabulary)
    for split in ("train", "dev", "test"):
        rows = [
            sorted((r["input_ids"].tolist(), int(r["labels"])) for r in rows_of(name, split))
            for name in ("files", "tfds")
        ]
        assert rows[0] == rows[1]
    assert (
        register_mixture(
            "both", ["files", "tfds"], CappedMixing(max_examples=5)
        ).num_input_examples("train")
        == 14
    )
