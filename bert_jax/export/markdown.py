"""Formats tables and lists as Markdown, for model cards."""

from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table; floats have five significant digits."""
    lines = [_line(header), _line(["---"] * len(header)), *(_line(row) for row in rows)]
    return "\n".join(lines)


def bullets(items: Iterable[str]) -> str:
    """Returns a Markdown list; line breaks within an item become spaces."""
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
