"""Reads the code blocks of a Markdown page and runs them in a folder, in order.

A comment `<!-- not run: REASON -->` in the line above a block excludes it. Lines of shell blocks
that start with `bert-jax` run in this process, which is faster than a process for each line.
"""

import contextlib
import glob
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bert_jax.__main__ import main

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE_COMMENT = re.compile(r"# (\w+\.py)\n")

ChangeWords = Callable[[list[str]], list[str]]
"""Changes the words of a `bert-jax` command before it runs, for example to train for less time."""


@dataclass(frozen=True)
class Snippet:
    """Holds one fenced block: its language, its code, its line, and why it is not run, if so."""

    language: str
    code: str
    line: int
    reason: str | None


def read_snippets(page: Path) -> list[Snippet]:
    """Returns the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(
            found["language"],
            found["code"],
            text.count("\n", 0, found.start("code")) + 1,
            found["reason"],
        )
        for found in _BLOCK.finditer(text)
    ]


def run_page(page: Path, change_words: ChangeWords) -> list[str]:
    """Runs the Python and shell blocks of a page in the current folder; returns the commands.

    A Python block whose first line is a comment with a file name is written to that file instead.
    A text block after a Python block is what the Python block must print.
    """
    commands: list[str] = []
    printed: str | None = None  # by the block before, if it is Python
    names: dict[str, object] = {"__name__": page.stem}
    for snippet in read_snippets(page):
        if snippet.reason is not None:
            continue
        if snippet.language == "python":
            file = _FILE_COMMENT.match(snippet.code)
            if file:
                Path(file[1]).write_text(snippet.code)
            else:
                padding = "\n" * (snippet.line - 1)  # so that a traceback shows the page's line
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(padding + snippet.code, str(page), "exec"), names)
                printed = output.getvalue()
                print(printed, end="")
                continue
        elif snippet.language == "text" and printed is not None:
            assert printed == snippet.code, f"{page.name}:{snippet.line}"
        elif snippet.language in ("bash", "sh"):
            for line in snippet.code.replace("\\\n", " ").splitlines():
                if shlex.split(line, comments=True):
                    commands.append(line.strip())
                    run_line(line, f"{page.name}:{snippet.line}", change_words)
        printed = None
    return commands


def run_line(line: str, place: str, change_words: ChangeWords) -> None:
    """Runs one shell command; `bert-jax` may be followed by `> FILE`."""
    words = shlex.split(line, comments=True)
    if words[0] != "bert-jax":
        subprocess.run(["bash", "-ec", line], check=True)
        return
    if words[1] == "show-config":  # sets the number of devices, which is fixed in this process
        command = [sys.executable, "-m", "bert_jax", *words[1:]]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        return
    with contextlib.ExitStack() as stack:
        if ">" in words:
            output = stack.enter_context(open(words[words.index(">") + 1], "w"))
            stack.enter_context(contextlib.redirect_stdout(output))
            words = words[: words.index(">")]
        exit_code = main(change_words(_expand_globs(line, words))[1:])
    assert exit_code == 0, f"{place}: exit code {exit_code}: {line}"


def _expand_globs(line: str, words: list[str]) -> list[str]:
    """Returns the words with unquoted patterns replaced by the files that match, as bash does."""
    expanded: list[str] = []
    for word in words:
        quoted = f"'{word}'" in line or f'"{word}"' in line
        files = sorted(glob.glob(word)) if "*" in word and not quoted else []
        expanded += files or [word]
    return expanded
