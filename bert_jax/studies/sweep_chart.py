"""What a swept field does to a metric, as inline SVG: a dot for each run, a line of medians."""

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from bert_jax.train.charts import COLOURS, Frame, svg, ticks
from bert_jax.train.page import text

_LOG_FROM = 10.0  # a field whose greatest value is so many times its least has a logarithmic axis
_MOST_LABELS = 6


def sweep_chart(points: Sequence[tuple[Any, float]], *, title: str, field: str) -> str:
    """An SVG element with a dot for each (value of the field, metric).

    Numbers have an axis to scale, a logarithmic one where they are positive and wide apart; all
    other values stand side by side in the order in which they come.

    Args:
      title: what a screen reader says.
    """
    place = _places([value for value, _ in points])
    at = [(place[_label(value)], y) for value, y in points]
    marks = ticks(min(y for _, y in at), max(y for _, y in at))
    low, high = min(place.values()), max(place.values())
    edge = 0.06 * (high - low) or 1.0
    frame = Frame(low_x=low - edge, high_x=high + edge, low_y=marks[0], high_y=marks[-1])
    labels = {x: label for label, x in place.items()}
    shown = _spread(sorted(labels))
    parts = [frame.axes(shown, marks, field, lambda x: labels[x], lambda y: f"{y:.4g}")]
    if len(labels) > 1:
        medians = [
            (x, statistics.median(y for other, y in at if other == x)) for x in sorted(labels)
        ]
        line = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in medians)
        parts.append(f'<polyline points="{line}" stroke="{COLOURS[0]}"/>')
    parts += [
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5" fill="{COLOURS[1]}" '
        f'fill-opacity="0.7"><title>{text(labels[x])}: {y:.4g}</title></circle>'
        for x, y in at
    ]
    return svg(title, parts)


def _places(values: Sequence[Any]) -> dict[str, float]:
    """Where each value stands on the axis, by its label."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {label: float(n) for n, label in enumerate(dict.fromkeys(map(_label, values)))}
    logarithmic = min(values) > 0 and max(values) >= _LOG_FROM * min(values)
    return {_label(v): math.log10(v) if logarithmic else float(v) for v in values}


def _spread(places: Sequence[float]) -> list[float]:
    """Some of the places, evenly over their order, the first and the last among them."""
    if len(places) <= _MOST_LABELS:
        return list(places)
    last = len(places) - 1
    return [places[round(n * last / (_MOST_LABELS - 1))] for n in range(_MOST_LABELS)]


def _label(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
