"""Reads the articles of a Wikipedia dump: XML pages, and wikitext without its markup.

Text passages are kept. References, tables, images, formulas and the sections after the article
("References", "External links") are left out; in prose, lists and headings as well, as in the data
of BERT (Devlin et al. 2019, section 3.1).

A multistream dump (`...-multistream.xml.bz2`) whose index (`...-multistream-index.txt.bz2`) is in
the same folder is divided into ranges of bytes, which are read in parallel.
"""

import bz2
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from bert_jax.apps.curate.formats.files import DAMAGED, TOO_LARGE, FilePatterns, xml_events
from bert_jax.apps.curate.formats.wiki_templates import TemplateArguments, template_text
from bert_jax.data.corpus.source_files import SourceFile
from bert_jax.data.corpus.sources import RawDocument
from bert_jax.errors import ConfigError, MissingExtraError, UserError
from bert_jax.text.files import CHUNK_BYTES, DamagedFileError, read_chunks

_HEADING = re.compile(r"^(={1,6})[ \t]*([^=\n].{0,500}?)[ \t]*\1[ \t]*$", re.MULTILINE)
# Sections that contain no text of the article, in lower case.
_END_SECTIONS = frozenset(
    {
        *("references", "external links", "further reading", "see also", "notes", "bibliography"),
        *("sources", "citations", "footnotes", "notes and references", "works cited", "gallery"),
        *("references and notes", "external links and references", "literature", "discography"),
        *("einzelnachweise", "weblinks", "literatur", "siehe auch", "anmerkungen", "quellen"),
        *("références", "liens externes", "voir aussi", "bibliographie", "notes et références"),
        *("referencias", "enlaces externos", "véase también", "bibliografía", "notas"),
        *("note", "collegamenti esterni", "voci correlate", "bibliografia", "altri progetti"),
        *("referências", "ligações externas", "ver também", "externe links", "zie ook", "bronnen"),
        *("примечания", "ссылки", "литература", "см. также", "външни препратки", "източници"),
        *(
            "przypisy",
            "linki zewnętrzne",
            "zobacz też",
            "脚注",
            "外部リンク",
            "関連項目",
            "参考文献",
        ),
        *("参考资料", "外部链接", "参见", "各주", "각주", "외부 링크", "같이 보기"),
    }
)
_SKIPPED_TAGS = frozenset(
    {
        *("ref", "references", "table", "gallery", "timeline", "imagemap", "score", "hiero"),
        *("math", "chem", "ce", "templatestyles", "syntaxhighlight", "source", "pre", "graph"),
        *("noinclude", "mapframe", "maplink", "indicator", "section", "style", "script"),
    }
)
# Tags that are in the text of nearly every article, and that stand for no text.
_UNCOUNTED_TAGS = frozenset(
    {"ref", "references", "templatestyles", "noinclude", "section", "style"}
)
_LIST_TAGS = frozenset({"li", "dd", "dt"})
# Begins a line of a list; does not occur in XML.
_LIST_MARK = "\x01"
_IMAGE_NAMESPACES = frozenset({"file", "image", "media", "category"})
_PREFIX = re.compile(r"[a-z][a-z-]{1,11}:[^\s]", re.ASCII)
_MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
_QUOTES = re.compile(r"'{2,}")
_SPACES = re.compile(r"[^\S\n]+")
_PARENTHESIS_START = re.compile(r"([(（])(?:[\s,;:、]|&nbsp;)+")
_PARENTHESIS_END = re.compile(r"[\s,;:、]+([)）])")
_EMPTY_PARENTHESES = re.compile(r"\s*(?:\(\s*\)|（\s*）|\[\s*\])")
_SPACE_BEFORE = re.compile(r"[^\S\n]+([,.;!?](?:\s|$))", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_MARKUP = re.compile(
    r"(?P<open>\{\{|\{\||\[|<(?!br|hr|li|wbr)[a-z](?![^<>]{0,500}/>))|\}\}|\|\}|\]|</",
    re.IGNORECASE,
)
# A line of 100,000 equals signs that is no heading crashes mwparserfromhell 0.7.2.
_EQUALS = re.compile(r"^=+", re.MULTILINE)
_MAX_UNCLOSED = 200
_BLANK_LINES = re.compile(r"\n\s*\n")
_MAX_DEPTH = 40


@dataclass
class ArticleText:
    """Collects what was left out of articles.

    Attributes:
      file_namespaces: names of the namespaces for images and categories, in lower case.
      prose: whether lists and headings are left out too.
      counts: templates and tags that were left out, by name.
    """

    prose: bool = True
    file_namespaces: frozenset[str] = _IMAGE_NAMESPACES
    counts: Counter[str] = field(default_factory=Counter)

    def convert(self, wikitext: str) -> str:
        """Returns the paragraphs of an article, separated by blank lines."""
        parser = _parser()
        paragraphs: list[str] = []
        for heading, body in _sections(_COMMENT.sub("", wikitext.replace(_LIST_MARK, ""))):
            if _num_unclosed(body) > _MAX_UNCLOSED:
                self.counts["section with unclosed markup"] += 1
                continue
            # One section at a time: the parsed form takes about a hundred times the memory.
            code = parser.parse(_EQUALS.sub("", body), skip_style_tags=True)
            found = list(filter(None, self._paragraphs("".join(self._render(code, 0)))))
            if heading and found and not self.prose:
                paragraphs.append(_QUOTES.sub("", parser.parse(heading).strip_code()).strip())
            paragraphs += found
        return "\n\n".join(paragraphs)

    def _paragraphs(self, text: str) -> Iterator[str]:
        text = _QUOTES.sub("", _MAGIC_WORD.sub("", text))
        for block in _BLANK_LINES.split(text):
            prose: list[str] = []
            for line in block.split("\n"):
                is_list = line.startswith(_LIST_MARK)
                if is_list and self.prose:
                    continue
                line = _tidy(line.replace(_LIST_MARK, ""))
                if is_list:
                    yield _tidy(" ".join(prose))
                    prose = []
                    yield line
                else:
                    prose.append(line)
            yield _tidy(" ".join(prose))

    def _render(self, code: Any, depth: int) -> Iterator[str]:
        """Yields the text of parsed wikitext; `depth` bounds the recursion on hostile pages."""
        if depth > _MAX_DEPTH:
            self.counts["wikitext nested too deeply"] += 1
            return
        for node in code.nodes:
            kind = type(node).__name__
            if kind == "Text":
                yield str(node.value)
            elif kind == "Wikilink":
                yield from self._link(node, depth)
            elif kind == "Template":
                yield self._template(node, depth)
            elif kind == "Tag":
                yield from self._tag(node, depth)
            elif kind == "ExternalLink":
                if node.brackets and node.title is not None:
                    yield from self._render(node.title, depth + 1)
            elif kind == "HTMLEntity":
                yield _entity(node)
            elif kind == "Argument" and node.default is not None:
                yield from self._render(node.default, depth + 1)

    def _text(self, code: Any, depth: int) -> str:
        return "".join(self._render(code, depth + 1)).strip()

    def _link(self, node: Any, depth: int) -> Iterator[str]:
        title = str(node.title).strip()
        if title.partition(":")[0].strip().lower() in self.file_namespaces:
            return
        if node.text is not None:
            yield from self._render(node.text, depth + 1)
        elif not _PREFIX.match(title):  # [[de:Titel]] is a link to another wiki, not in the text
            yield self._text(node.title, depth).removeprefix(":")

    def _template(self, node: Any, depth: int) -> str:
        name = _SPACES.sub(" ", self._text(node.name, depth).replace("_", " ")).lower()
        positional: list[str] = []
        named: dict[str, str] = {}
        # Infoboxes and the like are never rewritten, so their arguments need not be.
        if (known := template_text(name, TemplateArguments((), {}))) is None:
            if "\n" not in name:
                self.counts[f"template: {name[:60]}"] += 1
            return ""
        for parameter in node.params:
            value = self._text(parameter.value, depth)
            if parameter.showkey:
                named[str(parameter.name).strip()] = value
            else:
                positional.append(value)
        text = template_text(name, TemplateArguments(tuple(positional), named))
        return known if text is None else text.replace(_LIST_MARK, " ")

    def _tag(self, node: Any, depth: int) -> Iterator[str]:
        name = str(node.tag).strip().lower()
        if name in _SKIPPED_TAGS:
            if name not in _UNCOUNTED_TAGS:
                self.counts[f"tag: {name}"] += 1
        elif name in _LIST_TAGS and node.wiki_markup:
            yield _LIST_MARK
        elif name == "br":
            yield " "
        elif name in ("hr", "p"):
            yield "\n\n"
            yield from self._render(node.contents, depth + 1) if node.contents else ()
        elif node.contents is not None:
            yield from self._render(node.contents, depth + 1)


def _sections(wikitext: str) -> Iterator[tuple[str, str]]:
    """Yields (heading, body) of the sections that have text; the first heading is ""."""
    headings = list(_HEADING.finditer(wikitext))
    yield "", wikitext[: headings[0].start()] if headings else wikitext
    skipped_level = 7
    for n, match in enumerate(headings):
        level, title = len(match[1]), match[2]
        if level > skipped_level:
            continue
        skipped_level = 7
        if title.strip("'").strip().lower() in _END_SECTIONS:
            skipped_level = level
            continue
        end = headings[n + 1].start() if n + 1 < len(headings) else len(wikitext)
        yield title, wikitext[match.end() : end]


def _num_unclosed(wikitext: str) -> int:
    """Returns how many brackets, braces and tags are not closed: parsing takes their square."""
    counts = dict.fromkeys("{[<", 0)
    for match in _MARKUP.finditer(wikitext):
        kind = {"}": "{", "|": "{", "]": "["}.get(match[0][0], match[0][0])
        counts[kind] = max(0, counts[kind] + (1 if match["open"] else -1))
    return sum(counts.values())


def _entity(node: Any) -> str:
    try:
        return str(node.normalize())
    except (ValueError, OverflowError):
        return ""


def _tidy(line: str) -> str:
    """Removes the spaces, commas and parentheses that were around what was left out."""
    if "(" in line or "（" in line or "[" in line:
        line = _PARENTHESIS_START.sub(r"\1", line)
        line = _PARENTHESIS_END.sub(r"\1", line)
        line = _EMPTY_PARENTHESES.sub("", line)
    return _SPACE_BEFORE.sub(r"\1", _SPACES.sub(" ", line)).strip()


def _parser() -> Any:
    try:
        import mwparserfromhell
    except ImportError:
        raise MissingExtraError("dumps of Wikipedia need mwparserfromhell", "curate") from None
    return mwparserfromhell


NOT_AN_ARTICLE, REDIRECT = "not an article", "redirect"
TRUNCATED = "truncated archive"

RANGE_BYTES = 16 << 20
"""About this many compressed bytes of a multistream dump are one part."""
MAX_PAGE_BYTES = 64 << 20
"""MediaWiki limits a page to 2 MiB; a dump with a larger one is damaged."""
# The kinds of namespaces whose links show no text: files, media and categories.
_FILE_NAMESPACES = ("-2", "6", "14")
_CONTENT = ("prose", "all")


@dataclass(frozen=True)
class FileRange(SourceFile):
    """Describes the bytes from `start` to `end` of a file: whole streams of a multistream dump."""

    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class WikipediaDump(FilePatterns):
    """Names dumps of Wikipedia: `WikipediaDump("enwiki-*-multistream*.xml*.bz2")`.

    `content` is "prose" for text passages only, as BERT used them, or "all" for headings and lists
    too. Pages of other namespaces and redirects are dropped with a reason. The shards have the
    title and the address of each article, which the license CC BY-SA asks for.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ("mwparserfromhell",)
    # "prose", or "all" with headings and lists.
    content: Literal["prose", "all"] = field(default="prose", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.content not in _CONTENT:
            raise ConfigError(f"content is {self.content!r}, expected one of {_CONTENT}")

    def list_files(self) -> tuple[SourceFile, ...]:
        """Returns the files, or the ranges of bytes of multistream dumps with an index."""
        files: list[SourceFile] = []
        for file in super().list_files():
            if "-multistream-index" not in Path(file.path).name:
                files += _ranges(file)
        return tuple(files)

    def read_file(self, file: SourceFile) -> Iterator[RawDocument]:
        """Yields the pages of a dump; what follows damage is one document with a reason."""
        site = _Site()
        try:
            for page in _pages(file, site):
                yield self._document(page, site)
        except (DamagedFileError, ParseError, _TooLargeError) as error:
            reason = TOO_LARGE if isinstance(error, _TooLargeError) else DAMAGED
            if site.num_pages and reason == DAMAGED:
                reason = TRUNCATED
            yield RawDocument(key=f"after page {site.num_pages}", reason=reason)

    def _document(self, page: Element, site: "_Site") -> RawDocument:
        texts = {_local_name(child): child.text or "" for child in page}
        document = RawDocument(key=texts.get("id", "").strip() or f"page {site.num_pages}")
        revisions = [child for child in page if _local_name(child) == "revision"]
        parts = {_local_name(part): part.text or "" for part in revisions[-1]} if revisions else {}
        wikitext = parts.get("text", "")
        if texts.get("ns", "0").strip() != "0" or parts.get("model", "wikitext") != "wikitext":
            return replace(document, reason=NOT_AN_ARTICLE)
        if "redirect" in texts or wikitext.lstrip()[:9].lower() == "#redirect":
            return replace(document, reason=REDIRECT)
        article = ArticleText(
            prose=self.content == "prose", file_namespaces=frozenset(site.file_namespaces)
        )
        text = article.convert(wikitext)
        title = texts.get("title", "")
        fields = {"title": title}
        if site.base:
            fields["url"] = f"{site.base}/{quote(title.replace(' ', '_'), safe='/:()')}"
        return replace(document, text=text, fields=fields, counts=article.counts)


@dataclass
class _Site:
    """Holds what the head of a dump says about the wiki, and counts its pages."""

    base: str = ""
    file_namespaces: set[str] = field(
        default_factory=lambda: {"file", "image", "media", "category"}
    )
    num_pages: int = 0

    def read(self, siteinfo: Element) -> None:
        """Reads the address of the wiki, and the names of its namespaces."""
        for element in siteinfo.iter():
            name, text = _local_name(element), element.text or ""
            if name == "base":
                self.base = text.strip().rpartition("/")[0]
            elif name == "namespace" and element.get("key") in _FILE_NAMESPACES:
                self.file_namespaces.add(text.strip().lower())


class _TooLargeError(Exception):
    pass


def _pages(file: SourceFile, site: _Site) -> Iterator[Element]:
    """Yields the element of each page; reads the head of the dump into `site`."""
    parser = XMLPullParser(events=("start", "end"))
    if isinstance(file, FileRange):
        if file.start:
            _read_head(file, site)
            parser.feed(b"<mediawiki>")
        raw_chunks = _range_chunks(file.path, file.start, file.end)
    else:
        raw_chunks = read_chunks(file.path)
    root: Element | None = None
    page_bytes = 0
    for chunk in raw_chunks:
        # Small steps: an article has 10 kB, and all that is fed is in memory at once.
        for start in range(0, len(chunk), 1 << 16):
            data = chunk[start : start + (1 << 16)]
            page_bytes += len(data)
            parser.feed(data)
            for event, element in xml_events(parser):
                if root is None:
                    root = element
                if event == "end" and _local_name(element) in ("page", "siteinfo"):
                    page_bytes = 0
                    if _local_name(element) == "page":
                        site.num_pages += 1
                        yield element
                    else:
                        site.read(element)
                    root.clear()
            if page_bytes > MAX_PAGE_BYTES:
                raise _TooLargeError
    if not isinstance(file, FileRange):
        parser.close()  # raises if the file ends in the middle


def _local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _read_head(file: FileRange, site: _Site) -> None:
    """Reads the first stream of a multistream dump, which has the names of the namespaces."""
    parser = XMLPullParser(events=("end",))
    for chunk in _range_chunks(file.path, 0, file.start):
        parser.feed(chunk)
        for _, element in xml_events(parser):
            if _local_name(element) == "siteinfo":
                site.read(element)
                return


def _range_chunks(path: str, start: int, end: int) -> Iterator[bytes]:
    """Yields the decompressed bytes of the bzip2 streams from `start` to `end`.

    Raises:
      DamagedFileError: a stream is damaged, or does not end at `end`.
    """
    decompressor, is_in_stream = bz2.BZ2Decompressor(), False
    with open(path, "rb") as file:
        file.seek(start)
        while start < end and (data := file.read(min(CHUNK_BYTES, end - start))):
            start += len(data)
            while data:
                try:
                    yield decompressor.decompress(data)
                except OSError as error:
                    raise DamagedFileError(f"{path}: damaged bzip2 file ({error})") from None
                data, is_in_stream = b"", not decompressor.eof
                if decompressor.eof:
                    data = decompressor.unused_data
                    decompressor = bz2.BZ2Decompressor()
    if start < end:
        raise DamagedFileError(f"{path}: ends at byte {start}, expected {end}; download it again")
    if is_in_stream:
        raise DamagedFileError(
            f"{path}: no bzip2 stream ends at byte {end}; download the dump, and its index if it "
            "has one, of the same date"
        )


def _ranges(file: SourceFile) -> list[SourceFile]:
    """Divides a multistream dump where its index has streams; [file] without an index."""
    path = Path(file.path)
    name = path.name.replace("-multistream", "-multistream-index", 1).replace(".xml", ".txt", 1)
    index = path.with_name(name)
    if "-multistream" not in path.name or path.suffix != ".bz2" or not index.is_file():
        return [file]
    starts, offset = [0], 0
    for offset in _stream_offsets(index):
        if offset - starts[-1] >= RANGE_BYTES:
            starts.append(offset)
    ends = [*starts[1:], file.size_bytes]
    if offset >= file.size_bytes:
        raise UserError(
            f"{index}: has a stream at byte {offset}, after the end of {path.name}; download "
            "both files of one dump"
        )
    return [
        FileRange(file.path, end - start, file.version, start, end)
        for start, end in zip(starts, ends, strict=True)
    ]


def _stream_offsets(index: Path) -> Iterator[int]:
    """Yields the offsets of an index: lines of "offset:page id:title", ascending."""
    rest, previous = b"", 0
    for chunk in read_chunks(index):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number = line.partition(b":")[0]
            if not number.isdigit():
                raise UserError(f"{index}: not an index of a multistream dump: found {line[:50]!r}")
            if (offset := int(number)) > previous:
                previous = offset
                yield offset
