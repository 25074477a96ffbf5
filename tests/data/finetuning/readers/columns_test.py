"""Tests tables of a user: four formats, discovered labels, and errors with their location."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config.labeled_data import Columns, TaskConfig
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.finetuning.readers.tabular_files import read_table, read_tsv
from bert_jax.errors import ConfigError, UserError

ROWS = [
    {"review": 'He said "good", twice.', "stars": "good", "key": "a"},
    {"review": "A comma, here", "stars": "bad", "key": "b"},
    {"review": "plain", "stars": "good", "key": "c"},
]
CSV = """review,stars,key
"He said ""good"", twice.",good,a
"A comma, here",bad,b
plain,good,c
"""


def read(config: TaskConfig) -> Any:
    """Reads a task; untyped, because its examples have many types."""
    return load_task(config)


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_bytes(text.encode())
    return str(folder / name)


def labels_of(tmp_path: Path, *labels: str, **settings: Any) -> tuple[str, tuple[str, ...]]:
    rows = "".join(f"text {n}\t{label}\n" for n, label in enumerate(labels))
    path = write(tmp_path, "train.tsv", "text\tlabel\n" + rows)
    task = read(Columns(train=path, text="text", label="label", **settings))
    return task.kind, task.labels


def test_files_in_another_encoding_are_read_or_the_flag_is_named(tmp_path):
    for name, separator in (("train.csv", ","), ("train.tsv", "\t")):
        path = tmp_path / name
        path.write_bytes(
            f"text{separator}label\nété{separator}oui\nmai{separator}non\n".encode("latin-1")
        )
        config = Columns(train=str(path), text="text", label="label", encoding="latin-1")
        assert read(config).splits["train"][0].text == "été"
        with pytest.raises(UserError, match=r"set it with --encoding latin-1$"):
            read(Columns(train=str(path), text="text", label="label"))
    with pytest.raises(UserError, match="Parquet files are always utf-8"):
        read_table(str(tmp_path / "a.parquet"), "latin-1")


def test_all_formats_give_the_same_examples(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [
        write(tmp_path, "a.csv", CSV),
        write(tmp_path, "crlf.csv", "\ufeff" + CSV.replace("\n", "\r\n").strip()),
        write(tmp_path, "semicolon.csv", 'review;stars;key\n"He said ""good"", twice.";good;a\n'
              "A comma, here;bad;b\nplain;good;c\n"),
        write(tmp_path, "quoted.tsv", CSV.replace(",good,", "\tgood\t").replace(",bad,", "\tbad\t")
              .replace("review,stars,key", "review\tstars\tkey")),
        write(tmp_path, "literal.tsv", "review\tstars\tkey\nHe said \"good\", twice.\tgood\ta\n"
              "A comma, here\tbad\tb\nplain\tgood\tc"),
        write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, ROWS)) + "\n\n"),
    ]  # fmt: skip
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for path in [*paths, str(tmp_path / "b.csv.gz"), str(tmp_path / "a.parquet")]:
        assert [row.cells for row in read_table(path).rows] == ROWS, path
        task = read(Columns(train=path, text="review", label="stars", id="key"))
        assert task.labels == ("bad", "good") and task.kind == "classification"
        assert [(e.id, e.label) for e in task.splits["train"]] == [
            ("a", "good"), ("b", "bad"), ("c", "good")
        ]  # fmt: skip


def test_quotes_of_csv_and_glue_files(shared):
    """Tests on the same questions that quotes are removed in CSV and kept in GLUE's TSV."""
    quoted = read_table(str(shared / "glue/QQP/quora-dev.csv.gz"))
    literal = read_tsv(str(shared / "glue/QQP/dev_cs224n.rebuilt.tsv.gz"), quotes="literal")
    assert len(quoted.rows) == 20_214 and len(literal.rows) == 20_212
    questions = {row.cells["id"]: row.cells["question1"] for row in literal.rows}
    # The first column has no name; it contains the ids of the other file.
    same = [
        " ".join(row.cells["sentence1"].split()) == " ".join(questions[row.cells[""]].split())
        for row in quoted.rows
        if row.cells[""] in questions
    ]
    assert len(same) == 20_212 and all(same)
    assert sum('"' in question for question in questions.values()) > 100


def test_cells_may_have_line_breaks_and_long_texts(tmp_path):
    long = "word " * 100_000
    path = write(tmp_path, "a.csv", f'text,label\n"two\nlines",x\n"{long}",y\nlast,x,\n')
    with pytest.raises(UserError, match=r"a\.csv, line 5: 3 columns; expected 2"):
        read_table(path)
    rows = read_table(write(tmp_path, "b.csv", f'text,label\n"two\nlines",x\n"{long}",y\n')).rows
    assert rows[0].cells["text"] == "two\nlines" and rows[1].cells["text"] == long
    assert [row.location.rpartition(" ")[2] for row in rows] == ["2", "4"]


def test_kind_and_classes_are_inferred_from_the_labels(tmp_path):
    assert labels_of(tmp_path, "b", "a", "b") == ("classification", ("a", "b"))
    assert labels_of(tmp_path, "10", "9", "-1") == ("classification", ("-1", "9", "10"))
    assert labels_of(tmp_path, "0.5", "2", "1e1") == ("regression", ())
    assert labels_of(tmp_path, "1", "5", kind="regression") == ("regression", ())
    assert labels_of(tmp_path, "true", "false") == ("classification", ("false", "true"))
    rows = [{"t": "x", "y": True}, {"t": "y", "y": False}, {"t": "z", "y": None}]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    task = read(Columns(train=path, text="t", label="y"))
    assert [e.label for e in task.splits["train"]] == ["true", "false"]
    assert task.notes == (f"{path}: 1 rows without a label were left out.",)


def test_several_labels_are_read_from_lists_and_from_cells_with_separators(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = [["b", "a"], [], ["c d"], ["a", "a"]]
    rows = [{"text": f"text {number}", "label": each} for number, each in enumerate(names)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    files: dict[str, str | None] = {
        write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))): None,
        str(tmp_path / "a.parquet"): None,
    }
    for name, cell, separator in (("a.csv", ",", ";"), ("a.tsv", "\t", None)):
        mark = separator or ","
        lines = [f"{row['text']}{cell}{f' {mark} '.join(row['label'])}" for row in rows]
        text = "\n".join([f"text{cell}label", *lines])
        files[write(tmp_path, name, text)] = separator
    for file, separator in files.items():
        config = Columns(
            train=file, text="text", label="label", kind="multi-label", label_separator=separator
        )
        task = read(config)
        assert (task.kind, task.labels, task.notes) == ("multi-label", ("a", "b", "c d"), ())
        assert task.metrics[0] == "mean_average_precision"
        expected = [("b", "a"), (), ("c d",), ("a",)]
        assert [each.label for each in task.splits["train"]] == expected, file


def test_a_missing_list_of_labels_is_no_label_but_an_empty_one_is(tmp_path):
    rows = [{"labels": [10, 9]}, {"labels": None}, {}, {"labels": [9]}, {"labels": []}]
    text = "\n".join(json.dumps({"text": "x", **row}) for row in rows)
    path = write(tmp_path, "a.jsonl", text)
    task = read(Columns(train=path, test=path, text="text", label="labels", kind="multi-label"))
    assert task.labels == ("9", "10")
    assert [each.label for each in task.splits["train"]] == [("10", "9"), ("9",), ()]
    assert [each.label for each in task.splits["test"]] == [("10", "9"), None, None, ("9",), ()]
    assert task.notes == (f"{path}: 2 rows without a label were left out.",)
    bare = write(tmp_path, "bare.jsonl", '{"text": "x"}\n')
    (only,) = read(Columns(test=bare, text="text", kind="multi-label")).splits["test"]
    assert only.label is None


def test_a_column_that_looks_like_several_labels_is_questioned(tmp_path):
    several = ("a|b", "b|c", "a|c", "a", "b")
    path = write(tmp_path, "a.tsv", "text\tlabel\n" + "".join(f"t\t{x}\n" for x in several))
    config = Columns(train=path, text="text", label="label")
    note = "The column 'label' has 5 different labels, of which 3 contain '|', such as 'a|b'; if "
    note += "these are several labels of one text, add "
    assert read(config).notes == (f"{note}--kind multi-label --label-separator '|'.",)
    wrong = dataclasses.replace(config, kind="multi-label")
    assert read(wrong).notes == (f"{note}--label-separator '|'.",)
    assert read(dataclasses.replace(wrong, label_separator="|")).notes == ()
    assert read(dataclasses.replace(config, kind="classification")).notes == ()
    # Half of the labels is not most, and names with punctuation have more parts than labels.
    for labels in (("a|b", "b|c", "a", "b"), ("Rome, Italy", "Paris, France", "Bonn, Germany")):
        rows = "".join(f"t\t{label}\n" for label in labels)
        write(tmp_path, "a.tsv", "text\tlabel\n" + rows)
        assert read(config).notes == ()


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ([["a"], ["b"]], [["c"]],
         r"dev\.jsonl, line 1: the label 'c' does not occur in train; the labels of train are a"),
        (["a,,b", "a"], None, r"line 1: the column 'label' has 'a,,b', which has an empty label "
         r"if split at ','; .* --label-separator names another"),
        ([["a", ""], ["b"]], None, r"line 1: the column 'label' has the label ''; expected a list"),
        ([["a", 0.5]], None, r"has the label 0\.5; expected a list of names or whole numbers"),
        ([{"a": 1}], None, r"has the label \{'a': 1\}; expected a list of names"),
        ([[], []], None, r"the 2 training examples have the labels \[\]; expected at least two"),
        ([["a"], []], None, r"have the labels \['a'\]; .* --kind classification for one yes-or-no"),
    ],
)  # fmt: skip
def test_invalid_lists_of_labels_are_reported(tmp_path, train, dev, message):
    paths: dict[str, Any] = {}
    for split, labels in (("train", train), ("dev", dev)):
        if labels is not None:
            rows = [json.dumps({"text": "t", "label": label}) for label in labels]
            paths[split] = write(tmp_path, f"{split}.jsonl", "\n".join(rows))
    with pytest.raises(UserError, match=message):
        read(Columns(**paths, text="text", label="label", kind="multi-label"))
    with pytest.raises(UserError, match=r"type list; expected a name .* need --kind multi-label"):
        read(Columns(train=write(tmp_path, "a.jsonl", '{"text": "t", "label": ["a"]}'),
                     text="text", label="label"))  # fmt: skip


def test_unlabeled_examples_keep_their_order(tmp_path):
    """Tests test sets without a label column, or with empty label cells."""
    train = write(tmp_path, "train.csv", "text,pair,label\na,b,x\nc,d,y\n")
    test = write(tmp_path, "test.csv", "text,pair,label\na,b,\nc,d,y\n")
    bare = write(tmp_path, "bare.csv", "pair,text\nb,a\n")
    columns: Any = {"text": "text", "text_pair": "pair", "label": "label"}
    task = read(Columns(train=train, test=test, **columns))
    assert [e.label for e in task.splits["test"]] == [None, "y"]
    task = read(Columns(train=train, test=bare, **columns))
    (only,) = task.splits["test"]
    assert (only.id, only.text, only.text_pair, only.label) == ("0", "a", "b", None)
    task = read(Columns(test=bare, text="text"))
    assert task.labels == () and task.kind == "classification" and task.metrics[0] == "accuracy"


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("text,label\na,x\nb,y\n", "text,label\na,z\n",
         r"dev\.csv, line 2: the label 'z' does not occur in train; the labels of train are x, y"),
        ("text,label\na,good\nb,bad\n", "text,label\na,god\n", r"did you mean 'good'"),
        ("texts,label\na,x\n", None,
         r"train\.csv: there is no column 'text'; did you mean 'texts'\? the columns are"),
        ("text,label\na,x\n,y\n", None, r"line 3: the text in the column 'text' is empty"),
        ("text,label\na,x\nb\n", None,
         r"train\.csv, line 3: 1 columns; expected 2 \(text, label\)"),
        ("text,label\na,1.0\nb,0.0\n", None,
         r"line 2: the label 1\.0 has decimals, but classes are expected"),
        ("text,label\na,x\nb,x\n", None, r"all 2 training examples have the label 'x'"),
        ("text,label\na,\nb,\n", None, r"the column 'label' is empty in all rows"),
        ("text,label\n", None, r"no rows; expected at least one"),
        ("", None, r"is empty; expected a first line"),
        ("text,text\n", None, r"the column 'text' occurs twice"),
        ('text,label\n"a" b,x\n', None, r"line 2: not valid CSV"),
    ],
)  # fmt: skip
def test_invalid_tables_are_reported(tmp_path, train: str, dev: str | None, message: str):
    paths: dict[str, Any] = {"train": write(tmp_path, "train.csv", train)}
    if dev is not None:
        paths["dev"] = write(tmp_path, "dev.csv", dev)
    with pytest.raises(UserError, match=message):
        read(Columns(**paths, text="text", label="label"))


def test_invalid_ids_labels_and_formats_are_reported(tmp_path):
    path = write(tmp_path, "a.csv", "key,text,label\nk,a,1\nk,b,2\n")
    with pytest.raises(UserError, match=r"line 3: the id 'k' is already used in .*a\.csv, line 2"):
        read(Columns(train=path, text="text", label="label", id="key"))
    path = write(tmp_path, "b.csv", "text,label\na,0.5\nb,3\n")
    with pytest.raises(UserError, match=r"line 2: the label 0\.5 has decimals"):
        read(Columns(train=path, text="text", label="label", kind="classification"))
    path = write(tmp_path, "c.csv", "text,label\na,0.5\nb,much\nc,nan\n")
    with pytest.raises(UserError, match=r"line 3: the label 'much' is not a number"):
        read(Columns(train=path, text="text", label="label", kind="regression"))
    path = write(tmp_path, "d.jsonl", '{"text": "a", "label": 1.0}\n{"text": "b", "label": 2.0}\n')
    with pytest.raises(UserError, match=r"d\.jsonl, line 1: the label 1\.0 has decimals"):
        read(Columns(train=path, text="text", label="label"))
    with pytest.raises(UserError, match=r"d\.jsonl, line 2: not valid JSON"):
        read_table(write(tmp_path, "d.jsonl", '{"text": "a"}\n{"text": \n'))
    with pytest.raises(UserError, match=r"line 1: expected a JSON object, found a list"):
        read_table(write(tmp_path, "d.jsonl", "[1]\n"))
    path = write(tmp_path, "e.jsonl", '{"text": ["a"], "label": 1}\n{"text": "b", "label": 2}\n')
    with pytest.raises(UserError, match=r"the column 'text' has a value of type list"):
        read(Columns(train=path, text="text", label="label"))
    with pytest.raises(UserError, match=r"not a readable Parquet file"):
        read_table(write(tmp_path, "f.parquet", "text"))
    with pytest.raises(UserError, match=r"the format is unknown; expected a file"):
        read_table(write(tmp_path, "g.xlsx", "text"))
    with pytest.raises(UserError, match=r"no such file"):
        read_table(str(tmp_path / "none.csv"))


def test_invalid_configs_are_rejected():
    for kind in (None, "ranking"):
        with pytest.raises(ConfigError, match=r"\(--label-separator\), and .*--kind multi-label"):
            Columns(train="a", text="text", label="label", kind=kind, label_separator=";")
    with pytest.raises(ConfigError, match="expected characters between labels"):
        Columns(train="a", text="text", label="label", kind="multi-label", label_separator="")
    with pytest.raises(ConfigError, match="expected a file for train, dev or test"):
        Columns(text="text", label="label")
    with pytest.raises(ConfigError, match="one column is named twice"):
        Columns(train="a.csv", text="text", label="text")
    with pytest.raises(ConfigError, match=r"Columns\.train needs labels"):
        Columns(train="a.csv", text="text")
