"""Draws the effect of a swept field on a metric as inline SVG: a dot per run, a line of medians."""

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from bert_jax.report.html import escape
from bert_jax.report.svg_charts import PlotArea, evenly_spaced, svg, ticks

_MIN_LOG_RATIO = 10.0  # the axis is logarithmic from this ratio of largest to smallest value on
_MAX_LABELS = 6


def sweep_chart(points: Sequence[tuple[Any, float]], *, title: str, field: str) -> str:
    """Returns an SVG element with a dot for each (value of the field, metric).

    Numbers are drawn to scale, on a logarithmic axis if they are positive and span a wide range.
    All other values are evenly spaced in their given order.

    Args:
      points: pairs (value of the field, metric).
      title: the title for screen readers.
      field: the name of the field.
    """
    position_of = _x_positions([value for value, _ in points])
    coordinates = [(position_of[_label(value)], y) for value, y in points]
    y_ticks = ticks(min(y for _, y in coordinates), max(y for _, y in coordinates))
    low, high = min(position_of.values()), max(position_of.values())
    margin = 0.06 * (high - low) or 1.0
    frame = PlotArea(low_x=low - margin, high_x=high + margin, low_y=y_ticks[0], high_y=y_ticks[-1])
    labels = {x: label for label, x in position_of.items()}
    x_ticks = evenly_spaced(sorted(labels), _MAX_LABELS)
    parts = [frame.axes(x_ticks, y_ticks, field, lambda x: labels[x], lambda y: f"{y:.4g}")]
    if len(labels) > 1:
        medians = [
            (x, statistics.median(y for other, y in coordinates if other == x))
            for x in sorted(labels)
        ]
        parts.append(f'<polyline points="{frame.path(medians)}" class="c0"/>')
    parts += [
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5" class="c1" '
        f'fill-opacity="0.7"><title>{escape(labels[x])}: {y:.4g}</title></circle>'
        for x, y in coordinates
    ]
    return svg(title, parts)


def _x_positions(values: Sequence[Any]) -> dict[str, float]:
    """Returns {label: position on the x axis} of each value."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {label: float(n) for n, label in enumerate(dict.fromkeys(map(_label, values)))}
    logarithmic = min(values) > 0 and max(values) >= _MIN_LOG_RATIO * min(values)
    return {_label(v): math.log10(v) if logarithmic else float(v) for v in values}


def _label(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
