"""Draws the distribution of a signal of documents as inline SVG, with the limits of the rules.

Also formats the numbers of the report on a curated corpus.
"""

from collections.abc import Sequence

from bert_jax.data.corpus.curation.model_signals import ModelSignal
from bert_jax.data.corpus.curation.plan import CurationConfig
from bert_jax.data.corpus.curation.rules import Rule
from bert_jax.data.corpus.curation.sample import quantiles, rule_limits
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
    # A limit far from all values (100,000 words) would leave one bar; equal values have one anyway.
    margin = 2 * (top - low) or float("inf")
    near = [bound for bound in bounds if low - margin <= bound <= top + margin]
    low, high = min([low, *near]), max([top, *near])
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


def signal_title(signal: str | ModelSignal, reason: str, config: CurationConfig) -> str:
    """Returns the name of a signal, or the reason of a rule if two signals have this name."""
    names = [each if isinstance(each, str) else each.name for each in rule_limits(config)]
    name = signal if isinstance(signal, str) else signal.name
    return name.replace("_", " ") if names.count(name) == 1 else reason


def format_limits(rule: Rule) -> str:
    """Formats the limits of a rule, such as "≥ 50, ≤ 100,000"."""
    parts: list[str] = []
    if rule.at_least is not None:
        parts.append(f"≥ {format_number(rule.at_least)}")
    if rule.at_most is not None:
        parts.append(f"≤ {format_number(rule.at_most)}")
    return ", ".join(parts)


def format_percent(part: float, whole: float) -> str:
    """Formats a fraction as percent; "0%" and "100%" mean none and all, never a rounded value."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < abs(percent) < 0.01:
        return "<0.01%" if percent > 0 else ">-0.01%"
    return ">99.9%" if 99.95 <= percent < 100 else f"{percent:.3g}%"
