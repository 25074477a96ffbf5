"""Draws charts of a task's predictions as inline SVG: calibration, and predictions by label."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.report.svg_charts import HEIGHT, PlotArea, svg, ticks

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
