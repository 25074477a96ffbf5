"""Builds the HTML of reports, one page for light and dark and all widths, and formats values."""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# After Okabe and Ito 2008, which most color-blind readers can distinguish; darkened or lightened
# so that lines and text have a contrast of at least 4.5 to the background.
_LIGHT_COLORS = ("#0072b2", "#c24e00", "#007a5a", "#a6478a", "#806000", "#4d4d4d")
_DARK_COLORS = ("#56b4e9", "#ff9e4a", "#33c79b", "#e592c9", "#d9b23c", "#b8bec7")


def _color_rules(colors: tuple[str, ...]) -> str:
    return "".join(f".c{index}{{--line:{color}}}" for index, color in enumerate(colors))


STYLE = f"""
:root {{ color-scheme: light dark; --page: #f5f6f8; --card: #fff; --text: #1c2430; --quiet: #566070;
  --edge: #dfe3e8; --grid: #e4e8ec; --band: #8a94a3; --good: #00693e; --warn: #9a4a00;
  --right: 0,114,178; --wrong: 213,94,0; --shadow: rgba(30,40,55,.28); }}
{_color_rules(_LIGHT_COLORS)}
@media (prefers-color-scheme: dark) {{
:root {{ --page: #12161c; --card: #1b212a; --text: #e6e9ee; --quiet: #a3adba; --edge: #323b47;
  --grid: #2b333e; --band: #7c8796; --good: #58d6a4; --warn: #ffb068; --right: 86,180,233;
  --wrong: 255,140,60; --shadow: rgba(0,0,0,.75); }}
{_color_rules(_DARK_COLORS)}
}}
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  margin: 0; }}
main {{ max-width: 1180px; margin: 0 auto; padding: 20px 16px 48px; }}
h1, h2, h3, p, li, dd, code {{ overflow-wrap: anywhere; }}
h1 {{ font-size: 26px; line-height: 1.25; margin: 2px 0 4px; }}
h2 {{ font-size: 19px; margin: 32px 0 8px; }} h3 {{ font-size: 14px; margin: 0 0 6px; }}
p {{ margin: 0 0 8px; max-width: 80ch; }} .quiet, caption {{ color: var(--quiet); }}
code {{ font: 13px/1.5 ui-monospace, monospace; }}
.card {{ background-color: var(--card); border: 1px solid var(--edge); border-radius: 8px;
  padding: 12px 14px; min-width: 0; }}
.card + .card {{ margin-top: 12px; }} .card.flush {{ padding: 0; }}
.status {{ font-weight: 600; color: var(--good); }} .status.open {{ color: var(--warn); }}
.headline {{ margin-top: 16px; padding: 16px; }} .headline h2 {{ margin: 0; font-size: 15px; }}
.headline .value {{ font-size: 40px; line-height: 1.2; font-weight: 650; margin: 0;
  font-variant-numeric: tabular-nums; }}
.headline table {{ max-width: 760px; margin: 10px 0 6px; }}
.headline th, .headline td, .headline caption {{ padding-left: 0; }}
.bar {{ width: 45%; }} .bar i {{ display: block; height: 12px; border-radius: 2px;
  background: var(--line); min-width: 2px; }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr));
  gap: 10px 24px; margin: 12px 0 0; }}
.facts dt {{ color: var(--quiet); font-size: 13px; }} .facts dd {{ margin: 0; }}
.charts {{ display: grid; gap: 12px; margin-top: 12px; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }}
.charts > .card {{ margin-top: 0; }}
svg {{ width: 100%; max-width: 440px; height: auto; display: block; }}
svg text {{ font-size: 12px; fill: var(--quiet); }}
.grid {{ stroke: var(--grid); }} .bound {{ stroke: var(--band); stroke-dasharray: 4 4; }}
polyline {{ fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }}
polyline.faint {{ stroke-width: 1; opacity: .35; }}
circle, rect {{ fill: var(--line); }}
.hover {{ fill: transparent; }} .hover:hover {{ fill: var(--band); fill-opacity: .22; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; }}
.legend i {{ display: inline-block; width: 20px; margin-right: 6px; vertical-align: middle; }}
.scroll {{ overflow-x: auto; background-color: var(--card); background-repeat: no-repeat;
  background-image: linear-gradient(to right, var(--card) 30%, transparent),
    linear-gradient(to left, var(--card) 30%, transparent),
    linear-gradient(to right, var(--shadow), transparent),
    linear-gradient(to left, var(--shadow), transparent);
  background-position: 0 0, 100% 0, 0 0, 100% 0; background-size: 44px 100%, 44px 100%,
    12px 100%, 12px 100%; background-attachment: local, local, scroll, scroll; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
caption {{ text-align: left; padding: 8px 12px; }}
th, td {{ text-align: left; padding: 5px 12px; border-bottom: 1px solid var(--grid);
  vertical-align: top; }}
tbody th {{ font-weight: 400; }} tbody tr:last-child > * {{ border-bottom: 0; }}
.numbers td, .numbers th {{ text-align: right; font-variant-numeric: tabular-nums; }}
.numbers tr > :first-child {{ text-align: left; }} .numbers td {{ white-space: nowrap; }}
.words td, .words th {{ overflow-wrap: anywhere; }} .words tbody th {{ min-width: 8.5em; }}
.headline td:nth-child(2) {{ white-space: nowrap; }}
details > summary {{ cursor: pointer; padding: 8px 12px; }} .card > ul {{ margin: 8px 0; }}
.note {{ padding: 8px 12px 0; }}
.task > summary {{ font-size: 19px; font-weight: 650; padding: 8px 0; margin-top: 20px; }}
.errors {{ margin: 0; padding-left: 26px; }} .errors li {{ margin: 0 0 14px; }}
.errors dl {{ display: flex; flex-wrap: wrap; gap: 0 18px; margin: 0; font-size: 14px; }}
.errors dl > div {{ display: flex; gap: 6px; min-width: 0; }} .errors .text {{ flex: 0 0 100%; }}
.errors dt {{ color: var(--quiet); flex: none; }} .errors dd {{ margin: 0; min-width: 0; }}
@media (max-width: 480px) {{ th, td {{ padding: 4px 5px; }}
  table {{ font-size: 12.5px; }} .numbers td {{ white-space: normal; }}
  .card {{ padding: 10px; }} .headline .value {{ font-size: 34px; }} .bar {{ width: 30%; }} }}
@media print {{ body {{ background: none; }} .card {{ break-inside: avoid; }} }}
"""


_METRIC_NAMES = {
    "step": "update",
    "mlm_loss": "masked-LM loss",
    "mlm_loss_masked": "masked-LM loss at [MASK]",
    "mlm_loss_random": "masked-LM loss at random tokens",
    "mlm_loss_kept": "masked-LM loss at unchanged tokens",
    "mlm_accuracy": "masked-LM accuracy",
    "mlm_accuracy_masked": "masked-LM accuracy at [MASK]",
    "mlm_accuracy_random": "masked-LM accuracy at random tokens",
    "mlm_accuracy_kept": "masked-LM accuracy at unchanged tokens",
    "diffusion_loss": "masked-diffusion loss",
    "diffusion_accuracy": "masked-diffusion accuracy",
    "nsp_loss": "next-sentence loss",
    "nsp_accuracy": "next-sentence accuracy",
    "sop_loss": "sentence-order loss",
    "sop_accuracy": "sentence-order accuracy",
    "sbo_loss": "span-boundary loss",
    "sbo_accuracy": "span-boundary accuracy",
    "rtd_loss": "replaced-token loss",
    "rtd_accuracy": "replaced-token accuracy",
    "rtd_precision": "replaced-token precision",
    "rtd_recall": "replaced-token recall",
    "sampled_accuracy": "accuracy of the generator's samples",
    "lm_loss": "language-model loss",
    "lm_accuracy": "language-model accuracy",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "f1": "F1",
    "token_f1": "token F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "bleu": "BLEU",
    "chrf": "chrF",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "roc_auc": "area under the ROC curve",
    "mse": "mean squared error",
    "mean": "mean of the tasks' first metrics",
    "num_sequences": "training sequences",
    "drawn_per_epoch": "sampled per epoch",
    "grad_norm": "gradient norm",
    "mfu": "model FLOPs utilization",
    "HasAns_exact": "exact match, answerable questions",
    "HasAns_f1": "F1, answerable questions",
    "NoAns_exact": "exact match, unanswerable questions",
    "NoAns_f1": "F1, unanswerable questions",
    "best_exact": "exact match, best threshold for no answer",
    "best_f1": "F1, best threshold for no answer",
}
# Precision and recall are not in percent, because F1 is not: SQuAD's F1 is from 0 to 100.
_FRACTION_METRICS = ("accuracy", "fraction", "mfu", "probability")
_COUNT_METRICS = ("per_second", "total", "support", "count")


def html_page(title: str, body: str) -> str:
    """Returns a complete HTML document without scripts or external files; `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Texts of data sets are in the report; even if an escape were missing, no script of
        # theirs could run and nothing could be loaded.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def escape(value: Any) -> str:
    """Escapes `value` for HTML text and attributes."""
    return html.escape(str(value))


def is_number(value: Any) -> bool:
    """Returns whether a value of a JSON file is a finite number."""
    # `bool` is a subclass of `int` in Python.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def humanize(name: str) -> str:
    """Returns the display name of a metric; in multi-task runs the name begins with the task."""
    task, slash, metric = name.rpartition("/")
    return f"{task}{slash and ' '}{_METRIC_NAMES.get(metric, metric.replace('_', ' '))}"


def value_formatter(name: str) -> Callable[[float], str]:
    """Returns the format of a metric's values; fractions are shown in percent."""
    if name.endswith(_FRACTION_METRICS) or any(f"{word}_" in name for word in _FRACTION_METRICS):
        return lambda y: f"{100 * y:#.4g}%"
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


def metrics_table(rows: Sequence[Mapping[str, Any]], first_column: str = "step") -> str:
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


def definition_list(values: Mapping[str, Any], css_class: str) -> str:
    """Returns names and their texts as a list; for facts that are read, not compared."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in values.items()
    )
    return f'<dl class="{css_class}">{items}</dl>'


def details(summary: str, content: str, css_class: str = "") -> str:
    """Returns `content` (HTML) in a collapsed section that a click opens."""
    return f'<details class="{css_class}"><summary>{escape(summary)}</summary>{content}</details>'


def section(title: str, content: str) -> str:
    """Returns a heading and a card with `content` (HTML); "" if `content` is empty."""
    if not content:
        return ""
    return f"<h2>{escape(title)}</h2>{scrollable(content, title, 'card scroll flush')}"


def card(content: str, *, title: str) -> str:
    """Returns a card with a small heading and `content` (HTML); "" if `content` is empty."""
    if not content:
        return ""
    return scrollable(f"<h3>{escape(title)}</h3>{content}", title, "card scroll")


def scrollable(content: str, name: str, css_class: str = "scroll") -> str:
    """Returns an element that scrolls sideways, usable by keyboard and screen reader."""
    return (
        f'<div class="{css_class}" role="region" tabindex="0" aria-label="{escape(name)}">'
        f"{content}</div>"
    )
