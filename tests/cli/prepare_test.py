"""Tests the command line of `bert-jax prepare`."""

import textwrap

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.text_corpus import write_text, write_vocabulary
from bert_jax.data.corpus.manifest import read_manifest


@pytest.fixture
def files(tmp_path) -> list[str]:
    write_text(tmp_path / "text", num_documents=4)
    vocabulary = write_vocabulary(tmp_path / "vocabulary")
    return ["--files", str(tmp_path / "text" / "*"), "--tokenizer", str(vocabulary)]


def test_prepare_writes_a_corpus_and_reports_it(tmp_path, files, capsys):
    output = tmp_path / "prepared"
    assert main(["prepare", *files, "--output", str(output), "--workers", "1"]) == 0
    manifest = read_manifest(output)
    shown = capsys.readouterr().out
    assert f"pretrain small_corpus --run runs/small_corpus --arg corpus={output}\n" in shown
    assert "4 documents" in shown and f"{manifest.counts.tokens:,} tokens" in shown


def test_flags_set_the_settings(tmp_path, files):
    output = tmp_path / "prepared"
    flags = ["--document-unit", "line", "--splitter", "lines", "--max-part-tokens", "64"]
    flags += ["--shards", "2", "--encoding", "latin-1", "--errors", "ignore", "--workers", "1"]
    assert main(["prepare", *files, *flags, "--output", str(output)]) == 0
    manifest = read_manifest(output)
    assert manifest.settings == {"split": "train", "splitter": "lines", "max_part_tokens": 64}
    settings = ("document_unit", "encoding", "errors")
    assert [manifest.source[name] for name in settings] == ["line", "latin-1", "ignore"]
    assert len(manifest.shards) == 2 and manifest.counts.sentences == 4


def test_seqio_task_of_a_user_module(tmp_path, files, capsys):
    """Tests that a file of less than ten lines registers a corpus, without being installed."""
    module = tmp_path / "my_tasks.py"
    module.write_text(
        textwrap.dedent(
            f"""
            from bert_jax.data.corpus.sources import TextFiles
            from bert_jax.data.seqio.text_tasks import register_text_task

            books = TextFiles({{"train": "{tmp_path}/text/*", "validation": "{tmp_path}/text/*1*"}})
            register_text_task("my_books", books, tokenizer="{files[-1]}")
            """
        )
    )
    output = tmp_path / "prepared"
    task = ["--task", "my_books", "--module", str(module), "--split", "validation"]
    assert main(["prepare", *task, "--output", str(output), "--workers", "1"]) == 0
    manifest = read_manifest(output)
    assert manifest.task == "my_books" and manifest.counts.documents == 1
    assert manifest.settings["split"] == "validation"
    assert "1 documents" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--files", "{tmp}/none*", "--tokenizer", "{vocab}"], 1, "no file matches"),
        (
            ["--files", "{tmp}/bad.txt", "--tokenizer", "{vocab}"],
            1,
            "bad.txt: not utf-8 text at byte 3",
        ),
        (["--files", "{tmp}/empty.txt", "--tokenizer", "{vocab}"], 1, "every file is empty"),
        (["--files", "{tmp}/bad.txt", "--tokenizer", "{tmp}/none"], 1, "no such file or folder"),
        (["--files", "{tmp}/bad.txt"], 2, "--files needs --tokenizer"),
        (
            ["--files", "x", "--tokenizer", "{vocab}", "--split=a"],
            2,
            "--split can only be used with --task",
        ),
        (["--files", "x", "--tokenizer", "{vocab}", "--workers", "0"], 2, "--workers 0"),
        (["--files", "x", "--tokenizer", "{vocab}", "--shards", "0"], 2, "shards is 0"),
        (["--task", "x", "--tokenizer", "{vocab}"], 2, "--tokenizer can only be used with --files"),
        (
            ["--task", "x", "--document-unit", "line"],
            2,
            "--document-unit can only be used with --files",
        ),
    ],
)
def test_invalid_input_is_reported(tmp_path, files, capsys, arguments, code, message):
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 noir")
    (tmp_path / "empty.txt").write_text("")
    arguments = [a.format(tmp=tmp_path, vocab=files[-1]) for a in arguments]
    assert main(["prepare", "--output", str(tmp_path / "out"), *arguments]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and message in shown and "Traceback" not in shown
    assert not list((tmp_path / "out").glob("documents-*"))


def test_files_and_task_are_mutually_exclusive(capsys):
    for arguments in ([], ["--files", "x", "--task", "y"]):
        assert main(["prepare", "--output", "out", *arguments]) == 2
        assert "expected one of --files" in capsys.readouterr().err
