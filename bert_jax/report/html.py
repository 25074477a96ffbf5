"""Renders the building blocks of a report: formatted numbers, tables, sections and the page."""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bert_jax.report.style import STYLE

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
