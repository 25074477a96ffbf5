"""Covers bert_jax/apps/curate/formats/{wikipedia,wikitext,wiki_templates}.py.

The dumps are written here in the format of MediaWiki's export-0.11.
"""

import bz2
import time
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from bert_jax.apps.curate.formats import wikipedia
from bert_jax.apps.curate.formats.wikipedia import ArticleText, WikipediaDump
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import UserError

pytest.importorskip("mwparserfromhell")

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de"><siteinfo>
<base>https://de.wikipedia.org/wiki/Hauptseite</base>
<namespaces><namespace key="6" case="first-letter">Datei</namespace></namespaces></siteinfo>
"""


def page(number: int, title: str, text: str, namespace: int = 0, extra: str = "") -> str:
    return (
        f"<page><title>{title}</title><ns>{namespace}</ns><id>{number}</id>{extra}<revision>"
        f"<id>9{number}</id><model>wikitext</model><text>{escape(text)}</text></revision></page>\n"
    )


PAGES = [
    page(1, "Käse & Brot".replace("&", "&amp;"), "Ein Satz.[[Datei:Brot.jpg|mini|ein Brot]]"),
    page(2, "Diskussion:Käse", "Talk.", namespace=1),
    page(3, "Kaese", "#WEITERLEITUNG [[Käse]]", extra='<redirect title="Käse" />'),
    page(4, "Milch", "Milch ist weiß. {{Unbekannt|x}}"),
    page(5, "Wasser", "Wasser ist naß."),
]


def read(path: Path, **fields) -> list[RawDocument]:
    dump = WikipediaDump(str(path), **fields)
    return [document for file in dump.list_files() for document in dump.read_file(file)]


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("It is {{convert|5|km|mi}} long.", "It is 5 km long."),
        ("{{convert|5|-|10|mi|km|abbr=on}} or {{cvt|6|ft|2|in}}", "5–10 miles or 6 feet 2 inches"),
        ("A {{convert|120|mi|adj=on}} road", "A 120-mi road"),
        ("called {{lang|fr|''été''}} ({{IPA-fr|ete}}; {{lang-ru|лето}})", "called été (лето)"),
        (
            "{{nihongo|Tokyo|東京|Tōkyō}} has {{formatnum:13960236}}",
            "Tokyo (東京, Tōkyō) has 13,960,236",
        ),
        (
            "born {{birth date|1950|1|31}}, {{birth date|df=y|1950|1|31}}",
            "born January 31, 1950, 31 January 1950",
        ),
        ("{{frac|3|1|2}} and {{val|1.5|0.1|e=3|u=km}}", "3 1/2 and 1.5 ± 0.1 × 10^3 km"),
        ("{{As of|2010|lc=y}}, {{circa|1500}}{{sfn|A|2001}}", "as of 2010, c. 1500"),
        ("{{nowrap|a {{abbr|b|c}}}} {{ill|D|de|E}}<ref>x</ref>.<!-- y -->", "a b D."),
        ("A [[b|'''c''']] [[d]]s [[de:E]] [[File:f.png|g [[h]] i]]&nbsp;&amp; j", "A c ds & j"),
        ("[http://a.b text] http://c.d [http://e.f] <nowiki>[[x]]</nowiki>", "text [[x]]"),
        ("a\nb\n\nc ( ; {{ipa|x}}) d", "a b\n\nc d"),
        ("{{Infobox x\n| a = {{convert|1|km}}\n* b}}Text.\n{| class=x\n| cell\n|}", "Text."),
        ("Has:\n* one\n# two\n: three\nAfter.", "Has: After."),
        (
            "Lead.\n== A ==\nText.\n== References ==\nx\n=== Sub ===\ny\n== B ==\nz",
            "Lead.\n\nText.\n\nz",
        ),
    ],
)
def test_wikitext_becomes_sentences_without_holes(wikitext, expected):
    assert ArticleText().convert(wikitext) == expected


def test_lists_and_headings_are_retained_with_all_content():
    article = ArticleText(prose=False)
    text = article.convert("Lead.\n== ''A'' ==\nHas:\n* one\n* two\n== Empty ==\n{{Odd Name|1}}")
    assert text == "Lead.\n\nA\n\nHas:\n\none\n\ntwo"
    assert article.counts == {"template: odd name": 1}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_pages_are_articles_or_have_a_reason(tmp_path, encoding):
    path = tmp_path / "dewiki.xml.bz2"
    path.write_bytes(bz2.compress((HEAD + "".join(PAGES) + "</mediawiki>").encode(encoding)))
    first, talk, redirect, milk, _ = read(path)
    assert (first.key, first.text) == ("1", "Ein Satz.")
    assert first.fields == {
        "title": "Käse & Brot",
        "url": "https://de.wikipedia.org/wiki/K%C3%A4se_%26_Brot",
    }
    assert (talk.reason, redirect.reason) == ("not an article", "redirect")
    assert (milk.text, milk.counts) == ("Milch ist weiß.", {"template: unbekannt": 1})


def test_a_multistream_dump_is_divided_and_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "RANGE_BYTES", 1)
    name = "dewiki-1-pages-articles-multistream"
    streams = [bz2.compress(text.encode()) for text in (HEAD, *PAGES, "</mediawiki>")]
    offsets = [sum(map(len, streams[:n])) for n in range(1, 6)]
    index = "".join(f"{offset}:{n}:Title: {n}\n" for n, offset in enumerate(offsets, 1))
    path = tmp_path / f"{name}.xml.bz2"
    path.write_bytes(b"".join(streams))
    whole = read(path)
    (tmp_path / f"{name}-index.txt.bz2").write_bytes(bz2.compress(index.encode()))
    assert len(WikipediaDump(str(path)).list_files()) == 6
    assert read(path) == whole
    assert read(tmp_path / "*.bz2") == whole  # the index is not read as a dump
    # Cut off in the last stream, and after a page that is complete.
    path.write_bytes(b"".join(streams)[:-9])
    assert [d.key for d in read(path)] == [*(d.key for d in whole), "after page 1"]
    assert read(path)[-1].reason == "truncated archive"
    monkeypatch.setattr(wikipedia, "RANGE_BYTES", 1 << 20)  # one range, which starts at byte 0
    path.write_bytes(b"".join(streams[:-2])[:-9])
    with pytest.raises(UserError, match=r"has a stream at byte .* download both files of one dump"):
        read(path)


def test_a_damaged_dump_gives_pages_up_to_the_damage(tmp_path, monkeypatch):
    path = tmp_path / "cut.xml"
    path.write_text(HEAD + "".join(PAGES)[:-60])
    assert [d.reason for d in read(path)][-2:] == ["", "truncated archive"]
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    path.write_text(f'<!DOCTYPE x [<!ENTITY e0 "lol">{bomb}]><mediawiki><page>&e11;</page>')
    assert [d.reason for d in read(path)] == ["damaged file"]
    monkeypatch.setattr(wikipedia, "MAX_PAGE_BYTES", 1 << 16)
    path.write_text(HEAD + PAGES[0] + page(9, "Big", "word " * 300_000))
    assert [d.reason for d in read(path)] == ["", "too large"]


HOSTILE = ["{{a|", "[[a|", "<b>", "<!--", "{|\n", "[http://a ", "'''''", "(", "=a"]


@pytest.mark.parametrize("markup", HOSTILE)
def test_hostile_wikitext_takes_bounded_time(markup):
    text = markup * 20_000 + "x" * 100_000
    start = time.process_time()
    assert len(ArticleText().convert(text)) <= len(text)
    assert time.process_time() - start < 2
