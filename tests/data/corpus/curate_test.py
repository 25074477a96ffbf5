"""Runs `bert-jax curate` on real texts, and checks ledger, bytes, restarts and errors.

Covers bert_jax/apps/curate/{plan,curate,ledger,shards,spills,units,workers}.py and
bert_jax/apps/curate/cli/curate.py, and how errors come back from worker processes.
"""

import dataclasses
import gzip
import json
import multiprocessing
import pickle
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate import ledger, units, workers
from bert_jax.apps.curate.corpus import (
    is_finished,
    match_key,
    read_documents_of,
    read_summary,
    write_spill_lines,
)
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.ledger import LedgerRow, open_ledger, read_ledger
from bert_jax.apps.curate.plan import (
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    C4Lines,
    CurationConfig,
    Rule,
    RuleSet,
    Source,
)
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument, TextFiles
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.text.cleaning import normalize_text

pytest.importorskip("pyarrow")

SENTENCE = "the house that stood by the river and the people who came to see it have gone"


def paragraph(number: int) -> str:
    """Returns a text of 68 words that no other number gives."""
    words = enumerate(SENTENCE.split() * 4)
    return " ".join(f"{word}{number + i}" if i % 3 else word for i, word in words)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Writes two sources with duplicates, repetition, empty documents and hostile characters."""
    folder = tmp_path / "raw"
    (folder / "web").mkdir(parents=True)
    texts = [paragraph(n) for n in range(12)]
    hostile = ["", "\x00\x01", "... --- ...", "\u200b" + paragraph(50), "x" * 20_000]
    repeated = ["the street ended with another house like that one " * 30]
    files = {
        "web/a.jsonl": [*texts[:6], *hostile, *repeated],
        "web/b.jsonl": [texts[1].upper(), texts[2].replace(" ", "\n"), *texts[6:9]],
        "web/c.jsonl": texts[9:],
    }
    for name, documents in files.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        (folder / name).write_text(lines)
    (folder / "book.txt").write_text(texts[3])
    return folder


def config(raw: Path, **fields) -> CurationConfig:
    sources = (
        Source(name="books", files=TextFiles(str(raw / "book.txt"))),
        Source(name="web", files=TextFiles(str(raw / "web" / "*.jsonl"))),
    )
    rule_sets = (GOPHER_QUALITY, GOPHER_REPETITION)
    return CurationConfig(sources=sources, rule_sets=rule_sets, num_shards=3, **fields)


def read_output(folder: Path) -> dict[str, str]:
    """Returns the kept documents by id."""
    records = []
    for file in sorted(folder.glob("documents-*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            records += map(json.loads, lines)
    return {record["id"]: record["text"] for record in records}


def file_bytes(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("documents-*"), folder / "manifest.json", folder / "plan.json"]
    return {file.name: file.read_bytes() for file in files}


def test_every_document_is_kept_or_dropped_with_a_reason(raw, tmp_path):
    manifest = curate(config(raw), tmp_path / "out", num_workers=1)
    rows = read_ledger(sorted((tmp_path / "out").glob("ledger-*")))
    documents = read_output(tmp_path / "out")
    counts = manifest["counts"]
    assert counts["documents"] == len(rows) == 21
    assert {row.id for row in rows if not row.reason} == set(documents)
    assert counts["retained_documents"] == len(documents) == 13
    assert counts["retained_characters"] == sum(map(len, documents.values()))
    assert counts["dropped"]["web"] == Counter(
        {
            "empty": 3,
            "duplicate document": 3,
            "Gopher quality: words": 1,
            "Gopher repetition: top_2gram_characters": 1,
        }
    )
    by_id = {row.id: row for row in rows}
    for row in rows:
        if row.reason == "duplicate document":
            assert by_id[row.twin].reason == ""
    # The earlier source has priority, whatever the names of the files are.
    assert by_id["web/a.jsonl:4"].twin == "books/book.txt:1"
    keys = [match_key(text) for text in documents.values()]
    assert len(set(keys)) == len(keys)
    assert all(normalize_text(text).strip() == text for text in documents.values())
    assert not (tmp_path / "out" / ".work").exists()


def test_a_stopped_run_continues_with_finished_units(raw, tmp_path, monkeypatch):
    curate(config(raw), tmp_path / "whole", num_workers=1)
    real, calls = units.write_spill, []

    def stop_after_two(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments)
        real(*arguments)

    monkeypatch.setattr(units, "write_spill", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        curate(config(raw), tmp_path / "out", num_workers=1)
    # A spill file that is cut off is written again.
    spill = tmp_path / "out" / ".work" / "spill-00000.jsonl.gz"
    spill.write_bytes(spill.read_bytes()[:-20])
    monkeypatch.setattr(units, "write_spill", lambda *a: (calls.append(a), real(*a)))
    curate(config(raw), tmp_path / "out", num_workers=1)
    assert len(calls) == 2 + len(list((tmp_path / "out").glob("documents-*"))) - 1
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


def test_a_finished_spill_file_is_recognized_without_reading_it(tmp_path):
    path = tmp_path / "spill-00000.jsonl.gz"
    records = [{"id": "a", "fields": {"name": "half of a pair: \ud83d"}}, {"id": "é", "fields": {}}]
    write_spill_lines(path, [*records, {"plan": "p", "documents": 2}])
    assert list(read_documents_of(path)) == records
    assert read_summary(path)["documents"] == 2
    assert is_finished(path, "p") and not is_finished(path, "q")
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)
    assert is_finished(path, "p")
    with pytest.raises(UserError, match=r"damaged .* delete it and run the same command again"):
        list(read_documents_of(path))
    path.unlink()
    assert not is_finished(path, "p")


def test_lone_surrogates_of_keys_and_fields_are_written(raw, tmp_path, monkeypatch):
    def read_file(files: TextFiles, file: SourceFile):
        yield RawDocument(key="page \udce9", text=paragraph(0), fields={"x": "\ud83d"})

    monkeypatch.setattr(TextFiles, "read_file", read_file)
    source = Source(name="web", files=TextFiles(str(raw / "book.txt")))
    curate(CurationConfig(sources=(source,)), tmp_path / "out", num_workers=1)
    assert list(read_output(tmp_path / "out")) == ["web/book.txt:page \\udce9"]


def test_groups_of_ledger_rows_are_read_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "GROUP_ROWS", 2)
    rows = [
        LedgerRow(id=str(n), source="web", digest="", characters=n, retained_characters=0)
        for n in range(5)
    ]
    with open_ledger(tmp_path / "ledger.parquet") as add_row:
        for row in rows:
            add_row(row)
    assert read_ledger([tmp_path / "ledger.parquet"]) == rows


def test_errors_come_back_from_worker_processes():
    classes: list[type[UserError]] = [UserError]
    found: list[UserError] = [MissingExtraError("--onnx needs onnx", "onnx")]
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        found.append(kind.__new__(kind, "message"))
    assert len(found) > 2
    for error in found:
        loaded = pickle.loads(pickle.dumps(error))
        assert (type(loaded), str(loaded)) == (type(error), str(error))


def test_worker_processes_leave_ctrl_c_to_their_parent():
    handler = signal.getsignal(signal.SIGINT)
    try:
        workers._start_worker(multiprocessing.get_context("spawn").RawValue("b", False))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_missing_pyarrow_is_an_error_before_the_work(raw, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow for its ledger"):
        curate(config(raw), tmp_path / "out", num_workers=1)
    assert not (tmp_path / "out").exists()


def test_another_config_or_input_over_old_output_is_refused(raw, tmp_path):
    out = tmp_path / "out"
    curate(config(raw), out, num_workers=1)
    with pytest.raises(UserError, match=r"other settings:\n  config.lines.splitter: was None, now"):
        curate(config(raw, lines=C4Lines()), out)
    (raw / "web" / "c.jsonl").write_text('{"text": "changed"}\n')
    with pytest.raises(UserError, match="files of a source were added, removed or changed"):
        curate(config(raw), out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".plan.json.host.1.partial").write_text("{")
    curate(config(raw), tmp_path / "other", num_workers=1)  # what a killed run leaves
    (tmp_path / "other" / "plan.json").unlink()
    for path in (tmp_path / "other").glob("[!.]*"):
        path.unlink()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"not a curated corpus \(it contains mine.txt\)"):
        curate(config(raw), tmp_path / "other")


def test_rules_that_drop_nearly_everything_are_an_error(raw, tmp_path):
    rules = RuleSet(name="mine", rules=(Rule(signal="words", at_least=1e5),))
    wrong = dataclasses.replace(config(raw), rule_sets=(rules,))
    with pytest.raises(UserError, match=r"no document is left.*mine: words \(18\)"):
        curate(wrong, tmp_path / "out", num_workers=1)
    assert not list((tmp_path / "out").glob("documents-*"))


def test_a_run_that_dropped_too_much_continues_with_another_limit(raw, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"would be dropped, more than max_dropped, which is 10.0%"):
        curate(config(raw, max_dropped=0.1), tmp_path / "out", num_workers=1)
    monkeypatch.setattr(units, "write_spill", lambda *_: pytest.fail("the work is repeated"))
    curate(config(raw), tmp_path / "out", num_workers=1)
    with pytest.raises(UserError, match=r"more than max_dropped, which is 10.0%"):
        curate(config(raw, max_dropped=0.1), tmp_path / "out", num_workers=1)


def test_file_names_that_are_not_utf8_have_ids(tmp_path):
    (tmp_path / "caf\udce9.jsonl").write_text(json.dumps({"text": paragraph(0)}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": paragraph(1)}) + "\n")
    source = Source(name="web", files=TextFiles(str(tmp_path / "*.jsonl")))
    curate(CurationConfig(sources=(source,)), tmp_path / "out", num_workers=1)
    assert set(read_output(tmp_path / "out")) == {"web/b.jsonl:1", "web/caf\\xe9.jsonl:1"}


def test_real_texts_with_the_recipe_for_documents(shared, tmp_path, capsys):
    files = shared / "text" / "inaugural" / "18*.txt"
    command = ["curate", "documents", "--output", str(tmp_path / "out"), "--workers", "1"]
    assert main([*command, "--arg", f"files={files}"]) == 0
    printed = capsys.readouterr().out
    num_files = len(list(files.parent.glob(files.name)))
    assert f"kept {num_files} of {num_files} documents" in printed
    documents = read_output(tmp_path / "out")
    assert len(documents) == num_files and all(len(text) > 1000 for text in documents.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bert", "--output", "out"], "bert needs --arg corpus="),
        (["web", "--output", "out"], "web needs --arg files="),
        (["web", "--output", "out", "--workers", "0", "--arg", "files=x"], "--workers 0: expected"),
        (["web", "--output", "out", "--arg", "files=x*.jsonl"], "no file matches 'x*.jsonl'"),
        (["documents", "--output", "out", "--arg", "files=x", "language=English"], "'English'"),
        (["html", "--output", "out", "--encoding", "latin-1", "--arg", "files=x"], "HtmlFiles"),
    ],
)
def test_wrong_arguments_give_one_message(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["curate", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_flags_correct_a_first_attempt_in_the_same_folder(tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes("Ein Käse.\n\nEin Brot.\n".encode("latin-1"))
    command = ["curate", "documents", "--output", str(tmp_path / "out"), "--workers", "1"]
    command += ["--arg", f"files={tmp_path}/*.txt"]
    assert main(command) == 1
    assert "set it with --encoding latin-1; to replace" in capsys.readouterr().err
    assert main([*command, "--encoding", "latin-1", "--document-unit", "blank-line"]) == 0
    assert sorted(read_output(tmp_path / "out").values()) == ["Ein Brot.", "Ein Käse."]
    assert main(command) == 1
    assert "encoding: was 'latin-1', now 'utf-8'" in capsys.readouterr().err


def test_a_recipe_of_pretraining_is_refused(tmp_path, capsys):
    recipe = tmp_path / "wrong.py"
    recipe.write_text("def get_config():\n    return 3\n")
    assert main(["curate", str(recipe), "--output", str(tmp_path / "out")]) == 2
    assert "returned int; `bert-jax curate` expects a CurationConfig" in capsys.readouterr().err


def test_lines_of_web_pages_are_removed_and_counted(raw, tmp_path):
    page = "\n\n".join(["Home | About", *(f"{paragraph(n)}." for n in range(4)), "Menu"])
    (raw / "web" / "d.jsonl").write_text(json.dumps({"text": page}) + "\n")
    files = Source(name="web", files=TextFiles(str(raw / "web" / "d.jsonl")))
    manifest = curate(CurationConfig(sources=(files,), lines=C4Lines()), tmp_path / "out")
    assert manifest["removed_lines"] == {"no end mark": 2}
    (text,) = read_output(tmp_path / "out").values()
    assert text.count("\n") == 3
    assert "Menu" not in text
