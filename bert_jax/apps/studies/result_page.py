"""Writes tables of results as Markdown and as an HTML page that opens offline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.io.atomic_io import atomic_write
from bert_jax.report import html

MARKDOWN_FILE, HTML_FILE = "table.md", "table.html"


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Holds a table of text cells; `num_text_columns` is the number of left-aligned columns."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    num_text_columns: int = 1

    def markdown(self) -> str:
        """Formats the table as Markdown with aligned columns."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        separator = [
            "-" * width if index < self.num_text_columns else "-" * (width - 1) + ":"
            for index, width in enumerate(widths)
        ]
        lines = [
            " | ".join(
                cell.ljust(width) if index < self.num_text_columns else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (cells[0], separator, *cells[1:])
        ]
        return "".join(f"| {line} |\n" for line in lines)


def write_pages(
    folder: Path,
    title: str,
    table: ResultTable,
    notes: Sequence[str],
    charts: Sequence[tuple[str, str]] = (),
    *,
    introduction: str = "",
    charts_title: str = "By setting",
    sections: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes table.md and table.html: the table, notes, and (HTML only) charts.

    Args:
      folder: the folder of the files.
      title: the heading of the page.
      table: the table.
      notes: sentences below the table.
      charts: pairs (heading, SVG element).
      introduction: a paragraph below the title.
      charts_title: the heading of the charts.
      sections: pairs (heading, HTML) after the notes (HTML only).
    """
    note_lines = "".join(f"- {note}\n" for note in notes)
    text = f"{introduction}\n\n" if introduction else ""
    atomic_write(folder / MARKDOWN_FILE, f"# {title}\n\n{text}{table.markdown()}\n{note_lines}")
    cards = "".join(html.card(svg, title=heading) for heading, svg in charts)
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    body = f"<h1>{html.escape(title)}</h1>"
    body += f"<p>{html.escape(introduction)}</p>" if introduction else ""
    body += html.section("Results", html.table(table.columns, table.rows))
    if cards:
        body += f'<h2>{html.escape(charts_title)}</h2><div class="charts">{cards}</div>'
    body += html.section("How these numbers were computed", f"<ul>{items}</ul>")
    body += "".join(html.section(heading, content) for heading, content in sections)
    atomic_write(folder / HTML_FILE, html.html_page(title, body))
