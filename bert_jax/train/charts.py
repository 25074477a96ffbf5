"""Line charts as inline SVG, for a report that opens anywhere without scripts."""

import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]

# Told apart by most colour-blind readers too (after Okabe and Ito 2008); dark enough on white.
COLOURS = ("#0072b2", "#d55e00", "#00805f", "#a6478a", "#806000", "#4d4d4d")
_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 26, 10, 34
_MOST_POINTS = 240


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart: (x, y) points with x ascending; `dots` marks each point."""

    label: str
    points: Points
    dots: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    format_y: Callable[[float], str] = lambda y: f"{y:.4g}",
    bounds_at: Sequence[float] = (),
) -> str:
    """An SVG element with the given lines, axes, grid and, for several lines, a legend.

    Args:
      series: lines; those without points are left out.
      title: what a screen reader says.
      format_y: y as text.
      bounds_at: x of dashed vertical lines, where one phase ends and the next begins.
    """
    series = [one for one in series if one.points]
    if not series:
        return ""
    every_x = [x for one in series for x, _ in one.points]
    every_y = [y for one in series for _, y in thinned(one.points)]
    ticks_x = ticks(min(every_x), max(every_x))
    ticks_y = ticks(min(every_y), max(every_y))
    low_x, high_x = ticks_x[0], max(max(every_x), ticks_x[0] + 1)
    low_y, high_y = ticks_y[0], ticks_y[-1]

    def place_x(x: float) -> float:
        return _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)

    def place_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_axes(ticks_x, ticks_y, place_x, place_y, format_y)]
    for x in bounds_at:
        if low_x < x < high_x:
            parts.append(_line(place_x(x), _TOP, place_x(x), _HEIGHT - _BOTTOM, "bound"))
    for colour, one in zip(_cycle(len(series)), series, strict=True):
        parts.append(_curve(one, colour, place_x, place_y, format_y))
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
    return svg + (_legend(series) if len(series) > 1 else "")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, evenly spaced, from at or below `low` to at or above `high`."""
    if high <= low:
        spread = abs(low) * 0.1 or 1.0
        low, high = low - spread, high + spread
    raw = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def thinned(points: Points, most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points, each the mean of its neighbours: a long run's noise becomes a line."""
    if len(points) <= most:
        return list(points)
    cuts = [round(index * len(points) / most) for index in range(most + 1)]
    groups = [points[a:b] for a, b in itertools.pairwise(cuts)]
    return [
        (math.fsum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups
    ]


def _axes(
    ticks_x: Sequence[float],
    ticks_y: Sequence[float],
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
    format_y: Callable[[float], str],
) -> str:
    parts = []
    for y in ticks_y:
        parts.append(_line(_LEFT, place_y(y), _WIDTH - _RIGHT, place_y(y), "grid"))
        parts.append(
            f'<text x="{_LEFT - 6}" y="{place_y(y) + 4:.1f}" text-anchor="end">'
            f"{html.escape(format_y(y))}</text>"
        )
    for x in ticks_x:
        if _LEFT - 1 <= place_x(x) <= _WIDTH - _RIGHT + 1:
            parts.append(
                f'<text x="{place_x(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
                f"{x:,.0f}</text>"
            )
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 3}" text-anchor="end">step</text>')
    return "".join(parts)


def _curve(
    one: Series,
    colour: str,
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
    format_y: Callable[[float], str],
) -> str:
    points = thinned(one.points)
    path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" stroke="{colour}"/>']
    if one.dots or len(points) == 1:
        parts += [
            f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3" fill="{colour}">'
            f"<title>step {x:,.0f}: {html.escape(format_y(y))}</title></circle>"
            for x, y in points
        ]
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    keys = [
        f'<span><i style="background:{colour}"></i>{html.escape(one.label)}</span>'
        for colour, one in zip(_cycle(len(series)), series, strict=True)
    ]
    return f'<div class="legend">{"".join(keys)}</div>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _cycle(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
