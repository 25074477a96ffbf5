"""Tables of results, as Markdown and on a page that opens offline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.aside import write_aside
from bert_jax.train import page

MARKDOWN, PAGE = "table.md", "table.html"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text below the names of columns."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    words: int = 1  # the first so many columns hold words, the rest numbers

    def markdown(self) -> str:
        """The table in Markdown, columns aligned."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        rule = [
            "-" * width if place < self.words else "-" * (width - 1) + ":"
            for place, width in enumerate(widths)
        ]
        lines = [
            " | ".join(
                cell.ljust(width) if place < self.words else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (cells[0], rule, *cells[1:])
        ]
        return "".join(f"| {line} |\n" for line in lines)


def write_pages(
    folder: Path,
    title: str,
    table: Table,
    notes: Sequence[str],
    charts: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes table.md and table.html: the table, sentences about it, and charts (on the page).

    Args:
      charts: (heading, SVG element).
    """
    listed = "".join(f"- {note}\n" for note in notes)
    write_aside(folder / MARKDOWN, f"# {title}\n\n{table.markdown()}\n{listed}")
    cards = "".join(page.card(svg, title=heading) for heading, svg in charts)
    items = "".join(f"<li>{page.text(note)}</li>" for note in notes)
    body = f"<h1>{page.text(title)}</h1>"
    body += page.section("Results", page.table(table.columns, table.rows))
    if cards:
        body += f'<h2>By setting</h2><div class="charts">{cards}</div>'
    body += page.section("How these numbers were made", f"<ul>{items}</ul>")
    write_aside(folder / PAGE, page.page(title, body))
