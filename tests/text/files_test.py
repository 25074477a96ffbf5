"""Covers bert_jax/text/{files,compression}.py: documents, and errors for unreadable files."""

import bz2
import gzip
import io
import json
import os

import pytest

from bert_jax.errors import UserError
from bert_jax.text import files
from bert_jax.text.files import expand_globs, read_documents, read_stream_lines, read_text


def zstandard_bytes(data: bytes) -> bytes:
    return pytest.importorskip("pyarrow").Codec("zstd").compress(data, asbytes=True)


def test_globs_return_sorted_files_without_duplicates(tmp_path):
    for name in ("b.txt", "a.txt", "deep/c.txt", "odd[1].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = expand_globs([f"{tmp_path}/**/*.txt", f"{tmp_path}/a.txt", f"{tmp_path}/odd[1].txt"])
    assert found == sorted(
        str(tmp_path / n) for n in ("a.txt", "b.txt", "deep/c.txt", "odd[1].txt")
    )


def test_pattern_without_files_raises_and_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match=r"no file matches '.*\*\.csv'"):
        expand_globs([f"{tmp_path}/*.txt", f"{tmp_path}/*.csv"])
    with pytest.raises(UserError, match=r"is a folder; expected files"):
        expand_globs([str(tmp_path)])


def test_missing_file_is_answered_with_a_similar_name(tmp_path):
    (tmp_path / "train.csv").write_text("x")
    with pytest.raises(UserError, match=r"trian\.csv': did you mean 'train\.csv'\? check"):
        expand_globs([str(tmp_path / "trian.csv")])
    with pytest.raises(UserError, match=r"no such file; did you mean 'train\.csv'\? check"):
        read_text(tmp_path / "trian.csv")
    with pytest.raises(UserError, match=r"no such file; check the spelling"):
        read_text(tmp_path / "none" / "other.csv")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_is_removed(tmp_path, mark):
    path = tmp_path / "a.txt"
    path.write_bytes(mark + "é\ufeffx".encode())
    assert read_text(path) == "é\ufeffx"


def test_other_encodings(tmp_path):
    path = tmp_path / "a.txt"
    for encoding in ("latin-1", "utf-16", "utf-16-be", "cp1252"):
        path.write_bytes("Grüße\nzwei".encode(encoding))
        assert read_text(path, encoding=encoding) == "Grüße\nzwei"
        assert [t for _, t in read_documents(path, encoding=encoding, document_unit="line")] == [
            "Grüße",
            "zwei",
        ]


@pytest.mark.parametrize("zipped", [False, True])
def test_byte_offset_of_bad_bytes_in_a_long_file(tmp_path, zipped, monkeypatch):
    # Small chunks, so that characters cross their boundaries.
    monkeypatch.setattr(files, "CHUNK_BYTES", 7)
    good = "añb力c" * 50
    data = good.encode() + b"\xe9t\xe9 " + good.encode()
    path = tmp_path / ("a.txt.gz" if zipped else "a.txt")
    path.write_bytes(gzip.compress(data) if zipped else data)
    location = f"byte {len(good.encode())}" + (r" \(after unzipping\)" if zipped else "")
    with pytest.raises(UserError, match=rf"a.txt.*not utf-8 text at {location}: 0xe9") as caught:
        read_text(path)
    assert str(caught.value).endswith("convert the file: iconv -f latin-1 -t utf-8 FILE > NEW_FILE")
    with pytest.raises(UserError) as caught:
        read_text(path, encoding="utf-8")
    assert str(caught.value).endswith("has another encoding, set it with --encoding latin-1")
    with pytest.raises(UserError, match=r"--encoding latin-1; to .*, use --errors replace"):
        read_text(path, encoding="utf-8", errors="strict")
    assert read_text(path, errors="replace") == f"{good}\ufffdt\ufffd {good}"
    assert read_text(path, encoding="latin-1").count("été") == 1
    with pytest.raises(UserError, match=location):
        list(read_documents(path, document_unit="line"))


def test_incomplete_character_at_the_end_of_the_file_raises(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("ab力".encode()[:-1])
    with pytest.raises(UserError, match="at byte 2: 0xe5"):
        read_text(path)


def test_utf16_is_suggested_for_its_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(UserError, match="iconv -f utf-16"):
        read_text(path)


def test_unreadable_files_raise(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_text(tmp_path / "nowhere.txt")
    (tmp_path / "fake.gz").write_text("plain")
    with pytest.raises(UserError, match="damaged gzip file"):
        read_text(tmp_path / "fake.gz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text " * 1000)[:-12])
    with pytest.raises(UserError, match="damaged gzip file"):
        read_text(tmp_path / "cut.gz")
    with pytest.raises(UserError, match="unknown encoding: klingon"):
        read_text(tmp_path / "fake.gz", encoding="klingon")
    with pytest.raises(UserError, match="hex"):
        read_text(tmp_path / "fake.gz", encoding="hex")
    with pytest.raises(UserError, match="unknown error handler"):
        read_text(tmp_path / "fake.gz", errors="ignroe")


@pytest.mark.parametrize(
    "documents_by, expected",
    [
        ("file", [("a.txt:1", "one\r\ntwo\n\n \nthree\n")]),
        ("blank-line", [("a.txt:1", "one\ntwo"), ("a.txt:2", "three")]),
        ("line", [("a.txt:1", "one"), ("a.txt:2", "two"), ("a.txt:5", "three")]),
    ],
)
def test_documents_of_plain_text(tmp_path, documents_by, expected, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 2)
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\n\n \nthree\n")
    assert list(read_documents(path, document_unit=documents_by)) == expected


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson"])
def test_json_lines(tmp_path, name):
    rows = [{"text": "Eins.\nZwei 力"}, {"text": "  "}, {"text": "drei", "n": 1}]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert list(read_documents(path)) == [(f"{name}:1", "Eins.\nZwei 力"), (f"{name}:3", "drei")]


def test_invalid_json_lines_raise(tmp_path):
    path = tmp_path / "a.jsonl"
    for line, message in [
        ('{"text": "a', r"a.jsonl, line 2: not valid JSON"),
        ('{"body": "a"}', r"line 2: no text in the field 'text' \(found fields \['body'\]\)"),
        ('{"text": 3}', r"line 2: the field 'text' is a int; expected text"),
        ("[" * 10**5, r"line 2: not valid JSON \(maximum recursion depth"),
        ("9" * 5000, r"line 2: not valid JSON \(Exceeds the limit"),
        (r'{"text": "a \udfff b"}', r"line 2: '\\udfff' is half of a surrogate pair"),
        ("[1]", r"found a list"),
    ]:
        path.write_text('{"text": "fine"}\n' + line)
        with pytest.raises(UserError, match=message):
            list(read_documents(path))
    path.write_text('{"body": "a"}')
    assert list(read_documents(path, json_field="body")) == [("a.jsonl:1", "a")]


def test_lone_surrogates_are_replaced_on_request(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "a \udfff b \ud83d\ude00"}')
    (document,) = read_documents(path, errors="replace")
    assert document == ("a.jsonl:1", "a ? b \N{GRINNING FACE}")


def test_document_and_line_sizes_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_DOCUMENT_CHARACTERS", 3 << 20)
    monkeypatch.setattr(files, "_MAX_TEXT_CHARACTERS", 3 << 20)
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"x" * (8 << 20)))
    for unit in ("file", "line", "blank-line"):
        kind = "document" if unit == "file" else "line"
        with pytest.raises(UserError, match=rf"bomb\.txt\.gz, line 1: a {kind} of more than 3"):
            list(read_documents(path, document_unit=unit))
    with pytest.raises(UserError, match=r"has more than 3,145,728 characters"):
        read_text(path)
    path.write_bytes(gzip.compress(b"\n".join([b"y" * (2 << 20)] * 4)))
    lines = [text for _, text in read_documents(path, document_unit="line")]
    assert lines == ["y" * (2 << 20)] * 4


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("utf-16", "use utf-16-le or utf-16-be"),
        ("undefined", "undefined encoding.*expected an encoding such as"),
        ("punycode", "not punycode text"),
    ],
)
def test_text_of_another_encoding_raises(tmp_path, encoding, message):
    path = tmp_path / "a.txt"
    path.write_bytes(b"no byte-order mark - here")
    with pytest.raises(UserError, match=message):
        read_text(path, encoding=encoding)


@pytest.mark.parametrize(
    ("suffix", "compress", "kind"),
    [
        (".gz", gzip.compress, "gzip"),
        (".bz2", bz2.compress, "bzip2"),
        (".zst", zstandard_bytes, "Zstandard"),
    ],
)
def test_compressed_files_of_several_members(tmp_path, suffix, compress, kind):
    path = tmp_path / f"a.jsonl{suffix}"
    members = [compress(b'{"text": "one %d"}\n' % n) for n in range(3)]
    path.write_bytes(b"".join(members))
    assert [text for _, text in read_documents(path)] == ["one 0", "one 1", "one 2"]
    path.write_bytes(b"".join(members)[:-4])
    with pytest.raises(UserError, match=rf"a\.jsonl\{suffix}: damaged {kind} file \("):
        list(read_documents(path))
    path.write_bytes(b"plain text")
    with pytest.raises(UserError, match=f"damaged {kind} file"):
        list(read_documents(path))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-be", "iso2022_jp"])
def test_lines_of_a_stream_in_any_encoding(encoding, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 3)  # characters cross the boundaries of chunks
    # In UTF-16, 上 (U+4E0A) contains the byte of a line feed. Only "\n" ends a line.
    content = "上上\r\n\n文\rと" + ("\u2028" if encoding != "iso2022_jp" else "") + "\nlast"
    lines = list(read_stream_lines(io.BytesIO(content.encode(encoding)), "in", encoding=encoding))
    assert lines == [line.removesuffix("\r") for line in content.split("\n")]


def test_lines_of_a_stream_are_available_at_once():
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as sender:
        lines = read_stream_lines(stream, "in")
        for text in ("first", "second"):
            sender.write(f"{text}\n".encode())
            assert next(lines) == text
        sender.write(b"b\xff\n")
        with pytest.raises(UserError, match="in: not utf-8 text at byte 14: 0xff"):
            next(lines)


def test_stream_that_cannot_be_read_raises(tmp_path):
    with open(tmp_path / "a.txt", "wb+", buffering=0) as stream:
        folder = os.open(tmp_path, os.O_RDONLY)
        os.dup2(folder, stream.fileno())
        os.close(folder)
        with pytest.raises(UserError, match=r"standard input: cannot be read \(Is a directory\)"):
            list(read_stream_lines(stream, "standard input"))


def test_names_that_are_no_regular_files_are_explained(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match="pipe is not a regular file"):
        expand_globs([str(tmp_path / "pipe")])
    with pytest.raises(UserError, match="loop is a broken symbolic link"):
        expand_globs([str(tmp_path / "loop")])


def test_real_latin1_speech_raises_with_its_byte_offset(shared):
    path = shared / "text/inaugural/2005-Bush.txt"
    with pytest.raises(UserError, match=r"2005-Bush.txt: not utf-8 text at byte \d+: 0x"):
        read_text(path)
    assert "freedom" in read_text(path, encoding="latin-1")
