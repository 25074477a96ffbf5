"""Draws line charts as inline SVG, without scripts."""

import html
import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

Points = Sequence[tuple[float, float]]

# Most color-blind readers can distinguish these, too (after Okabe and Ito 2008). For pictures that
# stand alone; in a page, the CSS classes c0, c1, ... of html.py set the colors.
COLORS = ("#0072b2", "#d55e00", "#00805f", "#a6478a", "#806000", "#4d4d4d")
WIDTH, HEIGHT = 380, 232
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 16, 20, 34
_MAX_POINTS = 240
_HOVER_COLUMNS = 40
_MIN_CHARACTER_WIDTH = 7
# For readers who cannot distinguish the colors: dashes of a line and of its key in the legend.
_DASHES = (("none", "solid"), ("8 3", "dashed"), ("2 3", "dotted"))


@dataclass(frozen=True, kw_only=True)
class Series:
    """Holds one line of a chart: (x, y) points with ascending x.

    Attributes:
      raw: points of a second, faint line of the same color: the values before smoothing.
      dots: whether to draw a dot at each point.
    """

    label: str
    points: Points
    raw: Points = ()
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Marks a range of x, start excluded, by its name at the top of a chart."""

    name: str
    start: float
    end: float


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    format_y: Callable[[float], str] = lambda y: f"{y:.4g}",
    phases: Sequence[Phase] = (),
    x_name: str = "update",
) -> str:
    """Returns an SVG element with the lines, axes, a grid and, for several lines, a legend.

    Text appears when the pointer is above a chart: the values of all lines near it.

    Args:
      series: the lines; a line without points is left out.
      title: the beginning of the description for screen readers.
      format_y: formats a y value as text.
      phases: parts of the x axis, with a dashed line between one and the next.
      x_name: what the numbers of the x axis count.
    """
    series = [curve for curve in series if curve.points]
    if not series:
        return ""
    all_x = [x for curve in series for x, _ in curve.points]
    # Of the downsampled values, because only these are drawn: the axis would have room for
    # outliers that nobody sees.
    all_y = [y for curve in series for ps in (curve.points, curve.raw) for _, y in downsample(ps)]
    ticks_x = ticks(min(all_x), max(all_x))
    ticks_y = ticks(min(all_y), max(all_y))
    area = PlotArea(
        low_x=ticks_x[0],
        high_x=max(max(all_x), ticks_x[0] + 1),
        low_y=ticks_y[0],
        high_y=ticks_y[-1],
    )
    whole_x = [x for x in ticks_x if x == round(x)]  # x counts something
    parts = [area.axes(whole_x, ticks_y, x_name, lambda x: f"{x:,.0f}", format_y)]
    parts += [_render_phase(phase, area) for phase in phases if len(phases) > 1]
    for index, curve in enumerate(series):
        parts.append(_render_curve(curve, index, area))
    parts += _hover_columns(series, area, format_y, x_name)
    description = "; ".join(
        f"{curve.label} from {format_y(curve.points[0][1])} to {format_y(curve.points[-1][1])} "
        f"at {x_name} {curve.points[-1][0]:,.0f}"
        for curve in series
    )
    has_legend = len(series) > 1 or series[0].dots
    return svg(f"{title}: {description}", parts) + (_legend(series) if has_legend else "")


def smooth(points: Points, span: int, restarts: Sequence[float] = ()) -> list[tuple[float, float]]:
    """Returns exponential moving averages of the y values.

    A value k points ago has the weight (1 - 2 / (span + 1))^k, and the weights are divided by
    their sum, so the first averages are not biased toward 0.

    Args:
      restarts: x values after which the average starts again, because values before and after
        cannot be compared.
    """
    decay = 1 - 2 / (span + 1)
    averages, total, weight, restarts_left = list[tuple[float, float]](), 0.0, 0.0, list(restarts)
    for x, y in points:
        while restarts_left and x > restarts_left[0]:
            del restarts_left[0]
            total = weight = 0.0
        total, weight = decay * total + y, decay * weight + 1
        averages.append((x, total / weight))
    return averages


def evenly_spaced(items: Sequence[T], max_items: int) -> list[T]:
    """Returns at most `max_items` evenly spaced items, including the first and the last."""
    if len(items) <= max_items:
        return list(items)
    last = len(items) - 1
    return [items[round(i * last / (max_items - 1))] for i in range(max_items)]


def svg(title: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    """Returns an SVG element of the width of a `PlotArea`; screen readers read `title`."""
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

    def path(self, points: Points) -> str:
        """Returns the positions of points as the attribute `points` of a line."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    def line(self, start: tuple[float, float], end: tuple[float, float], css_class: str) -> str:
        """Draws a line between two points given by their values."""
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


def _render_phase(phase: Phase, area: PlotArea) -> str:
    """Draws the name of a phase, and a line at its end unless the chart ends there."""
    start, end = max(phase.start, area.low_x), min(phase.end, area.high_x)
    parts = []
    if area.low_x < phase.end < area.high_x:
        parts.append(area.line((phase.end, area.low_y), (phase.end, area.high_y), "bound"))
    left, right = area.x(start), area.x(end)
    if start < end and right - left > _MIN_CHARACTER_WIDTH * len(phase.name):
        parts.append(
            f'<text x="{(left + right) / 2:.1f}" y="{_TOP - 7}" text-anchor="middle">'
            f"{html.escape(phase.name)}</text>"
        )
    return "".join(parts)


def _render_curve(curve: Series, index: int, area: PlotArea) -> str:
    points, (css_class, dashes, _) = downsample(curve.points), _line_style(index)
    parts = []
    if curve.raw:
        raw_path = area.path(downsample(curve.raw))
        parts.append(f'<polyline points="{raw_path}" class="faint {css_class}"/>')
    parts.append(
        f'<polyline points="{area.path(points)}" class="{css_class}" stroke-dasharray="{dashes}"/>'
    )
    if curve.dots or len(points) == 1:
        parts += [
            f'<circle cx="{area.x(x):.1f}" cy="{area.y(y):.1f}" r="3" class="{css_class}"/>'
            for x, y in points
        ]
    return "".join(parts)


def _hover_columns(
    series: Sequence[Series], area: PlotArea, format_y: Callable[[float], str], x_name: str
) -> list[str]:
    """Returns columns that cover the chart; each has a tooltip with the values in its middle."""
    xs_of_curve = [[x for x, _ in curve.points] for curve in series]
    # Invisible columns with an SVG title are the tooltips of a page without scripts.
    all_x = evenly_spaced(sorted({x for xs in xs_of_curve for x in xs}), _HOVER_COLUMNS)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(all_x)]
    columns = []
    for x, low, high in zip(all_x, [area.low_x, *middles], [*middles, area.high_x], strict=True):
        values = []
        for curve, xs in zip(series, xs_of_curve, strict=True):
            if near := curve.points[bisect_left(xs, low) : bisect_right(xs, high)]:
                nearest_x, y = min(near, key=lambda point: abs(point[0] - x))
                remark = "" if nearest_x == x else f" ({x_name} {nearest_x:,.0f})"
                values.append(f"{curve.label}: {format_y(y)}{remark}")
        tooltip = html.escape("\n".join([f"{x_name} {x:,.0f}", *values]))
        columns.append(
            f'<rect x="{area.x(low):.1f}" y="{_TOP}" class="hover" '
            f'width="{area.x(high) - area.x(low):.1f}" height="{HEIGHT - _TOP - _BOTTOM}">'
            f"<title>{tooltip}</title></rect>"
        )
    return columns


def _legend(series: Sequence[Series]) -> str:
    keys = []
    for index, curve in enumerate(series):
        css_class, _, border = _line_style(index)
        key = f'<i class="{css_class}" style="border-top:3px {border} var(--line)"></i>'
        keys.append(f"<span>{key}{html.escape(curve.label)}</span>")
    return f'<div class="legend">{"".join(keys)}</div>'


def _line_style(index: int) -> tuple[str, str, str]:
    """Returns CSS class, dashes and border style of a line."""
    return (f"c{index % len(COLORS)}", *_DASHES[index % len(_DASHES)])
