"""Converts the wikitext of an article to plain text, with mwparserfromhell.

Text passages are kept. References, tables, images, formulas and the sections after the article
("References", "External links") are left out; in prose, lists and headings as well, as in the data
of BERT (Devlin et al. 2019, section 3.1).
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bert_jax.apps.curate.formats.wiki_templates import TemplateArguments, template_text
from bert_jax.errors import MissingExtraError

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
