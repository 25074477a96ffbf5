"""Renders the results and the error analysis of a fine-tuning run for its report.

Everything comes from the run's `analysis.json` (see `bert_jax/tasks/analysis.py`), so a report can
be written again at any time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.report.heat_map import shade
from bert_jax.report.html import (
    card,
    details,
    escape,
    format_value,
    humanize,
    metrics_table,
    section,
    table,
)
from bert_jax.report.svg_charts import HEIGHT, PlotArea, svg, ticks
from bert_jax.tasks.registry import kind_named

_FRACTION_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_BAR_CLASS, _DOT_CLASS = "c0", "c1"
_STRIP_HEIGHT = 46


def reliability_diagram(bins: Sequence[Mapping[str, Any]], title: str) -> str:
    """Draws a reliability diagram: the accuracy of the predictions in each bin of confidence.

    The dashed diagonal is perfect calibration; a dot is a bin's accuracy at its mean confidence.
    The small bars at the bottom show the number of predictions in each bin.

    Args:
      bins: the fields of `bert_jax.tasks.metrics.classification.CalibrationBin`.
      title: the label for screen readers.
    """
    area = PlotArea(low_x=0.0, high_x=1.0, low_y=0.0, high_y=1.0)
    parts = [area.axes(_FRACTION_TICKS, _FRACTION_TICKS, "confidence", _percent, _percent)]
    max_count = max((b["count"] for b in bins), default=0) or 1
    bottom = HEIGHT + _STRIP_HEIGHT - 4
    for b in bins:
        if not b["count"]:
            continue
        left, right = area.x(b["low"]) + 1, area.x(b["high"]) - 1
        tooltip = (
            f"confidence {_percent(b['low'])} to {_percent(b['high'])}: accuracy "
            f"{_percent(b['accuracy'])}, {b['count']:,} predictions"
        )
        parts.append(_bar(left, right, area.y(b["accuracy"]), area.y(0), 0.75, tooltip))
        parts.append(
            _bar(
                left,
                right,
                bottom - (_STRIP_HEIGHT - 10) * b["count"] / max_count,
                bottom,
                0.35,
                tooltip,
            )
        )
        parts.append(_dot(area.x(b["confidence"]), area.y(b["accuracy"]), 3, 1.0))
    parts.append(area.line((0, 0), (1, 1), "bound"))
    return svg(title, parts, HEIGHT + _STRIP_HEIGHT)


def scatter(pairs: Sequence[tuple[float, float]], title: str) -> str:
    """Draws a dot for each (reference, predicted) pair; on the dashed diagonal both are equal."""
    values = [value for pair in pairs for value in pair]
    # Both axes have one range, so that equal values are on the diagonal.
    axis_ticks = ticks(min(values), max(values))
    low, high = axis_ticks[0], axis_ticks[-1]
    area = PlotArea(low_x=low, high_x=high, low_y=low, high_y=high)
    parts = [area.axes(axis_ticks, axis_ticks, "label", _format_number, _format_number)]
    parts.append(area.line((low, low), (high, high), "bound"))
    parts += [_dot(area.x(label), area.y(value), 2.5, 0.5) for label, value in pairs]
    return svg(title, parts)


def _bar(left: float, right: float, top: float, bottom: float, opacity: float, tooltip: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{max(bottom - top, 0.5):.1f}" class="{_BAR_CLASS}" fill-opacity="{opacity}">'
        f"<title>{tooltip}</title></rect>"
    )


def _dot(x: float, y: float, radius: float, opacity: float) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{_DOT_CLASS}" '
        f'fill-opacity="{opacity}"/>'
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"


def _format_number(value: float) -> str:
    return f"{value:.4g}"


Analysis = Mapping[str, Any]

MAX_CLASSES = 20
"""Largest number of classes for a confusion matrix; with more, a list shows the top errors."""

_NUM_OPEN_ERRORS = 5  # a click shows the others


def report_sections(analysis: Analysis) -> str:
    """Returns HTML with the results, then each labeled split, then notes on the data.

    For multi-task runs: how often each task was sampled, all results, then each task.
    """
    tasks = tasks_of(analysis)
    parts = [
        section("Tasks", metrics_table(analysis.get("mixture", ()), "task")),
        section("Results", results_table(tasks)),
    ]
    for name, task_analysis in tasks.items():
        content = "".join(_task_sections(name, task_analysis))
        # The analyses of several tasks are long: a reader opens one after the other.
        parts.append(details(f"Analysis of {name}", content, "task") if name else content)
    return "".join(parts)


def _task_sections(name: str, analysis: Analysis) -> list[str]:
    parts = []
    for split, split_analysis in analysis["splits"].items():
        cards = "".join(_split_cards(analysis, split, split_analysis))
        if cards:
            title = _with_task_name(name, f"Analysis of {split}")
            parts.append(f"<h2>{escape(title)}</h2>{cards}")
    rows = [(split, f"{count:,}") for split, count in analysis["examples"].items()]
    notes = "".join(f"<li>{escape(note)}</li>" for note in analysis["notes"])
    data = table(("split", "examples"), rows) + (f"<ul>{notes}</ul>" if notes else "")
    parts.append(section(_with_task_name(name, f"Data: {analysis['task']}"), data))
    return parts


def tasks_of(analysis: Analysis) -> Mapping[str, Analysis]:
    """Returns {task name: analysis}; the name is "" if there is only one task."""
    return analysis.get("tasks", {"": analysis})


def _with_task_name(name: str, title: str) -> str:
    return f"{name}: {title}" if name else title


def results_table(
    tasks: Mapping[str, Analysis], *, splits: Sequence[str] = (), num_metrics: int | None = None
) -> str:
    """Returns a table of the metrics with their intervals.

    Args:
      tasks: see `tasks_of`.
      splits: the splits to show; () for all.
      num_metrics: how many metrics of each split to show; None for all.
    """
    rows = [
        (
            _with_task_name(name, f"{split} ({split_analysis['examples']:,})"),
            humanize(row["metric"]),
            format_value(row["metric"], row["value"]),
            f"{format_value(row['metric'], row['low'])} to "
            f"{format_value(row['metric'], row['high'])}",
        )
        for name, task_analysis in tasks.items()
        for split, split_analysis in task_analysis["splits"].items()
        if not splits or split in splits
        for row in split_analysis["metrics_with_intervals"][:num_metrics]
    ]
    step = next(iter(tasks.values()))["step"]
    return table(
        ("split (examples)", "metric", "value", "95 % interval"),
        rows,
        caption=f"After {step:,} updates. The intervals are bootstrapped over the examples; "
        "they do not include the variation between training runs with different seeds.",
    )


def _split_cards(analysis: Analysis, split: str, split_analysis: Analysis) -> list[str]:
    kind = kind_named(analysis["kind"])
    cards = []
    if "classes" in split_analysis:
        title = kind.description.class_table
        cards.append(card(metrics_table(split_analysis["classes"], "name"), title=title))
    if "thresholds" in split_analysis:
        note = f'<p class="quiet">{escape(_threshold_note(split))}</p>'
        rows = metrics_table(split_analysis["thresholds"], "metric")
        cards.append(card(f"{note}{rows}", title="Thresholds of the labels, compared with 0.5"))
    if "confusion_matrix" in split_analysis:
        confusions = _confusion_table(analysis["labels"], split_analysis["confusion_matrix"])
        cards.append(card(confusions, title="Confusion matrix"))
    if "entity_errors" in split_analysis:
        rows = metrics_table(split_analysis["entity_errors"], "type")
        cards.append(card(rows, title="Entity errors by type"))
    if "by_question_word" in split_analysis:
        rows = metrics_table(split_analysis["by_question_word"], "word")
        cards.append(card(rows, title="By question word (0 to 100)"))
    if "calibration" in split_analysis:
        cards.append(card(_calibration(split_analysis["calibration"]), title="Calibration"))
    if "reference_vs_predicted" in split_analysis:
        title = f"predicted values by label, {split}"
        chart = scatter(split_analysis["reference_vs_predicted"], title)
        cards.append(card(chart, title="Predicted value (vertical) by label (horizontal)"))
    errors = _error_list(split_analysis["top_errors"], kind.description.error_loss)
    cards.append(card(errors, title="Worst errors"))
    return cards


def _threshold_note(split: str) -> str:
    chosen = "The threshold of each label is the one with the highest F1 of the label on dev."
    if split == "dev":
        return f"{chosen} So the gain on dev is larger than on other texts."
    return chosen


def _confusion_table(labels: Sequence[str], confusions: Sequence[Sequence[int]]) -> str:
    if len(labels) > MAX_CLASSES:
        top_confusions = sorted((c for c in confusions if c[0] != c[1]), key=lambda c: -c[2])[
            :MAX_CLASSES
        ]
        return table(
            ("label", "predicted", "count"),
            [(labels[g], labels[p], f"{n:,}") for g, p, n in top_confusions],
        )
    counts = {(label_id, predicted_id): count for label_id, predicted_id, count in confusions}
    totals = Counter[int]()
    for label_id, _, count in confusions:
        totals[label_id] += count
    header = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(
            _shaded_cell(
                counts.get((label_id, predicted_id), 0), totals[label_id], label_id == predicted_id
            )
            for predicted_id in range(len(labels))
        )
        + "</tr>"
        for label_id, label in enumerate(labels)
    )
    return (
        '<table class="numbers"><caption>Rows are labels, columns are predictions; percentages '
        "are of the row.</caption>"
        f'<thead><tr><th scope="col">label \\ predicted</th>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _shaded_cell(count: int, total: int, is_correct: bool) -> str:
    fraction = count / total if total else 0.0
    percent = f" <small>{100 * fraction:.0f}%</small>" if count else ""
    return f'<td style="{shade(fraction if is_correct else -fraction)}">{count:,}{percent}</td>'


def _calibration(calibration: Mapping[str, Any]) -> str:
    bins, error = calibration["bins"], format_value("calibration_error", calibration["error"])
    rows = [
        (
            f"{b['low']:.3f} to {b['high']:.3f}",
            f"{b['count']:,}",
            f"{b['confidence']:.3f}",
            f"{b['accuracy']:.3f}",
        )
        for b in bins
        if b["count"]
    ]
    header = ("confidence", "predictions", "mean confidence", "accuracy")
    before = ""
    if "uncalibrated" in calibration:
        uncalibrated = calibration["uncalibrated"]
        error_before = format_value("calibration_error", uncalibrated["error"])
        title = f"Reliability diagram without the temperature, error {error_before}"
        before = (
            f'<p class="quiet">Without the temperature, the error is {error_before}:</p>'
            f"{reliability_diagram(uncalibrated['bins'], title)}"
        )
    return (
        f'<p class="quiet">Expected calibration error {error}: the mean difference between '
        "confidence and accuracy over all predictions. Bars: accuracy in each interval of "
        "confidence. Dots: the same accuracy at the mean confidence of the interval. Dashed line: "
        "perfect calibration. Bottom: number of predictions in each interval.</p>"
        f"{reliability_diagram(bins, f'Reliability diagram, expected calibration error {error}')}"
        f"{details('The same as a table', table(header, rows))}{before}"
    )


def _error_list(errors: Sequence[Mapping[str, Any]], loss_name: str) -> str:
    items = []
    for error in errors:
        fields = [
            ("reference", error["reference"]),
            ("predicted", _format_predicted(error)),
            (loss_name, f"{error['loss']:.4g}"),
            ("id", error["id"]),
        ]
        rows = "".join(_field(name, text, "") for name, text in fields)
        rows += "".join(_field(name, text, "text") for name, text in error["texts"].items())
        items.append(f"<li><dl>{rows}</dl></li>")
    if not items:
        return '<p class="quiet">None: every prediction is correct.</p>'
    first, others = items[:_NUM_OPEN_ERRORS], items[_NUM_OPEN_ERRORS:]
    more = f'<ol class="errors" start="{len(first) + 1}">{"".join(others)}</ol>'
    return f'<ol class="errors">{"".join(first)}</ol>' + (
        details(f"{len(others)} more", more) if others else ""
    )


def _field(name: str, text: str, css_class: str) -> str:
    return (
        f'<div class="{css_class}"><dt>{escape(name)}</dt><dd dir="auto">{escape(text)}</dd></div>'
    )


def _format_predicted(error: Mapping[str, Any]) -> str:
    if "probability" not in error:
        return error["predicted"]
    return f"{error['predicted']} ({format_value('probability', error['probability'])})"
