"""Draws the distribution of a signal of documents as inline SVG, with the limits of the rules."""

from collections.abc import Sequence

from bert_jax.data.corpus.curation.sample import quantiles
from bert_jax.report.html import escape
from bert_jax.report.svg_charts import HEIGHT, PlotArea, svg, ticks

_NUM_BINS = 30


def histogram(values: Sequence[float], bounds: Sequence[float], title: str) -> str:
    """Draws a histogram with dashed lines at some values.

    Args:
      title: the label for screen readers.
    """
    (top,) = quantiles(values, (0.99,))
    low = min(values)
    # A limit far above all values (100,000 words) would leave one bar.
    high = max([top, *(bound for bound in bounds if bound <= low + 3 * (top - low))])
    axis = ticks(low, high)
    low, high = axis[0], axis[-1]
    counts = [0] * _NUM_BINS
    for value in values:
        counts[min(_NUM_BINS - 1, int((value - low) / (high - low) * _NUM_BINS))] += 1
    count_ticks = ticks(0, max(counts))
    area = PlotArea(low_x=low, high_x=high, low_y=0, high_y=count_ticks[-1])
    parts = [area.axes(axis, count_ticks, "value", format_number, format_number)]
    width = (high - low) / _NUM_BINS
    for index, count in enumerate(counts):
        left, right = low + index * width, low + (index + 1) * width
        tooltip = escape(f"{format_number(left)} to {format_number(right)}: {count:,} documents")
        parts.append(
            f'<rect x="{area.x(left):.1f}" y="{area.y(count):.1f}" class="c0" '
            f'width="{area.x(right) - area.x(left) - 0.5:.1f}" '
            f'height="{area.y(0) - area.y(count):.1f}"><title>{tooltip}</title></rect>'
        )
    parts += [
        area.line((bound, 0), (bound, count_ticks[-1]), "bound")
        for bound in bounds
        if low <= bound <= high
    ]
    limits = ", ".join(map(format_number, bounds))
    return svg(f"Histogram of {title}, {len(values):,} documents, limits {limits}", parts, HEIGHT)


def format_number(value: float) -> str:
    """Formats a number with at most four significant digits, or as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
