"""Renders the building blocks of a report: formatted numbers, tables, sections and the page."""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_FRACTION_METRICS = ("accuracy", "fraction", "mfu", "precision", "recall", "probability")
_COUNT_METRICS = ("per_second", "total", "support", "count")

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #f5f6f8; margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 48px; }
h1, h2 { overflow-wrap: anywhere; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
.quiet { color: #5b6675; margin: 0; overflow-wrap: anywhere; }
.tiles, .charts { display: grid; gap: 12px; margin-top: 16px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.card { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; padding: 12px 14px;
  min-width: 0; }
.card + .card { margin-top: 12px; } .tiles > .card, .charts > .card { margin-top: 0; }
.tiles b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
svg { width: 100%; max-width: 560px; height: auto; display: block; }
svg text { font-size: 11px; fill: #5b6675; }
.grid { stroke: #e8ebef; } .bound { stroke: #8a94a3; stroke-dasharray: 4 4; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12px; color: #3c4654; }
.legend i { display: inline-block; width: 20px; margin-right: 6px; vertical-align: middle; }
.scroll { overflow-x: auto; } .card.flush { padding: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
caption { text-align: left; color: #5b6675; padding: 5px 12px; }
th, td { text-align: left; padding: 5px 12px; border-bottom: 1px solid #eceff2; }
tbody th { font-weight: 400; }
.numbers td, .numbers th { text-align: right; font-variant-numeric: tabular-nums; }
.numbers tr > :first-child { text-align: left; } .numbers td { white-space: nowrap; }
.words td { overflow-wrap: anywhere; }
tbody tr:last-child > * { border-bottom: 0; }
summary { cursor: pointer; padding: 8px 12px; }
.errors { margin: 0; padding-left: 28px; } .errors li { margin: 0 0 14px; }
.errors dl { display: grid; grid-template-columns: minmax(70px, max-content) minmax(0, 1fr);
  gap: 0 12px; margin: 0; font-size: 13px; }
.errors dt { color: #5b6675; } .errors dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 480px) { th, td { padding: 4px 6px; } .card { padding: 10px; } }
"""


def html_page(title: str, body: str) -> str:
    """Returns a complete HTML document without scripts or external files; `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def escape(value: Any) -> str:
    """Escapes `value` for HTML text and attributes."""
    return html.escape(str(value))


def humanize(name: str) -> str:
    """Returns the display name of a metric."""
    return name.replace("_", " ")


def value_formatter(name: str) -> Callable[[float], str]:
    """Returns the format of a metric's values; fractions are shown in percent."""
    if name.endswith(_FRACTION_METRICS) or any(f"{word}_" in name for word in _FRACTION_METRICS):
        return lambda y: f"{100 * y:.4g}%"
    if name.endswith(_COUNT_METRICS):
        return lambda y: f"{y:,.0f}"
    return lambda y: f"{y:.4g}"


def format_value(name: str, value: Any) -> str:
    """Formats the value of a metric, setting or version as plain text."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else value_formatter(name)(value)


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", numeric: bool = True
) -> str:
    """Returns an HTML table with headers in the first row and column; "" if there are no rows."""
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    if not body:
        return ""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    return (
        f'<table class="{"numbers" if numeric else "words"}">'
        f"{f'<caption>{escape(caption)}</caption>' if caption else ''}"
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    )


def metrics_table(rows: Sequence[dict[str, Any]], first_column: str = "step") -> str:
    """Returns dicts of metrics as a table with `first_column`, then all other keys."""
    names = [
        n for n in dict.fromkeys(k for row in rows for k in row) if n not in ("split", first_column)
    ]
    return table(
        [humanize(name) for name in (first_column, *names)],
        ([format_value(name, row.get(name)) for name in (first_column, *names)] for row in rows),
    )


def key_value_table(values: dict[str, Any], header: tuple[str, str]) -> str:
    """Returns names and values as a table with two columns."""
    rows = ((name, format_value(name, value)) for name, value in values.items())
    return table(header, rows, numeric=False)


def details(summary: str, content: str) -> str:
    """Returns `content` (HTML) in a collapsed section that a click opens."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def section(title: str, content: str) -> str:
    """Returns a heading and a card with `content` (HTML); "" if `content` is empty."""
    if not content:
        return ""
    return f"<h2>{escape(title)}</h2>{_scrollable(content, title, 'card scroll flush')}"


def card(content: str, *, title: str) -> str:
    """Returns a card with a small heading and `content` (HTML); "" if `content` is empty."""
    if not content:
        return ""
    return _scrollable(f"<h3>{escape(title)}</h3>{content}", title, "card scroll")


def _scrollable(content: str, name: str, css_class: str) -> str:
    """Returns attributes that make a scrolling element usable by keyboard and screen reader."""
    return (
        f'<div class="{css_class}" role="region" tabindex="0" aria-label="{escape(name)}">'
        f"{content}</div>"
    )
