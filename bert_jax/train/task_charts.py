"""Charts of a task's predictions as inline SVG: how sure and how right, gold beside predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.train.charts import COLOURS, HEIGHT, Frame, svg, ticks

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_BAR, _DOT = COLOURS[0], COLOURS[1]
_STRIP = 46


def reliability_diagram(bins: Sequence[Mapping[str, Any]], title: str) -> str:
    """Accuracy of the predictions in each bin of confidence (bars), beside what it should be.

    The dashed diagonal is perfect calibration; a dot is a bin's accuracy at its mean confidence.
    The strip underneath shows how many predictions each bin has.

    Args:
      bins: the fields of `bert_jax.evals.classification.CalibrationBin`.
      title: what a screen reader says.
    """
    frame = Frame(low_x=0.0, high_x=1.0, low_y=0.0, high_y=1.0)
    parts = [frame.axes(_SHARES, _SHARES, "confidence", _percent, _percent)]
    most = max((b["count"] for b in bins), default=0) or 1
    foot = HEIGHT + _STRIP - 4
    for b in bins:
        if not b["count"]:
            continue
        left, right = frame.x(b["low"]) + 1, frame.x(b["high"]) - 1
        tip = (
            f"confidence {_percent(b['low'])} to {_percent(b['high'])}: accuracy "
            f"{_percent(b['accuracy'])}, {b['count']:,} predictions"
        )
        parts.append(_bar(left, right, frame.y(b["accuracy"]), frame.y(0), 0.75, tip))
        parts.append(_bar(left, right, foot - (_STRIP - 10) * b["count"] / most, foot, 0.35, tip))
        parts.append(_dot(frame.x(b["confidence"]), frame.y(b["accuracy"]), 3, 1.0))
    parts.append(frame.line((0, 0), (1, 1), "bound"))
    return svg(title, parts, HEIGHT + _STRIP)


def scatter(pairs: Sequence[tuple[float, float]], title: str) -> str:
    """A dot for each (gold, predicted); on the dashed diagonal both are equal."""
    every = [value for pair in pairs for value in pair]
    marks = ticks(min(every), max(every))
    low, high = marks[0], marks[-1]
    frame = Frame(low_x=low, high_x=high, low_y=low, high_y=high)
    parts = [frame.axes(marks, marks, "label", _plain, _plain)]
    parts.append(frame.line((low, low), (high, high), "bound"))
    parts += [_dot(frame.x(gold), frame.y(value), 2.5, 0.5) for gold, value in pairs]
    return svg(title, parts)


def _bar(left: float, right: float, top: float, foot: float, opacity: float, tip: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{max(foot - top, 0.5):.1f}" fill="{_BAR}" fill-opacity="{opacity}">'
        f"<title>{tip}</title></rect>"
    )


def _dot(x: float, y: float, radius: float, opacity: float) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{_DOT}" fill-opacity="{opacity}"/>'
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _plain(value: float) -> str:
    return f"{value:.4g}"
