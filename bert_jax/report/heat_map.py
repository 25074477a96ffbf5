"""Draws matrices as HTML tables whose cells are shaded by their values."""

from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.report.html import escape

_POSITIVE, _NEGATIVE = "var(--right)", "var(--wrong)"
_MAX_OPACITY = 0.5  # text keeps its contrast to the background


def shade(fraction: float) -> str:
    """Returns a CSS background: transparent for 0, blue up to 1, orange down to -1."""
    color = _POSITIVE if fraction >= 0 else _NEGATIVE
    return f"background:rgba({color},{_MAX_OPACITY * min(abs(fraction), 1.0):.2f})"


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    corner: str = "",
    caption: str = "",
    format_value: Callable[[float], str] = lambda value: f"{value:.2f}",
) -> str:
    """Returns an HTML table of numbers, shaded in proportion to the largest absolute one.

    Args:
      values: [rows, columns]; NaN is an empty cell.
      corner: what rows and columns are, such as "layer \\\\ head".
    """
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0

    def cell(value: float) -> str:
        if np.isnan(value):
            return "<td></td>"
        return f'<td style="{shade(value / largest)}">{escape(format_value(value))}</td>'

    header = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(cell, row.tolist()))}</tr>'
        for name, row in zip(rows, values, strict=True)
    )
    return (
        f'<table class="numbers">{f"<caption>{escape(caption)}</caption>" if caption else ""}'
        f'<thead><tr><th scope="col">{escape(corner)}</th>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
