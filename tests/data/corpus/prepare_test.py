"""Tests `prepare`: its output, that the output does not depend on how it is run, bad input."""

import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.exact_duplicates import ExactDuplicates
from bert_jax.apps.curate.plan import CurationConfig, Source
from bert_jax.apps.testing.text_corpus import write_text, write_vocabulary
from bert_jax.data.corpus.contamination.found_items import ITEMS_FILE, FoundItems
from bert_jax.data.corpus.manifest import MANIFEST_FILE, Manifest, read_manifest
from bert_jax.data.corpus.output_folder import lock_folder
from bert_jax.data.corpus.plan import PrepareConfig, balanced_groups
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.shards import NO_TOKENS, DocumentsConfig, encode_sentences
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.cleaning import clean_text
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.sentences import split_sentences
from tests.helpers.contamination import write_item_rows


@pytest.fixture
def vocabulary(tmp_path: Path) -> str:
    return str(write_vocabulary(tmp_path / "vocabulary"))


def _config(tmp_path: Path, vocabulary: str, files: str = "text/*", **settings) -> PrepareConfig:
    reading = {
        name: settings.pop(name)
        for name in ("document_unit", "json_field", "encoding", "errors")
        if name in settings
    }
    settings.setdefault("output", str(tmp_path / "prepared"))
    source = TextFiles(str(tmp_path / files), **reading)
    return PrepareConfig(source=source, tokenizer=vocabulary, **settings)


def _prepare(tmp_path: Path, vocabulary: str, **settings) -> Manifest:
    return prepare(_config(tmp_path, vocabulary, **settings), num_workers=1)


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _documents(folder: Path) -> list[list[list[int]]]:
    """Returns the documents of a prepared corpus as lists of sentences of ids."""
    corpus = PreparedCorpus(folder)
    documents = []
    for number in range(corpus.num_documents):
        sentences: list[list[int]] = []
        for part in corpus.parts_from(int(corpus.first_part[number]), number):
            ends = [0, *part.sentence_ends.tolist()]
            sentences += [part.ids[a:b].tolist() for a, b in itertools.pairwise(ends)]
        documents.append(sentences)
    return documents


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_corpus_contains_the_tokens_of_every_sentence_in_order(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=12, sentences_per_document=9)
    manifest = _prepare(
        tmp_path, vocabulary, num_shards=5, documents=DocumentsConfig(max_part_tokens=40)
    )
    engine = load_tokenizer(vocabulary)
    expected = [
        [engine.encode(sentence) for sentence in split_sentences(clean_text(path.read_text()))]
        for path in sorted((tmp_path / "text").iterdir())
    ]
    assert _documents(tmp_path / "prepared") == expected
    lengths = [len(ids) for document in expected for ids in document]
    assert manifest.counts.documents == 12 and manifest.counts.parts > 12
    assert manifest.counts.sentences == len(lengths) and manifest.counts.tokens == sum(lengths)
    assert manifest.tokenizer_fingerprint == engine.fingerprint
    assert [shard.first_document for shard in manifest.shards] == list(
        np.cumsum([0, *(shard.counts.documents for shard in manifest.shards[:-1])])
    )
    assert PreparedCorpus(tmp_path / "prepared").tokens_per_part.max() <= 40


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=8)
    for workers in (1, 2):
        output = str(tmp_path / str(workers))
        prepare(_config(tmp_path, vocabulary, output=output, num_shards=4), num_workers=workers)
    assert len(read_manifest(tmp_path / "1").shards) == 4
    assert _content(tmp_path / "1") == _content(tmp_path / "2")


def test_items_found_by_curation_are_copied(tmp_path, vocabulary, caplog):
    pytest.importorskip("pyarrow")
    write_text(tmp_path / "text")
    question = TextExample(id="0", text="the old man and the sea")
    task = Task(name="t", kind="classification", labels=(), metrics=(), splits={"dev": (question,)})
    write_item_rows(tmp_path / "text", task, "dev", {"0"})
    _prepare(tmp_path, vocabulary, files="text/*.txt")
    assert FoundItems.read(tmp_path / "prepared").groups(task, "dev") == ["found"]
    # The counts are those of all shards.
    (tmp_path / "text" / "documents-00001-of-00002.jsonl.gz").touch()
    _prepare(tmp_path, vocabulary, files="text/*.txt", output=str(tmp_path / "part"))
    assert not (tmp_path / "part" / ITEMS_FILE).exists()
    assert "read without documents-00001-of-00002.jsonl.gz" in caplog.text
    # Nothing is known about a corpus of which only a part was searched.
    write_text(tmp_path / "more")
    _prepare(tmp_path, vocabulary, files="[tm]*/*.txt", output=str(tmp_path / "both"))
    assert not (tmp_path / "both" / ITEMS_FILE).exists()


def test_manifest_says_what_curation_removed(tmp_path, vocabulary):
    pytest.importorskip("pyarrow")
    write_text(tmp_path / "text")
    shutil.copy(tmp_path / "text" / "0000.txt", tmp_path / "text" / "copy.txt")
    source = Source(name="web", files=TextFiles(str(tmp_path / "text" / "*.txt")))
    curation = CurationConfig(sources=(source,), steps=(ExactDuplicates(),))
    curate(curation, tmp_path / "curated", num_workers=1)
    shards = "curated/documents-*.jsonl.gz"
    manifest = _prepare(tmp_path, vocabulary, files=shards)
    assert manifest.counts.documents == 40
    expected = {"documents read": 41, "documents removed: duplicate document": 1}
    assert read_manifest(tmp_path / "prepared").source["curation"] == expected
    raw = _prepare(tmp_path, vocabulary, files="text/*.txt", output=str(tmp_path / "raw"))
    assert "curation" not in raw.source
    # The counts are those of all shards.
    (tmp_path / "curated" / "documents-00001-of-00002.jsonl.gz").touch()
    shards = shards.replace("*", "00000-*")
    part = _prepare(tmp_path, vocabulary, files=shards, output=str(tmp_path / "part"))
    assert "curation" not in part.source
    (tmp_path / "curated" / "documents-00001-of-00002.jsonl.gz").unlink()
    (tmp_path / "curated" / "manifest.json").write_text('{"counts": 3}')
    with pytest.raises(UserError, match="not the manifest of a curated corpus"):
        _prepare(tmp_path, vocabulary, files=shards, output=str(tmp_path / "damaged"))


def test_units_are_contiguous_balanced_and_never_empty():
    random = np.random.default_rng(0)
    for _ in range(200):
        sizes = random.integers(1, 1000, random.integers(1, 60)).tolist()
        wanted = int(random.integers(1, 20))
        groups = balanced_groups(sizes, wanted)
        assert [i for group in groups for i in group] == list(range(len(sizes)))
        assert all(groups) and len(groups) <= wanted
        mean_size = sum(sizes) / wanted
        assert max(sum(sizes[i] for i in group) for group in groups) <= mean_size + max(sizes)


def test_reads_json_lines_gzip_and_documents_by_line(tmp_path, vocabulary):
    texts = ["Baba bace. Babi bafo.", "Cece ceba.", "Didi."]
    rows = "".join(json.dumps({"body": text, "id": 1}) + "\n" for text in texts)
    _write(tmp_path / "a" / "x.jsonl.gz", gzip.compress(rows.encode()))
    _write(tmp_path / "b" / "x.txt", "\n".join(texts))
    _write(tmp_path / "c" / "x.txt", "\n\n".join(texts))
    for folder, settings in (
        ("a", {"json_field": "body"}),
        ("b", {"document_unit": "line"}),
        ("c", {"document_unit": "blank-line"}),
    ):
        output = str(tmp_path / f"out_{folder}")
        _prepare(tmp_path, vocabulary, files=f"{folder}/*", output=output, **settings)
        assert [len(document) for document in _documents(Path(output))] == [2, 1, 1]


def test_dropped_documents_are_counted_by_reason(tmp_path, vocabulary):
    _write(tmp_path / "text" / "a.txt", "Baba bace babi.")
    _write(tmp_path / "text" / "b.txt", "12345 6789 / 2344 5 % 33")
    _write(tmp_path / "text" / "c.txt", "Cece ceba cedi.")
    manifest = _prepare(tmp_path, vocabulary)
    assert manifest.counts.documents == 2 and manifest.counts.sentences == 2
    assert manifest.dropped == {"few letters": 1}
    assert _documents(tmp_path / "prepared")[1] == [
        load_tokenizer(vocabulary).encode("cece ceba cedi.")
    ]


def test_sentences_without_tokens_are_left_out(vocabulary):
    engine = load_tokenizer(vocabulary)
    ids, ends = encode_sentences(["baba bace", "", "\u200d", "cece"], engine)
    assert ids.tolist() == engine.encode("baba bace cece") and ends.tolist() == [2, 3]
    ids, ends = encode_sentences([], engine)
    assert len(ids) == len(ends) == 0 and NO_TOKENS


@pytest.mark.parametrize("workers", [1, 2])
def test_invalid_bytes_raise_with_file_and_offset(tmp_path, vocabulary, workers):
    write_text(tmp_path / "text", num_documents=3)
    _write(tmp_path / "text" / "bad.txt", b"Baba caf\xe9 bace." + 40 * b" Cece ceba.")
    with pytest.raises(UserError, match=r"bad\.txt: not utf-8 text at byte 8.*--errors replace"):
        prepare(_config(tmp_path, vocabulary, num_shards=4), num_workers=workers)
    assert not list((tmp_path / "prepared").glob(".*.partial"))
    # No shard was finished with the old settings, so other settings are accepted.
    for shard in (tmp_path / "prepared").glob("documents-*"):
        shard.unlink()
    manifest = prepare(_config(tmp_path, vocabulary, num_shards=4, errors="replace"), num_workers=1)
    assert manifest.counts.documents == 4


@pytest.mark.parametrize(
    "files, message",
    [("none/*.txt", "no file matches"), ("empty/*.txt", "every file is empty")],
)
def test_missing_and_empty_files_raise(tmp_path, vocabulary, files, message):
    _write(tmp_path / "empty" / "a.txt", "")
    with pytest.raises(UserError, match=message):
        _prepare(tmp_path, vocabulary, files=files)
    assert not (tmp_path / "prepared").exists()


def test_corpus_without_documents_raises(tmp_path, vocabulary):
    _write(tmp_path / "text" / "a.txt", "1 2 3 4 5 6 7 8 9\n")
    with pytest.raises(UserError, match=r"no documents to train on.*1 few letters"):
        _prepare(tmp_path, vocabulary)
    assert not (tmp_path / "prepared" / MANIFEST_FILE).exists()


def test_other_settings_for_the_same_folder_raise(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=4)
    _prepare(tmp_path, vocabulary)
    before = _content(tmp_path / "prepared")

    changed = DocumentsConfig(max_part_tokens=100)
    with pytest.raises(UserError, match=r"settings\.max_part_tokens: was 8192, now 100"):
        _prepare(tmp_path, vocabulary, documents=changed)
    other = tmp_path / "other.txt"
    shutil.copy(vocabulary, other)
    with open(other, "a") as file:
        file.write("zulu\n")
    with pytest.raises(UserError, match="tokenizer_fingerprint: was"):
        _prepare(tmp_path, str(other))
    _write(tmp_path / "text" / "9999.txt", "Baba bace.")
    with pytest.raises(UserError, match=r"source\.files: was 4, now 5"):
        _prepare(tmp_path, vocabulary)
    assert _content(tmp_path / "prepared") == before

    manifest = prepare(_config(tmp_path, str(other)), num_workers=1, overwrite=True)
    assert manifest.counts.documents == 5
    assert manifest.tokenizer_fingerprint == load_tokenizer(other).fingerprint
    assert PreparedCorpus(tmp_path / "prepared").num_documents == 5


def test_changed_source_file_raises(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=2)
    _prepare(tmp_path, vocabulary)
    file = tmp_path / "text" / "0000.txt"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(UserError, match="files were added, removed or changed"):
        _prepare(tmp_path, vocabulary)


def test_finished_corpus_is_not_written_again(tmp_path, vocabulary, caplog):
    caplog.set_level("INFO")
    write_text(tmp_path / "text", num_documents=2)
    first = _prepare(tmp_path, vocabulary)
    assert "already prepared" not in caplog.text
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "prepared").glob("[!.]*")}
    assert _prepare(tmp_path, vocabulary) == first
    assert "prepared is already prepared; no shard is missing or damaged" in caplog.text
    assert _prepare(tmp_path, vocabulary, files="text/../text/*") == first
    assert times == {path: path.stat().st_mtime_ns for path in times}


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "index"])
def test_damaged_shard_of_a_finished_corpus_is_repaired(tmp_path, vocabulary, damage, caplog):
    write_text(tmp_path / "text", num_documents=3)
    first = _prepare(tmp_path, vocabulary, num_shards=3)
    before = _content(tmp_path / "prepared")
    shard = first.shards[1]
    path = tmp_path / "prepared" / (shard.index_file if damage == "index" else shard.records_file)
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-9])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with caplog.at_level("WARNING"):
        assert _prepare(tmp_path, vocabulary, num_shards=3) == first
    assert f"{shard.records_file} missing or damaged; written again" in caplog.text
    assert _content(tmp_path / "prepared") == before


def test_manifest_with_wrong_types_raises(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=2)
    manifest = _prepare(tmp_path, vocabulary)
    path = tmp_path / "prepared" / MANIFEST_FILE
    good = json.loads(path.read_text())
    for change in (
        {"vocab_size": "x"},
        {"counts": {**good["counts"], "parts": "3"}},
        {"counts": []},
        {"shards": 5},
        {"shards": [{**good["shards"][0], "counts": {"parts": -1}}]},
        {"shards": [{**good["shards"][0], "records_file": 7}]},
        {"unknown": 1},
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(UserError, match="not a manifest of a prepared corpus"):
            read_manifest(tmp_path / "prepared")
    metadata = next((tmp_path / "prepared").glob("documents-*.json"))
    content = metadata.read_text()
    metadata.write_text(content.replace(f'"parts": {manifest.counts.parts}', '"parts": "x"'))
    path.unlink()
    assert _prepare(tmp_path, vocabulary) == manifest


def test_folder_with_other_files_is_not_changed(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=2)
    _write(tmp_path / "prepared" / "thesis.tex", "my work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"not a prepared corpus \(it contains thesis\.tex\)"):
            prepare(_config(tmp_path, vocabulary), num_workers=1, overwrite=overwrite)
    assert (tmp_path / "prepared" / "thesis.tex").read_text() == "my work"


def test_second_process_on_the_same_folder_raises(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=2)
    with lock_folder(tmp_path / "prepared"):
        with pytest.raises(UserError, match="another process is writing"):
            _prepare(tmp_path, vocabulary)
    assert _prepare(tmp_path, vocabulary).counts.documents == 2


def test_invalid_settings_raise(tmp_path, vocabulary):
    with pytest.raises(ConfigError, match="max_part_tokens is 3"):
        DocumentsConfig(max_part_tokens=3)
    with pytest.raises(ConfigError, match="num_shards is 0"):
        _config(tmp_path, vocabulary, num_shards=0)
    with pytest.raises(ConfigError, match="need a tokenizer"):
        PrepareConfig(source=TextFiles("x"), output="y")
    with pytest.raises(UserError, match="split is 'test', expected one of train"):
        _prepare(tmp_path, vocabulary, split="test")
    write_text(tmp_path / "text", num_documents=2)
    with pytest.raises(UserError, match="unknown sentence splitter 'none'"):
        _prepare(tmp_path, vocabulary, documents=DocumentsConfig(splitter="none"))


def test_shard_with_damaged_metadata_is_written_again(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=2)
    _prepare(tmp_path, vocabulary)
    (tmp_path / "prepared" / MANIFEST_FILE).unlink()
    note = next((tmp_path / "prepared").glob("documents-*.json"))
    note.write_text("{")
    assert _prepare(tmp_path, vocabulary).counts.documents == 2


COMMAND = [sys.executable, "-m", "bert_jax", "prepare", "--shards", "12", "--workers", "2"]


def test_killed_run_continues_to_the_same_bytes(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=24, sentences_per_document=300)
    files = ["--files", str(tmp_path / "text" / "*"), "--tokenizer", vocabulary]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([*COMMAND, *files, "--output", str(killed)], start_new_session=True)
    while not list(killed.glob("documents-*.json")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for_the_end_of_group(process.pid)
    finished = {path: path.stat().st_mtime_ns for path in killed.glob("documents-*.json")}
    assert finished and not (killed / MANIFEST_FILE).exists()
    with pytest.raises(UserError, match=r"unfinished.*run the same `bert-jax prepare` again"):
        read_manifest(killed)
    (killed / ".documents-00011-of-00012.arrayrecord.1.partial").write_bytes(b"half a shard")

    for output in (killed, whole):
        prepare(_config(tmp_path, vocabulary, output=str(output), num_shards=12), num_workers=1)
    assert finished.items() <= {p: p.stat().st_mtime_ns for p in finished}.items()
    assert len(finished) < 12 and _content(killed) == _content(whole)


def _wait_for_the_end_of_group(group: int) -> None:
    """Waits until the workers of a killed run have ended by themselves; fails after a while."""
    for _ in range(300):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("workers outlive the run that they belong to")


def test_full_disk_raises_and_keeps_finished_shards(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=4, sentences_per_document=400)
    program = (
        "import resource, sys\n"
        "from bert_jax.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    files = ["--files", str(tmp_path / "text" / "*"), "--tokenizer", vocabulary]
    output = ["--output", str(tmp_path / "prepared"), "--workers", "1"]
    command = [sys.executable, "-c", program, "prepare", *files, *output]
    full = subprocess.run(command, capture_output=True, text=True)
    assert full.returncode == 1 and "Traceback" not in full.stderr
    assert full.stderr.startswith("error: ") and "run the same command again" in full.stderr
    assert _prepare(tmp_path, vocabulary).counts.documents == 4


def test_text_files_are_prepared_without_tensorflow(tmp_path, vocabulary):
    write_text(tmp_path / "text", num_documents=2)
    program = (
        "import sys\n"
        "from bert_jax.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "heavy = {'tensorflow', 'seqio', 'jax', 'flax', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    arguments = ["prepare", "--files", str(tmp_path / "text" / "*"), "--tokenizer", vocabulary]
    subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            *arguments,
            "--output",
            str(tmp_path / "out"),
            "--workers=1",
        ],
        check=True,
    )
