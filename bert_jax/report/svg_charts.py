"""Draws line charts as inline SVG, without scripts."""

import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]

# Most color-blind readers can distinguish these, too (after Okabe and Ito 2008).
COLORS = ("#0072b2", "#d55e00", "#00805f", "#a6478a", "#806000", "#4d4d4d")
WIDTH, HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 26, 10, 34
_MAX_POINTS = 240
# For readers who cannot distinguish the colors: dashes of a line and of its key in the legend.
_DASHES = (("none", "solid"), ("8 3", "dashed"), ("2 3", "dotted"))


@dataclass(frozen=True, kw_only=True)
class Series:
    """Holds one line of a chart: (x, y) points with ascending x; `dots` draws a dot at each."""

    label: str
    points: Points
    dots: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    format_y: Callable[[float], str] = lambda y: f"{y:.4g}",
    boundaries: Sequence[float] = (),
) -> str:
    """Returns an SVG element with the lines, axes, a grid and, for several lines, a legend.

    Args:
      series: the lines; a line without points is left out.
      title: the description for screen readers.
      format_y: formats a y value as text.
      boundaries: x values of dashed vertical lines, where one phase ends and the next begins.
    """
    series = [curve for curve in series if curve.points]
    if not series:
        return ""
    all_x = [x for curve in series for x, _ in curve.points]
    all_y = [y for curve in series for _, y in downsample(curve.points)]
    ticks_x = ticks(min(all_x), max(all_x))
    ticks_y = ticks(min(all_y), max(all_y))
    area = PlotArea(
        low_x=ticks_x[0],
        high_x=max(max(all_x), ticks_x[0] + 1),
        low_y=ticks_y[0],
        high_y=ticks_y[-1],
    )
    parts = [area.axes(ticks_x, ticks_y, "step", lambda x: f"{x:,.0f}", format_y)]
    for x in boundaries:
        if area.low_x < x < area.high_x:
            parts.append(area.line((x, area.low_y), (x, area.high_y), "bound"))
    for index, curve in enumerate(series):
        parts.append(_render_curve(curve, index, area, format_y))
    return svg(title, parts) + (_legend(series) if len(series) > 1 or series[0].dots else "")


def svg(title: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    """Returns an SVG element of the width of a `Frame`; screen readers read `title`."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, kw_only=True)
class PlotArea:
    """Converts values on the two axes of a chart to positions in the SVG element."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        """Returns the horizontal position of a value, from the left."""
        fraction = (value - self.low_x) / (self.high_x - self.low_x)
        return _LEFT + fraction * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Returns the vertical position of a value, from the top."""
        fraction = (value - self.low_y) / (self.high_y - self.low_y)
        return HEIGHT - _BOTTOM - fraction * (HEIGHT - _TOP - _BOTTOM)

    def line(self, start: tuple[float, float], end: tuple[float, float], css_class: str) -> str:
        """Draws a line between two points given by their values; `kind` is its CSS class."""
        (x1, y1), (x2, y2) = start, end
        return (
            f'<line x1="{self.x(x1):.1f}" y1="{self.y(y1):.1f}" x2="{self.x(x2):.1f}" '
            f'y2="{self.y(y2):.1f}" class="{css_class}"/>'
        )

    def axes(
        self,
        ticks_x: Sequence[float],
        ticks_y: Sequence[float],
        x_label: str,
        format_x: Callable[[float], str],
        format_y: Callable[[float], str],
    ) -> str:
        """Draws the grid, the numbers at both axes, and the label of the x axis."""
        parts = []
        for y in ticks_y:
            parts.append(self.line((self.low_x, y), (self.high_x, y), "grid"))
            parts.append(
                f'<text x="{_LEFT - 6}" y="{self.y(y) + 4:.1f}" text-anchor="end">'
                f"{html.escape(format_y(y))}</text>"
            )
        for x in ticks_x:
            if _LEFT - 1 <= self.x(x) <= WIDTH - _RIGHT + 1:
                parts.append(
                    f'<text x="{self.x(x):.1f}" y="{HEIGHT - _BOTTOM + 16}" '
                    f'text-anchor="middle">{html.escape(format_x(x))}</text>'
                )
        parts.append(
            f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 3}" text-anchor="end">'
            f"{html.escape(x_label)}</text>"
        )
        return "".join(parts)


def ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """Returns evenly spaced round numbers that cover the range from `low` to `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # the same number, or all but rounding
        spread = abs(low) * 0.1 or 1.0
        low, high = low - spread, high + spread
    raw_step = (high - low) / target_count
    magnitude = 10.0 ** math.floor(math.log10(raw_step))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw_step * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def downsample(points: Points, max_points: int = _MAX_POINTS) -> list[tuple[float, float]]:
    """Averages neighboring points, so that at most `max_points` remain and the line is smooth."""
    if len(points) <= max_points:
        return list(points)
    group_bounds = [round(index * len(points) / max_points) for index in range(max_points + 1)]
    groups = [points[a:b] for a, b in itertools.pairwise(group_bounds)]
    return [
        (math.fsum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups
    ]


def _render_curve(
    curve: Series, index: int, area: PlotArea, format_y: Callable[[float], str]
) -> str:
    points, (color, dashes, _) = downsample(curve.points), _line_style(index)
    path = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" stroke="{color}" stroke-dasharray="{dashes}"/>']
    if curve.dots or len(points) == 1:
        parts += [
            f'<circle cx="{area.x(x):.1f}" cy="{area.y(y):.1f}" r="3" fill="{color}">'
            f"<title>step {x:,.0f}: {html.escape(format_y(y))}</title></circle>"
            for x, y in points
        ]
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    keys = []
    for index, curve in enumerate(series):
        color, _, border = _line_style(index)
        key = f'<i style="border-top:3px {border} {color}"></i>'
        keys.append(f"<span>{key}{html.escape(curve.label)}</span>")
    return f'<div class="legend">{"".join(keys)}</div>'


def _line_style(index: int) -> tuple[str, str, str]:
    """Returns color, dashes and border style of a line."""
    return (COLORS[index % len(COLORS)], *_DASHES[index % len(_DASHES)])
