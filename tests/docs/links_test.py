"""Covers mkdocs.yml and the links of README.md, docs/ and all other Markdown files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# A page that other folders include is read from its own folder.
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(
        page
        for folder in (".github", "bench", "configs", "docs", "examples", "tests", "tpu")
        for page in (ROOT / folder).rglob("*.md")
    ),
]


def nav_pages(entries: list[Any]) -> Iterator[str]:
    """Yields the paths in the navigation of mkdocs.yml."""
    for entry in entries:
        (value,) = entry.values()
        yield from nav_pages(value) if isinstance(value, list) else [value]


def test_navigation_of_the_site_lists_every_page_once():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = sorted(nav_pages(site["nav"]))
    excluded = set(site["exclude_docs"].split())
    found = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - excluded
    assert listed == sorted(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path):
    assert not [target for target in links(page) if not (page.parent / target).exists()]


def links(page: Path) -> list[str]:
    """Returns the targets of the links to files, without anchors."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [target for target in targets if "://" not in target]


def test_pages_of_the_site_link_to_pages_of_the_site():
    outside = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCS.rglob("*.md")
        if page.name not in ("files.md", "reading.md")  # not on the site
        for target in links(page)
        if not (page.parent / target).resolve().is_relative_to(DOCS)
    ]
    assert not outside


# Pages that record long commands with their output.
RECORDS = ("files", "how_bert_is_pretrained", "performance", "results", "terminal", "tpu")


def test_code_blocks_fit_their_column():
    pages = (page for page in (ROOT / "README.md", *DOCS.rglob("*.md")) if page.stem not in RECORDS)
    too_long: list[str] = []
    for page in pages:
        blocks = re.findall(r"^```\w+\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        blocks += re.findall(r"^    .+$", page.read_text(), re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()]
        too_long += [f"{page.name}: {line}" for line in lines if len(line) > 100]
    assert not too_long


def test_every_module_in_the_api_reference_exists():
    for page in (DOCS / "reference").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE):
            path = ROOT.joinpath(*name.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            parent = path.parent.with_suffix(".py")
            assert any(file.is_file() for file in files) or (
                parent.is_file()
                and re.search(rf"^(def|class) {path.name}\b", parent.read_text(), re.MULTILINE)
            ), f"{page.name}: {name}"
