"""Curates and prepares from and to file systems of fsspec, also ones that fail.

Covers bert_jax/data/corpus/source_files.py and curation/remote_output.py.
"""

import gzip
import importlib.util
import json
import os
import tempfile
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax.__main__ import main
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.plan import CurationConfig, Source
from bert_jax.apps.curate.remote_output import local_output
from bert_jax.data.corpus.source_files import find_source_files
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import ConfigError, MissingExtraError, UserError

pytest.importorskip("pyarrow")


@pytest.fixture
def failures(monkeypatch) -> list[str]:
    """Returns a list of what happens to the next transfers: "" for no failure, "raise" or "cut"."""
    failures: list[str] = []
    get_file, put_file = MemoryFileSystem.get_file, MemoryFileSystem.put_file

    def get_file_or_fail(self, rpath, lpath, **kwargs):
        failure = failures.pop(0) if failures else ""
        get_file(self, rpath, lpath, **kwargs)
        if failure:
            data = Path(lpath).read_bytes()
            Path(lpath).write_bytes(data[: len(data) // 2])
        if failure == "raise":
            raise ConnectionResetError("Connection reset by peer")

    def put_file_or_fail(self, lpath, rpath, **kwargs):
        if failures and failures.pop(0):
            raise PermissionError("write access denied")
        put_file(self, lpath, rpath, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_file_or_fail)
    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file_or_fail)
    return failures


@pytest.fixture
def system(tmp_path, monkeypatch) -> MemoryFileSystem:
    """Returns a remote file system that has the sources, which tmp_path has as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    system = MemoryFileSystem()
    (tmp_path / "raw").mkdir()
    for k in range(4):
        texts = [f"Document {n} of file {k} has words of its own." for n in range(k, 5)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        path = tmp_path / "raw" / f"{k}.jsonl.gz"
        path.write_bytes(gzip.compress(lines.encode()))
        system.pipe_file(f"/bucket/raw/{k}.jsonl.gz", path.read_bytes())
    return system


def config(files: str) -> CurationConfig:
    return CurationConfig(sources=(Source(name="web", files=TextFiles(files)),), num_shards=2)


def documents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[dl]*-of-*")}


def test_remote_sources_give_the_same_bytes_after_failures(system, failures, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    host = os.uname().nodename[:40]
    for pid in (os.getpid(), 1 << 30):  # the second process does not run
        (tmp_path / "temporary" / f"bert_jax-{host}-{pid}-abc").mkdir(parents=True)
    curate(config(str(tmp_path / "raw" / "*.gz")), tmp_path / "local", num_workers=1)
    remote = config("memory://bucket/raw/*.jsonl.gz")
    for failure, message in (("raise", "reset by peer"), ("cut", "ends at byte .*, expected")):
        failures[:] = ["", failure]
        with pytest.raises(UserError, match=f"^memory://.*bucket/raw/..jsonl.gz: .*{message}"):
            curate(remote, tmp_path / "remote", num_workers=1)
    curate(remote, tmp_path / "remote", num_workers=1)
    assert documents(tmp_path / "remote") == documents(tmp_path / "local")
    assert len(documents(tmp_path / "local")) == 4
    (copies,) = (tmp_path / "temporary").iterdir()
    assert copies.name == f"bert_jax-{host}-{os.getpid()}-abc"
    system.pipe_file("/bucket/raw/3.jsonl.gz", gzip.compress(b'{"text": "Another text."}\n'))
    with pytest.raises(UserError, match="the files of a source were added, removed or changed"):
        curate(remote, tmp_path / "remote", num_workers=1)
    system.pipe_file("/bucket/raw/3.jsonl.gz", gzip.compress(b'{"text": "Another text."\n'))
    with pytest.raises(UserError, match=r"^memory://.*bucket/raw/3.jsonl.gz, line 1: "):
        curate(remote, tmp_path / "damaged", num_workers=1)


def test_a_remote_output_is_complete_when_it_has_a_manifest(system, failures, tmp_path, capsys):
    arguments = ["--workers", "1", "--arg", f"files={tmp_path}/raw/*.gz"]
    assert main(["curate", "documents", "--output", str(tmp_path / "out"), *arguments]) == 0
    command = ["curate", "documents", "--output", "memory://bucket/curated/", *arguments]
    failures[:] = ["", "raise"]
    assert main(command) == 1
    assert "memory://bucket/curated/curation.html: cannot be written" in capsys.readouterr().err
    assert not system.exists("/bucket/curated/manifest.json")
    assert main(command) == 0
    assert "next: bert-jax prepare --files 'memory://bucket/curated/doc" in capsys.readouterr().out
    (tmp_path / "copy").mkdir()
    for path in system.ls("/bucket/curated", detail=False):
        (tmp_path / "copy" / path.rpartition("/")[2]).write_bytes(system.cat_file(path))
    assert documents(tmp_path / "copy") == documents(tmp_path / "out")
    assert documents(tmp_path / "copy")
    assert {"manifest.json", "plan.json", "curation.html"} <= {
        path.name for path in (tmp_path / "copy").iterdir()
    }
    cache = tmp_path / "cache" / "bert_jax" / "curate"
    assert [path.suffix for path in cache.iterdir()] == [".lock"]
    # The finished corpus is recognized; another input over it is an error.
    assert main(command) == 0
    (tmp_path / "raw" / "0.jsonl.gz").rename(tmp_path / "0")
    assert main(command) == 1
    message = capsys.readouterr().err
    assert "--output memory://bucket/curated (local folder" in message
    assert "curated with other settings" in message
    # What is left of that does not pass for a finished corpus when the remote one is gone.
    (tmp_path / "0").rename(tmp_path / "raw" / "0.jsonl.gz")
    system.rm("/bucket/curated", recursive=True)
    assert main(command) == 0
    assert system.glob("/bucket/curated/documents-*")


def test_two_commands_do_not_write_to_one_remote_folder(system):
    url = "memory://bucket/curated"
    with (
        pytest.raises(UserError, match=f"--output {url}: another command has written a corpus"),
        local_output(url) as folder,
    ):
        with (
            pytest.raises(UserError, match=f"--output {url}: another process is writing there"),
            local_output(url),
        ):
            pass
        (folder / "plan.json").write_text('{"seed": 0}')
        system.pipe_file("/bucket/curated/plan.json", b'{"seed": 1}')
    assert system.cat_file("/bucket/curated/plan.json") == b'{"seed": 1}'


def test_prepare_reads_remote_files(system, shared, tmp_path):
    vocabulary = str(shared / "vocab" / "bert-base-uncased")
    for name, files in (("local", f"{tmp_path}/raw/*.gz"), ("remote", "memory://bucket/raw/*.gz")):
        flags = ["--tokenizer", vocabulary, "--output", str(tmp_path / name), "--workers", "1"]
        assert main(["prepare", "--files", files, *flags]) == 0
    shards = [
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("documents-*-of-*[!n]")}
        for name in ("local", "remote")
    ]
    assert shards[0] == shards[1]
    assert shards[0]


def test_wrong_addresses_give_one_message(system, monkeypatch):
    with pytest.raises(UserError, match=r"no file matches 'memory://bucket/raw/x\*'"):
        find_source_files(["memory://bucket/raw/x*"])
    with pytest.raises(UserError, match=r"^nosuch://a/b: cannot be opened"):
        find_source_files(["nosuch://a/b"])
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(MissingExtraError, match=r"install the extra \[remote\]"):
            find_source_files(["s3://bucket/*.jsonl"])
    for url in ("ftp://user:secret@host/a", "https://host/a?X-Amz-Signature=secret"):
        with pytest.raises(ConfigError, match="expected no password or signature") as caught:
            find_source_files([url])
        assert "secret" not in str(caught.value)
    pattern = "memory://bucket/raw/0*"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "unstrip_protocol", lambda *_: "memory://raw/0.jsonl.gz")
        with pytest.raises(UserError, match="expected an address of gs, s3, hf"):
            find_source_files([pattern])
    info = {"/bucket/raw/0": {"type": "file", "size": None}}
    monkeypatch.setattr(MemoryFileSystem, "glob", lambda *_, **__: info)
    with pytest.raises(UserError, match="raw/0: the server does not give the size of the file"):
        find_source_files([pattern])
