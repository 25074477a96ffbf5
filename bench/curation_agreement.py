"""Compares the decisions of the rules with datatrove's filters, and explains the differences.

    python3 -m venv datatrove && datatrove/bin/pip install 'datatrove[processing]==0.10.1' spacy
    python bench/curation_agreement.py --datatrove-python datatrove/bin/python

The documents are pages of novels and speeches of BERT_JAX_SHARED, HTML documentation of this
machine and docstrings. The first row compares the rules as they are. Each further row also
replaces some of our functions with the formulas of datatrove: one more difference goes away.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from curation_ablation import by_hash, docstrings, pages

from bert_jax.apps.curate import signals
from bert_jax.apps.curate.formats.web import HtmlFiles
from bert_jax.apps.curate.plan import FINEWEB_QUALITY, GOPHER_QUALITY, GOPHER_REPETITION, RuleSet
from bert_jax.apps.curate.signals import SIGNALS, TextView

RULE_SETS = (GOPHER_QUALITY, GOPHER_REPETITION, FINEWEB_QUALITY)
MAX_CHARACTERS = 15_000
MAX_EXAMPLES = 4
Signal = Callable[[TextView], float]


class DatatroveView(TextView):
    """Has the tokens of datatrove, which spaCy splits, in place of ours."""

    def __init__(self, text: str, tokens: list[str], symbols: frozenset[str]):
        super().__init__(text)
        self._tokens, self._symbols = tokens, symbols

    @cached_property
    def tokens(self) -> list[str]:
        return self._tokens

    @cached_property
    def words(self) -> list[str]:
        return [token for token in self._tokens if not self._symbols.issuperset(token)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datatrove-python", required=True, help="Python that has datatrove")
    parser.add_argument("--documents", type=int, default=300, help="limit of each source")
    parser.add_argument("--docs", type=Path, default=Path("/usr/share/doc"), help="HTML pages")
    args = parser.parse_args()
    texts = list(documents(args))
    external, symbols, terminal = run_datatrove(args.datatrove_python, texts)
    levels = explained_levels(terminal)
    print(f"{len(texts):,} documents of at most {MAX_CHARACTERS:,} characters\n")
    print(f"| rules | {' | '.join(each.name for each in RULE_SETS)} |\n|---|---|---|---|")
    used: dict[str, Signal] = dict(SIGNALS)
    differences: list[tuple[str, int]] = []
    for name, (has_external_tokens, changed) in levels.items():
        used |= changed
        cells: list[str] = []
        differences = []
        for rule_set in RULE_SETS:
            agreed = 0
            for index, text in enumerate(texts):
                found = external[index]
                view = (
                    DatatroveView(text, found["tokens"], symbols)
                    if has_external_tokens
                    else TextView(text)
                )
                if keeps(rule_set, used, view) == found["decisions"][rule_set.name]:
                    agreed += 1
                else:
                    differences.append((rule_set.name, index))
            cells.append(f"{agreed / len(texts):.1%}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nstill different: {dict(Counter(name for name, _ in differences))}")
    for name, index in differences[:MAX_EXAMPLES]:
        print(f"  {name}: {external[index]['decisions'][name]}: {texts[index][:100]!r}")


def documents(args: argparse.Namespace) -> Iterator[str]:
    """Yields the documents of all sources, cut to a length."""
    text_folder = Path(os.environ["BERT_JAX_SHARED"]) / "data" / "text"
    novels = map(str, sorted((text_folder / "novels").glob("*.gz"))[::10])
    speeches = map(str, sorted((text_folder / "inaugural").glob("*.txt")))
    html = HtmlFiles(str(args.docs / "**" / "*.html"), content="all")
    sources: tuple[Iterable[str], ...] = (
        pages(novels),
        pages(speeches),
        (doc.text for file in by_hash(html.list_files()) for doc in html.read_file(file)),
        docstrings(),
    )
    for source in sources:
        for text in itertools.islice(source, args.documents):
            if cut := text[:MAX_CHARACTERS].encode("utf-8", "replace").decode().strip():
                yield cut


def run_datatrove(
    python: str, texts: list[str]
) -> tuple[list[dict[str, Any]], frozenset[str], tuple[str, ...]]:
    """Returns datatrove's tokens and decisions, its symbols, and its terminal punctuation."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        script = Path(__file__).with_name("curation_datatrove.py")
        command = [python, str(script), str(path), "--decisions"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed; does this Python have datatrove?")
    first, *rows = map(json.loads, done.stdout.splitlines())
    return rows, frozenset(first["symbols"]), tuple(first["terminal"])


def keeps(rule_set: RuleSet, used: Mapping[str, Signal], view: TextView) -> bool:
    """Returns whether a document passes all rules, with these functions for the signals."""
    names = ((rule, rule.signal) for rule in rule_set.rules if isinstance(rule.signal, str))
    return all(rule.allows(used[name](view)) for rule, name in names)


def explained_levels(terminal: tuple[str, ...]) -> dict[str, tuple[bool, dict[str, Signal]]]:
    """Returns the rows: whether the tokens are datatrove's, and the signals that change."""

    def lines(view: TextView) -> list[str]:
        return [line for line in view.text.split("\n") if line.strip()]

    def top(n: int) -> Signal:
        def compute(view: TextView) -> float:
            grams = [" ".join(view.tokens[i : i + n]) for i in range(len(view.tokens) - n + 1)]
            if not grams:
                return 0.0
            gram, count = Counter(grams).most_common(1)[0]
            return len(gram) * count / len(view.text)

        return compute

    def ending(view: TextView) -> float:
        return sum(line.endswith(terminal) for line in lines(view)) / len(lines(view))

    def repeated(parts: list[str]) -> tuple[int, int]:
        seen, count, characters = set[str](), 0, 0
        for part in parts:
            count, characters = count + (part in seen), characters + len(part) * (part in seen)
            seen.add(part)
        return count, characters

    def paragraphs(view: TextView) -> list[str]:
        return re.split(r"\n{2,}", view.text.strip())

    def short(view: TextView) -> float:
        limit = signals.SHORT_LINE_CHARACTERS
        return sum(len(line) <= limit for line in lines(view)) / len(lines(view))

    spaced: dict[str, Signal] = {
        "short_lines": short,
        "duplicate_lines": lambda view: repeated(lines(view))[0] / len(lines(view)),
        "duplicate_line_characters": lambda view: (
            repeated(lines(view))[1] / len(view.text.replace("\n", ""))
        ),
        "duplicate_paragraphs": lambda view: repeated(paragraphs(view))[0] / len(paragraphs(view)),
        "duplicate_paragraph_characters": lambda view: (
            repeated(paragraphs(view))[1] / len(view.text)
        ),
    }
    tops: dict[str, Signal] = {f"top_{n}gram_characters": top(n) for n in signals.TOP_NGRAMS}
    return {
        "as they are": (False, {}),
        "spaCy's tokens": (True, {}),
        "an n-gram that occurs once counts, the first of the most frequent ones": (True, tops),
        "lines end with terminal punctuation, not with a quotation mark": (
            True,
            {"lines_ending_a_sentence": ending},
        ),
        "white space around lines and paragraphs belongs to them": (True, spaced),
    }


if __name__ == "__main__":
    main()
