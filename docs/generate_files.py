"""Writes docs/files.md: every package and module with the first sentence of its docstring.

    python docs/generate_files.py

It also writes the pages of `docs/generate_settings.py`. `make format` runs it as well, and a test
fails if a page is out of date.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/files.md"
FOLDERS = ("bert_jax", "tpu", "configs", "bench", "examples", "docs")

HEADER = """# Files

Every module with the first sentence of its docstring. `make format` writes this page; tests are
found by the path of what they test: `tests/text/tokenizer_test.py` tests
`bert_jax/text/tokenizer.py`.
"""


def first_sentence(file: Path) -> str:
    """Returns the first sentence of a module's docstring, on one line, or "" if it has none."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.) (?=[A-Z`])", paragraph)[0]


def packages() -> Iterator[tuple[Path, list[Path]]]:
    """Yields every folder that holds Python files, with these files except `__init__.py`."""
    for folder in FOLDERS:
        found = sorted((ROOT / folder).rglob("*.py"))
        for package in sorted({file.parent for file in found}):
            yield package, [f for f in found if f.parent == package and f.name != "__init__.py"]


def render() -> str:
    """Returns the text of docs/files.md for the source files as they are now."""
    sections = [HEADER]
    for package, files in packages():
        name = package.relative_to(ROOT).as_posix()
        init = package / "__init__.py"
        summary = first_sentence(init) if init.is_file() else ""
        lines = [f"## {name}/", *([summary] if summary else [])]
        entries = [f"- [{f.name}](../{name}/{f.name}): {first_sentence(f)}" for f in files]
        sections.append("\n\n".join([*lines, "\n".join(entries)]).rstrip() + "\n")
    return "\n".join(sections)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from docs import generate_settings

    PAGE.write_text(render())
    generate_settings.write()
