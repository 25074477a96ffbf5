"""Draws the page of a sheet: the table, pictures, and the command behind each number."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.apps.studies.result_page import ResultTable, write_pages
from bert_jax.apps.studies.sheets.statistics import fit_power_law
from bert_jax.report import html
from bert_jax.report.svg_charts import WIDTH, Points, Series, line_chart, svg, ticks

_ROW, _LABELS, _MARGIN = 22, 150, 16


def write_page(folder: Path, results: Mapping[str, Any]) -> ResultTable:
    """Writes table.md and table.html; returns the table.

    Args:
      folder: the folder of the files.
      results: what `SheetStudy.results` returns.
    """
    table = _table(results)
    charts = [*_interval_charts(results), *_curve_charts(results), *_forecast_chart(results)]
    notes = [*_notes(results), *_forecast_notes(results)]
    sections = [
        ("What each model was trained with", _spending_table(results)),
        ("Commands", _commands(results)),
    ]
    write_pages(
        folder,
        results["title"],
        table,
        notes,
        charts,
        introduction=results["question"],
        charts_title="Pictures",
        sections=sections,
    )
    return table


def _table(results: Mapping[str, Any]) -> ResultTable:
    columns, seeds = results["columns"], len(results["seeds"])
    rows = []
    for name, system in results["systems"].items():
        cells = [_cell(system["results"].get(column["name"]), column) for column in columns]
        rows.append([name, *cells])
    heading = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    return ResultTable(columns=(heading, *(_heading(column) for column in columns)), rows=rows)


def _heading(column: Mapping[str, Any]) -> str:
    return f"{column['name']}, %" if column["percent"] else str(column["name"])


def _formatter(column: Mapping[str, Any]) -> Callable[[float], str]:
    if column["percent"]:
        return lambda value: f"{100 * value:.1f}"
    return lambda value: f"{value:.3f}"


def _cell(result: Mapping[str, Any] | None, column: Mapping[str, Any]) -> str:
    """Formats mean, interval and p-value, as in "61.2 (60.1-62.3), p .013"."""
    if result is None:
        return ""
    number = _formatter(column)
    text = number(result["mean"])
    if result["low"] is not None:
        text += f" ({number(result['low'])} to {number(result['high'])})"
    if (comparison := result["comparison"]) is not None:
        text += f", p {_p_value(comparison['p_value'])}"
    return text


def _p_value(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}".lstrip("0")


def _notes(results: Mapping[str, Any]) -> list[str]:
    found = [
        (system_name, column, result)
        for system_name, system in results["systems"].items()
        for column, result in system["results"].items()
    ]
    notes = []
    kinds = {result["over"] for _, _, result in found}
    if "seeds" in kinds:
        notes.append("Intervals in parentheses: 95 %, Student's t over seeds.")
    if "examples" in kinds:
        notes.append("Intervals of numbers with one seed: 95 %, normal, over examples.")
    tests = {r["comparison"]["over"] for _, _, r in found if r["comparison"] is not None}
    reference = results["reference"]
    if "examples" in tests:
        notes.append(
            f"p: two-sided test of random signs against {reference}, paired over examples, after "
            "the mean over seeds; it does not count the spread between seeds."
        )
    if "seeds" in tests:
        notes.append(f"p without examples: t-test against {reference}, paired over seeds.")
    if tests:
        notes.append("p-values are not corrected for the number of comparisons.")
    if budget := results["budget"]:
        notes.append(
            f"Every model that `bert-jax pretrain` trains gets {budget['amount']:,.4g} "
            f"{budget['unit']}, up to 1 %, if the table below has no other number."
        )
    num_seeds = len(results["seeds"])
    for name, column, result in found:
        if 1 < len(result["values"]) < num_seeds:
            notes.append(
                f"{name}, {column}: {len(result['values'])} of {num_seeds} seeds finished."
            )
    notes += [f"{job} failed: {reason}" for job, reason in results["failed"].items()]
    return notes


def _spending_table(results: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{spent['updates']:,}", f"{spent['tokens']:.4g}", f"{spent['flops']:.4g}"]
        for name, spent in results["models"].items()
    ]
    return html.table(("model", "updates", "tokens with padding", "model FLOPs"), rows)


def _commands(results: Mapping[str, Any]) -> str:
    lines = "\n\n".join(
        f"# {job}\nbert-jax {shlex.join(arguments)}"
        for job, arguments in results["commands"].items()
    )
    return f"<pre>{html.escape(lines)}</pre>"


def _interval_charts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns a chart for each column: the mean and the interval of each system."""
    charts = []
    for column in results["columns"]:
        rows = [
            (name, system["results"][column["name"]])
            for name, system in results["systems"].items()
            if column["name"] in system["results"]
        ]
        if len(rows) > 1:
            charts.append((_heading(column), interval_chart(rows, column)))
    return charts


def interval_chart(rows: Sequence[tuple[str, Mapping[str, Any]]], column: Mapping[str, Any]) -> str:
    """Returns an SVG element with a dot, an interval and the values of the seeds of each system.

    Args:
      rows: (name, result) of each system; a result has "mean", "low", "high" and "values".
      column: the column, with "name" and "percent".
    """
    number = _formatter(column)
    every = [
        value
        for _, result in rows
        for value in (*result["values"].values(), result["low"], result["high"], result["mean"])
        if value is not None
    ]
    marks = ticks(min(every), max(every), 4)
    low, high = marks[0], marks[-1]
    height = _ROW * len(rows) + 30

    def x(value: float) -> float:
        return _LABELS + (value - low) / (high - low) * (WIDTH - _LABELS - _MARGIN)

    parts = []
    for mark in marks:
        parts.append(
            f'<line x1="{x(mark):.1f}" y1="4" x2="{x(mark):.1f}" y2="{height - 22}" class="grid"/>'
            f'<text x="{x(mark):.1f}" y="{height - 6}" text-anchor="middle">{number(mark)}</text>'
        )
    for index, (name, result) in enumerate(rows):
        y = _ROW * (index + 0.5) + 4
        label = name if len(name) <= 22 else name[:21] + "…"
        parts.append(
            f'<text x="{_LABELS - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(label)}'
            f"<title>{html.escape(name)}</title></text>"
        )
        if result["low"] is not None:
            ends = (x(result["low"]), x(result["high"]))
            points = " ".join(f"{end:.1f},{y:.1f}" for end in ends)
            parts.append(f'<polyline points="{points}" class="c0"/>')
        for seed, value in result["values"].items():
            parts.append(
                f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="2.5" class="c1" fill-opacity="0.6">'
                f"<title>seed {seed}: {number(value)}</title></circle>"
            )
        parts.append(
            f'<circle cx="{x(result["mean"]):.1f}" cy="{y:.1f}" r="4" class="c0">'
            f"<title>{html.escape(name)}: {number(result['mean'])}</title></circle>"
        )
    return svg(str(column["name"]), parts, height)


def _curve_charts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    unit = results["budget"]["unit"] if results["budget"] else "updates"
    charts = []
    for metric, curves in results["curves"].items():
        if curves:
            title = f"{html.humanize(metric)} during training, mean over seeds"
            charts.append((title, _chart(curves, title, unit)))
    return charts


def _chart(lines: Mapping[str, Points], title: str, unit: str, dots: Sequence[str] = ()) -> str:
    """Returns a chart of lines over amounts of a unit, divided by a power of 1,000.

    Args:
      dots: the names of the lines with a dot at each point.
    """
    largest = max(x for points in lines.values() for x, _ in points)
    exponent = 3 * max(0, math.floor((math.log10(largest) - 1) / 3))
    series = [
        Series(label=name, points=[(x / 10**exponent, y) for x, y in points], dots=name in dots)
        for name, points in lines.items()
    ]
    x_name = f"10^{exponent} {unit}" if exponent else unit
    return line_chart(series, title=title, x_name=x_name)


def _forecast_points(results: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns {"fitted", "predicted"} -> system -> (FLOPs, value), or {} without a forecast."""
    forecast = results["forecast"]
    if not forecast:
        return {}
    points: dict[str, dict[str, tuple[float, float]]] = {}
    for kind in ("fitted", "predicted"):
        points[kind] = {}
        for name in forecast[kind]:
            system = results["systems"][name]
            result = system["results"].get(forecast["column"])
            spent = results["models"].get(system["model"])
            if result is not None and spent is not None:
                points[kind][name] = (spent["flops"], result["mean"])
    return points if len({x for x, _ in points["fitted"].values()}) > 1 else {}


def _forecast_chart(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    points = _forecast_points(results)
    if not points:
        return []
    law = fit_power_law(list(points["fitted"].values()))
    every = sorted({*points["fitted"].values(), *points["predicted"].values()})
    lines = {"measured": every, "power law": [(x, law(x)) for x, _ in every]}
    title = f"{results['forecast']['column']} by training FLOPs"
    return [(title, _chart(lines, title, "FLOPs", dots=["measured"]))]


def _forecast_notes(results: Mapping[str, Any]) -> list[str]:
    points = _forecast_points(results)
    if not points:
        return []
    law = fit_power_law(list(points["fitted"].values()))
    notes = [
        f"Power law of {results['forecast']['column']}, fitted to {', '.join(points['fitted'])}: "
        f"{law.y_0:.4g} (FLOPs / {law.x_0:.3g})^{law.exponent:.4f}."
    ]
    for name, (x, y) in points["predicted"].items():
        notes.append(
            f"Forecast for {name}: {law(x):.3f}; measured: {y:.3f}, which is "
            f"{100 * (y / law(x) - 1):+.1f} %."
        )
    return notes
