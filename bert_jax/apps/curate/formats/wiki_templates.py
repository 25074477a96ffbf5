"""Writes the text of Wikipedia's templates that are part of sentences, such as {{convert|5|km}}.

A template is code that is stored on the wiki, so a dump has only its name and its arguments.
Leaving out every template removes numbers, foreign words and dates from sentences ("a length of
and"). The table below rewrites the frequent ones. Templates without text, such as references and
links to other articles, become ""; for all other names `template_text` returns None.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_UNITS: dict[str, str] = dict(
    [
        *(("acre", "acres"), ("c", "°C"), ("cuft", "cubic feet"), ("f", "°F")),
        *(("foot", "feet"), ("g/cm3", "g/cm³"), ("inch", "inches"), ("k", "K"), ("km2", "km²")),
        *(("km3", "km³"), ("lb", "pounds"), ("lbs", "pounds"), ("m2", "m²"), ("m3", "m³")),
        *(("mi", "miles"), ("mile", "miles"), ("mi2", "square miles"), ("mpg-us", "mpg")),
        *(("nmi", "nautical miles"), ("sqft", "square feet"), ("sqkm", "km²")),
        *(("sqmi", "square miles"), ("yd", "yards"), ("ft", "feet"), ("in", "inches")),
    ]
)
_RANGE_WORDS: dict[str, str] = dict(
    [
        *(("-", "–"), ("–", "–"), ("and", " and "), ("to", " to "), ("or", " or "), ("x", " × ")),
        *(("×", " × "), ("by", " by "), ("to(-)", " to "), ("+/-", " ± "), ("±", " ± ")),
    ]
)
_NUMBER = re.compile(r"[-+−]?[\d.,/⁄]+(?:e[-+]?\d+)?$")


@dataclass(frozen=True, slots=True)
class TemplateArguments:
    """Holds the arguments of a template as text: `positional` without names, `named` with names."""

    positional: tuple[str, ...]
    named: Mapping[str, str]

    def get(self, *names: str | int) -> str:
        """Returns the first of these arguments that is not empty; numbers count from 1."""
        for name in names:
            if isinstance(name, str):
                value = self.named.get(name, "")
            elif name <= len(self.positional):
                value = self.positional[name - 1]
            else:
                value = self.named.get(str(name), "")
            if value:
                return value
        return ""


def template_text(name: str, arguments: TemplateArguments) -> str | None:
    """Returns the text of a template in a sentence; None if the table does not have it.

    Args:
      name: in lower case, with spaces for underscores.
    """
    function, colon, value = name.partition(":")
    if colon and not name.startswith("#"):
        if function == "formatnum":
            return _group_digits(value)
        return {"lc": value, "uc": value.upper()}.get(function, "" if function in _SILENT else None)
    if write := _TABLE.get(name):
        return write(arguments)
    if name.startswith("lang-"):
        return arguments.get("text", 1)
    if name in _SILENT or name.startswith(_SILENT_PREFIXES) or name.endswith(_SILENT_SUFFIXES):
        return ""
    return None


def _first(arguments: TemplateArguments) -> str:
    return arguments.get("text", "content", 1)


def _last(arguments: TemplateArguments) -> str:
    return arguments.get("text") or (arguments.positional[-1] if arguments.positional else "")


def _joined(separator: str) -> Callable[[TemplateArguments], str]:
    return lambda arguments: separator.join(filter(None, arguments.positional))


def _constant(text: str) -> Callable[[TemplateArguments], str]:
    return lambda arguments: text


def _prefixed(prefix: str) -> Callable[[TemplateArguments], str]:
    return lambda arguments: prefix + arguments.get(1)


def _convert(arguments: TemplateArguments) -> str:
    """Writes the first quantity: "5 km", "5–10 miles", "5 feet 8 inches", with adj=on "5-mile"."""
    values = [value.strip() for value in arguments.positional]
    text, unit, n = "", "", 0
    while n < len(values) and _NUMBER.match(values[n]):
        text += values[n]
        n += 1
        if n < len(values) and values[n] in _RANGE_WORDS:
            text += _RANGE_WORDS[values[n]]
            n += 1
            continue
        unit = values[n] if n < len(values) else ""
        # {{convert|5|ft|8|in}}: a second number with a unit, of the same quantity.
        compound = unit in ("ft", "lb", "st") and n + 2 < len(values) and values[n + 2].isalpha()
        if not (compound and _NUMBER.match(values[n + 1])):
            break
        text += f" {_UNITS.get(unit, unit)} "
        n += 1
    if arguments.named.get("adj") in ("on", "mid", "pre"):
        return f"{text}-{unit}" if unit else text
    return f"{text} {_UNITS.get(unit.lower(), unit)}".strip()


def _fraction(arguments: TemplateArguments) -> str:
    values = [value for value in arguments.positional if value]
    if len(values) == 3:
        return f"{values[0]} {values[1]}/{values[2]}"
    return "/".join(values) if len(values) == 2 else "1/" + "".join(values)


def _value(arguments: TemplateArguments) -> str:
    """Writes {{val|1.5|0.1|e=3|u=km}} as "1.5 ± 0.1 × 10^3 km"."""
    number = " ± ".join(value for value in arguments.positional[:2] if value)
    exponent, unit = arguments.get("e"), arguments.get("u", "ul", "upl", "up")
    return f"{number}{f' × 10^{exponent}' if exponent else ''} {unit}".strip()


def _group_digits(number: str) -> str:
    whole, point, decimals = number.replace(",", "").partition(".")
    if not whole.lstrip("-−").isdecimal() or not whole.isascii():
        return number
    return f"{int(whole):,}{point}{decimals}"


def _date(arguments: TemplateArguments) -> str:
    """Writes {{birth date|1950|1|31}} as "January 31, 1950"; df=yes puts the day first."""
    values = [value.strip() for value in arguments.positional[:3]]
    if not values:
        return ""
    if not all(value.isascii() and value.isdecimal() for value in values[1:]):
        return " ".join(values)
    year, *rest = values
    month = int(rest[0]) if rest else 0
    if not 1 <= month <= 12:
        return year
    if len(rest) == 1:
        return f"{_MONTHS[month - 1]} {year}"
    if arguments.get("df"):
        return f"{rest[1]} {_MONTHS[month - 1]} {year}"
    return f"{_MONTHS[month - 1]} {rest[1]}, {year}"


def _nihongo(arguments: TemplateArguments) -> str:
    """Writes {{nihongo|English|漢字|romaji}} as "English (漢字, romaji)"."""
    english, *others = (*arguments.positional[:3], "", "")[:3]
    found = ", ".join(filter(None, others))
    return f"{english} ({found})" if english and found else english or found


def _as_of(arguments: TemplateArguments) -> str:
    words = arguments.get("alt") or f"As of {_date(arguments)}"
    return words if arguments.get("alt") or not arguments.get("lc") else f"as of {_date(arguments)}"


def _sic(arguments: TemplateArguments) -> str:
    return "".join(value for value in arguments.positional if value not in ("hide", "nolink"))


def _chinese(arguments: TemplateArguments) -> str:
    return arguments.get("c", "s", "t", 1)


_TABLE: dict[str, Callable[[TemplateArguments], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("lang", "transl", "transliteration", "native name"), _last),
    **dict.fromkeys(("nihongo", "nihongo2", "nihongo3", "nihongo foot"), _nihongo),
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **dict.fromkeys(("chem", "chem2", "gaps", "shy", "keypress"), _joined("")),
    **dict.fromkeys(("hlist", "flatlist", "unbulleted list", "ubl"), _joined(", ")),
    **dict.fromkeys(("circa", "c.", "ca."), _prefixed("c. ")),
    **dict.fromkeys(("us$", "usd"), _prefixed("US$")),
    **dict.fromkeys(("gbp", "£"), _prefixed("£")),
    **dict.fromkeys(("eur", "€", "euro"), _prefixed("€")),
    **dict.fromkeys(("inr", "indian rupee", "₹"), _prefixed("₹")),
    **dict.fromkeys(("jpy", "¥"), _prefixed("¥")),
    **dict.fromkeys(
        (
            *("birth date", "birth date and age", "death date", "death date and age"),
            *("birth-date", "death-date", "birth-date and age", "dts", "dob", "start date"),
            *("end date", "start date and age", "birth year", "birth year and age", "bda", "dda"),
            *("film date", "launch date and age"),
        ),
        _date,
    ),
    **dict.fromkeys(
        (
            *("nowrap", "nobr", "small", "smaller", "big", "large", "nobold", "noitalic", "em"),
            *("abbr", "tooltip", "sc", "smallcaps", "small caps", "vanchor", "visible anchor"),
            *("quote", "blockquote", "cquote", "quotation", "centered", "center", "longitem"),
            *("flag", "flagu", "flagcountry", "flag country", "nts", "mvar", "math", "vr"),
            *("sup", "sub", "var", "not a typo", "as written", "strong", "bold", "italic"),
            *("mono", "code", "kbd", "plainlist", "rtl-lang", "proper name", "title case"),
        ),
        _first,
    ),
    **dict.fromkeys(
        ("nbsp", "space", "spaces", "thinsp", "thin space", "break", "br"), _constant(" ")
    ),
    **dict.fromkeys(("ndash", "en dash", "endash"), _constant("–")),
    **dict.fromkeys(("mdash", "em dash", "emdash"), _constant("—")),
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash"), _constant(" – ")),
    **dict.fromkeys(("·", "•", "dot", "middot", "bullet", "\\"), _constant(" · ")),
    "'s": _constant("'s"),
    "'": _constant("'"),
    "!": _constant("|"),
    "pipe": _constant("|"),
    "=": _constant("="),
    **dict.fromkeys(("ill", "illm", "interlanguage link"), lambda a: a.get("lt", 1)),
    "interlanguage link multi": lambda a: a.get("lt", 1),
    "w": lambda a: a.get(2, 1),
    "angbr": lambda a: f"⟨{a.get(1)}⟩",
    "val": _value,
    "as of": _as_of,
    "sic": _sic,
    "zh": _chinese,
    **dict.fromkeys(("simplenuclide", "simplenuclide2", "nuclide"), _joined("-")),
}

# Templates that show nothing in the text: notes, links to other articles, boxes, marks of editors.
_SILENT = frozenset(
    {
        *("sfn", "sfnp", "sfnm", "sfnref", "rp", "r", "ref", "refn", "efn", "efn-ua", "note"),
        *("notelist", "reflist", "refbegin", "refend", "references", "harvid", "cn", "fact"),
        *("main", "see also", "further", "about", "for", "other uses", "redirect", "redirect2"),
        *("distinguish", "details", "hatnote", "main article", "other people", "for2"),
        *("citation", "citation needed", "clarify", "when", "who", "which", "by whom", "dubious"),
        *("page needed", "dead link", "webarchive", "wayback", "failed verification", "why"),
        *("according to whom", "original research inline", "better source needed", "update after"),
        *(
            "pp-move-indef",
            "pp-semi-indef",
            "pp-protected",
            "pp-vandalism",
            "pp-semi",
            "pp",
            "pp-move",
        ),
        *("use dmy dates", "use mdy dates", "use british english", "use american english"),
        *("good article", "featured article", "short description", "authority control", "coord"),
        *(
            "clear",
            "clear left",
            "clear right",
            "-",
            "toc limit",
            "toc right",
            "toc left",
            "anchor",
        ),
        *("portal", "portal bar", "portal inline", "sister project links", "commons", "wiktionary"),
        *("commons category", "wikiquote", "wikisource", "wikibooks", "wikivoyage", "subject bar"),
        *("commons category-inline", "commonscat", "official website", "dmoz", "imdb name"),
        *(
            "refimprove",
            "unreferenced",
            "more citations needed",
            "multiple issues",
            "expand section",
        ),
        *("div col", "div col end", "col-begin", "col-end", "colbegin", "colend", "col-break"),
        *("disambiguation", "disambig", "hndis", "geodis", "surname", "given name", "dab", "stub"),
        *("flagicon", "flag icon", "increase", "decrease", "steady", "legend", "multiple image"),
        *("oclc", "issn", "isbn", "doi", "arxiv", "lccn", "jstor", "asin", "pmid", "bibcode"),
        *("defaultsort", "displaytitle", "italic title", "lowercase title", "sort", "hs", "audio"),
        *("wide image", "double image", "image frame", "listen", "google books", "chart", "clade"),
        *(
            "ipa",
            "ipa-en",
            "ipac-en",
            "ipa-all",
            "respell",
            "usdec",
            "excerpt",
            "unreferenced section",
        ),
    }
)
_SILENT_PREFIXES = (
    *("cite ", "vcite ", "harv", "infobox", "taxobox", "navbox", "sidebar", "r from", "r to"),
    *("ipa-", "ipac-", "wikipedia ", "campaignbox", "election box", "succession", "s-", "chart/"),
)
_SILENT_SUFFIXES = ("-stub", " icon", " infobox", " navbox", " sidebar", " topics")
