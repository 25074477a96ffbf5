"""`report.html`: a run on one page, which opens offline and loads nothing from elsewhere."""

import html
import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import flatten
from bert_jax.train import metrics_log, run_folder
from bert_jax.train.charts import Series, line_chart
from bert_jax.train.progress import duration

FILE = "report.html"
_MOST_ROWS = 20

# Title, and the metrics drawn together; a metric named nowhere here gets a chart of its own.
_CHARTS = (
    ("Loss", ("loss", "mlm_loss", "nsp_loss", "lm_loss")),
    ("Accuracy", ("mlm_accuracy", "nsp_accuracy", "lm_accuracy")),
    (
        "Masked LM loss, by what stood at the position",
        ("mlm_loss_masked", "mlm_loss_random", "mlm_loss_kept"),
    ),
    (
        "Masked LM accuracy, by what stood at the position",
        ("mlm_accuracy_masked", "mlm_accuracy_random", "mlm_accuracy_kept"),
    ),
    ("Learning rate", ("learning_rate",)),
    ("Gradient norm", ("grad_norm",)),
    ("Tokens per second", ("tokens_per_second",)),
    ("Model FLOPs utilisation", ("mfu",)),
    ("Padding share", ("padding_share",)),
)
_NOT_CHARTED = ("steps_per_second",)
_HEAD = ("kind", "step", "phase", "seconds")
_IN_PERCENT = ("accuracy", "share", "mfu")

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #f5f6f8; margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
.quiet { color: #5b6675; margin: 0; overflow-wrap: anywhere; }
.tiles, .charts { display: grid; gap: 12px; margin-top: 16px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.card { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; padding: 12px 14px; }
.tiles b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: #5b6675; }
.grid { stroke: #e8ebef; } .bound { stroke: #8a94a3; stroke-dasharray: 4 4; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12px; color: #3c4654; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; }
.scroll { overflow-x: auto; padding: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 5px 12px; border-bottom: 1px solid #eceff2; }
.numbers td, .numbers th { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; } tr:last-child td { border-bottom: 0; }
summary { cursor: pointer; padding: 8px 12px; }
"""


def write_report(folder: Path) -> Path:
    """Writes `report.html` into a run folder from what the run has written there so far.

    Reads config.json and metrics.jsonl, and evaluation.json if it is there.

    Raises:
      UserError: not a run folder, or a damaged file in it.
    """
    made = run_folder.read_json(folder / run_folder.CONFIG)
    rows = metrics_log.read_metrics(folder / metrics_log.FILE)
    results_file = folder / run_folder.EVALUATION
    results = run_folder.read_json(results_file) if results_file.exists() else {}
    training = [row for row in rows if row["kind"] == metrics_log.TRAIN]
    evaluations = [row for row in rows if row["kind"] == metrics_log.EVALUATION]
    name = folder.resolve().name
    body = [
        f'<h1>{html.escape(name)}</h1><p class="quiet">config {_text(made.get("fingerprint"))}</p>',
        _tiles(training, evaluations),
        _charts(training, evaluations),
        _section("Evaluation", _pairs(flatten(results)) if results else ""),
        _section("Evaluations during training", _rows(evaluations)),
        _section("Training", _rows(_spread(training, _MOST_ROWS))),
        _section("Config", _folded(flatten(made.get("config", {})))),
        _section("Versions", _pairs(made.get("versions", {}))),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{html.escape(name)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )
    aside = folder / f"{FILE}.tmp"
    aside.write_text(page, encoding="utf-8")
    os.replace(aside, folder / FILE)
    return folder / FILE


def _tiles(training: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> str:
    if not training:
        return '<p class="quiet">No step has been logged yet.</p>'
    last, rates = training[-1], _column(training, "tokens_per_second")
    tiles = [("steps", f"{last['step']:,}")]
    tiles += [
        (f"{'held-out ' if source is evaluations else ''}{name}", _number(name, source[-1][name]))
        for source in (training, evaluations)
        for name in ("loss", "mlm_loss", "mlm_accuracy", "nsp_accuracy")
        if source and source[-1].get(name) is not None
    ]
    if rates:
        tiles.append(("tokens/s, median", f"{statistics.median(y for _, y in rates):,.0f}"))
    # A resumed run counts its seconds anew: add up what each process trained for.
    seconds = [row.get("seconds") or 0.0 for row in training]
    ends = [a for a, b in itertools.pairwise(seconds) if b < a] + seconds[-1:]
    tiles.append(("training time", duration(sum(ends))))
    cells = (
        f'<div class="card"><b>{_text(value)}</b>{_text(name.replace("_", " "))}</div>'
        for name, value in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _charts(training: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> str:
    seen = list(dict.fromkeys(k for row in (*training, *evaluations) for k in row))
    named = {name for _, names in _CHARTS for name in names}
    others = [n for n in seen if n not in named and n not in _NOT_CHARTED and n not in _HEAD]
    bounds = [
        float(before["step"])
        for before, after in itertools.pairwise(training)
        if before.get("phase") != after.get("phase")
    ]
    cards = []
    for title, names in (*_CHARTS, *((name.replace("_", " "), (name,)) for name in others)):
        lines = [Series(label=n.replace("_", " "), points=_column(training, n)) for n in names]
        lines += [
            Series(label=f"held-out {n.replace('_', ' ')}", points=points, dots=True)
            for n in names
            if (points := _column(evaluations, n))
        ]
        chart = line_chart(lines, title=title, format_y=_formatter(names[0]), bounds_at=bounds)
        if chart:
            cards.append(f'<div class="card"><h3>{_text(title)}</h3>{chart}</div>')
    return f'<div class="charts">{"".join(cards)}</div>' if cards else ""


def _column(rows: Iterable[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows if isinstance(row.get(name), (int, float))]


def _spread(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (most - 1))] for index in range(most)]


def _rows(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    names = [n for n in dict.fromkeys(k for row in rows for k in row) if n != "kind"]
    head = "".join(f"<th>{_text(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(_number(n, row.get(n)))}</td>' for n in names)}</tr>"
        for row in rows
    )
    return f'<table class="numbers"><tr>{head}</tr>{body}</table>'


def _pairs(values: dict[str, Any]) -> str:
    body = "".join(
        f"<tr><td>{_text(name)}</td><td>{_text(_number(name, value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<table>{body}</table>" if body else ""


def _folded(values: dict[str, Any]) -> str:
    body = "".join(f"<tr><td>{_text(k)}</td><td>{_text(v)}</td></tr>" for k, v in values.items())
    return f"<details><summary>{len(values)} fields</summary><table>{body}</table></details>"


def _section(title: str, content: str) -> str:
    return f'<h2>{_text(title)}</h2><div class="card scroll">{content}</div>' if content else ""


def _formatter(name: str) -> Callable[[float], str]:
    if name.endswith(_IN_PERCENT) or any(f"{word}_" in name for word in _IN_PERCENT):
        return lambda y: f"{100 * y:.4g}%"
    if name.endswith("per_second"):
        return lambda y: f"{y:,.0f}"
    return lambda y: f"{y:.4g}"


def _number(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else _formatter(name)(value)


def _text(value: Any) -> str:
    return html.escape(str(value))
