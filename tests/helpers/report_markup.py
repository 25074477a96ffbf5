"""Parses the HTML of a report and rejects what a browser would only tolerate."""

from html.parser import HTMLParser

_VOID = {"meta"}
_ALONE = {"line", "circle", "rect", "polyline"}  # SVG elements, written as <line .../>
_URL_ATTRIBUTES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}


class Report(HTMLParser):
    """Parses a page; raises AssertionError for unbalanced tags, duplicate ids, external resources.

    Attributes:
      tags: the names of all elements.
      text: all text outside of styles.
      tables: (heading h2, name of the surrounding region) -> its tables, rows of cells of text, the
        first row the head.
      items: the same for lists: name -> value for each item.
      facts: the definitions outside of lists: name -> value.
    """

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.tags, self.text = set[str](), ""
        self.tables: dict[tuple[str, str], list[list[list[str]]]] = {}
        self.items: dict[tuple[str, str], list[dict[str, str]]] = {}
        self.facts: dict[str, str] = {}
        self._open: list[str] = []
        self._ids, self._heading, self._region, self._term = set[str](), "", "", ""
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        assert len(given) == len(attrs), f"<{tag}> has an attribute twice"
        assert not _URL_ATTRIBUTES & given.keys(), f"<{tag} {given}> points elsewhere"
        assert not [name for name in given if name.startswith("on")], f"<{tag} {given}> runs code"
        assert "url(" not in given.get("style", "")
        assert given.get("id") not in self._ids, f"the id {given.get('id')} occurs twice"
        self._ids |= {given["id"]} if "id" in given else set()
        self.tags.add(tag)
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "h2":
            self._heading = ""
        if given.get("role") == "region":
            self._region = given["aria-label"]
        if tag == "svg":
            assert given["role"] == "img" and given["aria-label"]
        section = (self._heading, self._region)
        if tag == "table":
            self.tables.setdefault(section, []).append([])
        if tag == "tr":
            self.tables[section][-1].append([])
        if tag == "th":
            assert given["scope"] in ("row", "col")
        if tag in ("td", "th"):
            self.tables[section][-1][-1].append("")
        if tag == "li":
            self.items.setdefault(section, []).append({})
        if tag == "dt":
            self._term = ""
        if tag == "dd":
            self._definitions(section)[self._term] = ""

    def handle_startendtag(self, tag, attrs):
        assert tag in _ALONE, f"<{tag}/> cannot stand alone"
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> within {self._open}"
        self._open.pop()

    def handle_data(self, data):
        here, section = self._open[-1] if self._open else "", (self._heading, self._region)
        if here == "style":
            assert "url(" not in data and "@import" not in data
            return
        self.text += data
        if here == "h2":
            self._heading += data
        elif "td" in self._open or "th" in self._open:
            self.tables[section][-1][-1][-1] += data
        elif here == "dt":
            self._term += data
        elif here == "dd":
            self._definitions(section)[self._term] += data

    def _definitions(self, section: tuple[str, str]) -> dict[str, str]:
        return self.items[section][-1] if "li" in self._open else self.facts
