"""Gathers prose from Python documentation on this machine, and labeled tasks made of it.

It reads the docstrings of the standard library and of every installed package from their source
(`ast`), without importing them. A document is a module; its paragraphs are the prose of its
docstrings in source order. Code, tables, and markup are dropped. Training and held-out text come
from different packages, so that held-out text is new in style and subject, too. The recipe
configs/curate/docstrings.py removes what is repeated.

The first is to name the library that a text documents, and can be solved by counting words. The
second is to find the sentences in which two neighboring words were swapped; counting words does not
help, because such a sentence has the same words as before.
"""

import ast
import csv
import hashlib
import inspect
import itertools
import json
import multiprocessing
import os
import random
import re
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from bert_jax.config.labeled_data import Columns
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, write_json
from bert_jax.text.files import read_json_objects
from bert_jax.text.sentences import split_sentences

MIN_PARAGRAPH_WORDS = 4
# Vendored copies of other packages repeat text, and tests contain little prose.
SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "_vendor", "_vendored_packages", "externals", "node_modules"}
    | {"test", "tests", "idle_test", "testdata", "site-packages"}
)

_WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][A-Za-z]+)*[.,;:!?)\"']*")
_UNDERLINE = re.compile(r"\s*([=\-~^*#+`._])\1{2,}[\s=\-~^*#+`._|]*")
_NOISE = re.compile(r"\s*(?:>>>|\.\.\.(?: |$)|In \[|\$ |\.\. |:\w+[^:]*:|@\w)")
_DOCTEST = re.compile(r"\s*>>>")
_BULLET = re.compile(r"\s*(?:[-*+•]|\(?\d{1,2}[.)])\s+")
# "  axis: The axis." and "  axis (int): The axis." (Google style), "axis : int" (NumPy style).
_ARGUMENT = re.compile(r"\s*[`*]{0,2}\w[\w.]*[`*]{0,2}(?: \([^)]*\))?:\s+(?=\S)")
_TYPE_LINE = re.compile(r"\s*\*{0,2}\w+(?:, \*{0,2}\w+)* : .*")
_SECTION = re.compile(r"\s*[A-Z]\w+(?: \w+)?:\s*")  # "Args:" above indented lines
_MARKUP = re.compile(r":[\w:]+:(?=`)|``?|\*\*|:(?=:$)")


@dataclass(frozen=True, kw_only=True)
class DocstringCorpus:
    """Holds the paths of the JSON-lines files of {"module", "package", "text"}, and counts."""

    train: Path
    held_out: Path
    counts: dict[str, dict[str, int]]


def write_docstring_corpus(
    output: Path, *, roots: list[Path] | None = None, held_out_fraction: float = 0.1
) -> DocstringCorpus:
    """Writes `train.jsonl`, `heldout.jsonl`, and `counts.json` into `output`.

    Packages are held out in the order of a hash of their names while they fit into
    `held_out_fraction` of the characters. The fraction is thus met although packages differ
    1000-fold in size.

    Args:
      output: the output folder; it is created if necessary.
      roots: folders of top-level modules and packages (default: of this Python).
      held_out_fraction: the fraction of the characters that is held out.

    Raises:
      UserError: no documentation was found, or there are too few packages to hold one out.
    """
    files = sorted(_source_files(default_roots() if roots is None else roots))
    by_package: dict[str, list[tuple[str, list[str]]]] = {}
    for package, module, found_paragraphs in _read_all_docstrings(files):
        by_package.setdefault(package, []).append((module, found_paragraphs))
    held_out = _choose_held_out(by_package, held_out_fraction)
    if not held_out or len(held_out) == len(by_package):
        raise UserError(
            f"found documentation of {len(by_package)} package(s) in {len(files)} source files; "
            "expected at least two, so that one can be held out: pip install more packages"
        )
    output.mkdir(parents=True, exist_ok=True)
    counts: dict[str, dict[str, int]] = {}
    paths = {"train": output / "train.jsonl", "held_out": output / "heldout.jsonl"}
    for name, packages in (("train", set(by_package) - held_out), ("held_out", held_out)):
        documents = ((p, *document) for p in sorted(packages) for document in by_package[p])
        counts[name] = _write_documents(paths[name], documents)
        counts[name]["packages"] = len(packages)
    write_json(output / "counts.json", counts)
    return DocstringCorpus(train=paths["train"], held_out=paths["held_out"], counts=counts)


def default_roots() -> list[Path]:
    """Returns the folders of the standard library and of the installed packages."""
    paths = sysconfig.get_paths()
    return [Path(p) for p in dict.fromkeys(paths[key] for key in ("stdlib", "purelib", "platlib"))]


def extract_paragraphs(docstring: str) -> list[str]:
    """Extracts the prose paragraphs of a docstring, without code, tables, titles, and types."""
    text = inspect.cleandoc(docstring)
    text = re.sub(r"^\s*(```|~~~).*?^\s*\1", "\n", text, flags=re.DOTALL | re.MULTILINE)
    found_paragraphs = []
    code_indent: int | None = None
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        indent = _indent(lines[0])
        if code_indent is not None and indent > code_indent:
            continue  # still inside the code block after a line that ends in "::"
        code_indent = indent if lines[-1].rstrip().endswith("::") else None
        found_paragraphs += [
            p for item in _split_items(lines) if (p := _clean_prose(item)) is not None
        ]
    return found_paragraphs


def _split_items(lines: list[str]) -> Iterator[str]:
    """Splits a block of lines into unwrapped arguments, list items, and plain paragraphs."""
    item: list[str] = []
    previous_indent = 0
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        indent = _indent(line)
        is_title = bool(_UNDERLINE.fullmatch(next_line))
        next_is_indented = _indent(next_line) > indent
        is_label = next_is_indented and (_TYPE_LINE.fullmatch(line) or _SECTION.fullmatch(line))
        is_dropped = is_title or is_label or _NOISE.match(line) or _UNDERLINE.fullmatch(line)
        starts_item = _BULLET.match(line) or _ARGUMENT.match(line)
        if item and (is_dropped or starts_item or indent < previous_indent):
            yield " ".join(item)
            item = []
        if _DOCTEST.match(line):
            return  # the rest of the block is the output of the doctest
        if not is_dropped:
            item.append(_ARGUMENT.sub("", _BULLET.sub("", line), count=1).strip())
        previous_indent = indent
    if item:
        yield " ".join(item)


def _clean_prose(item: str) -> str | None:
    words = _MARKUP.sub("", item).split()
    if len(words) < MIN_PARAGRAPH_WORDS:
        return None
    text = " ".join(words)
    num_plain_words = sum(_WORD.fullmatch(word) is not None for word in words)
    is_prose = num_plain_words >= MIN_PARAGRAPH_WORDS and num_plain_words >= 0.7 * len(words)
    if not is_prose or "|" in text or "://" in text or not text.isprintable():
        return None
    return text if len(text.encode()) <= 1.02 * len(text) else None  # mostly ASCII


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _source_files(roots: list[Path]) -> Iterator[tuple[str, str, str]]:
    """Yields (top-level package, module, path) of every source file in the roots."""
    for root in roots:
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = sorted(
                s for s in subfolders if s not in SKIPPED_FOLDERS and s.isidentifier()
            )
            for name in sorted(names):
                if name.endswith(".py"):
                    path = Path(folder, name)
                    parts = path.relative_to(root).with_suffix("").parts
                    yield parts[0], ".".join(parts).removesuffix(".__init__"), str(path)


def _read_all_docstrings(files: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, list[str]]]:
    # Python parses about 3 MB/s of source per core, so use processes rather than threads. They are
    # spawned, because forking a process that has initialized JAX can hang.
    num_workers = min(os.cpu_count() or 1, 8)
    context = multiprocessing.get_context("spawn")
    if len(files) < 200:
        yield from map(_read_docstrings, files)
        return
    with context.Pool(num_workers) as pool:
        results = pool.imap(_read_docstrings, files, chunksize=32)
        yield from tqdm(results, "reading documentation", len(files), unit=" files", disable=None)


def _read_docstrings(file: tuple[str, str, str]) -> tuple[str, str, list[str]]:
    package, module, path = file
    found_paragraphs: list[str] = []
    try:
        source = Path(path).read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in third-party code
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return package, module, found_paragraphs  # a template, or a file for another Python version
    for node in _definitions(tree):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            found_paragraphs += extract_paragraphs(docstring.expandtabs())
    return package, module, found_paragraphs


def _definitions(
    tree: ast.Module,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields the module and its classes and functions in source order."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        body = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        pending += reversed(body)


def _choose_held_out(
    by_package: dict[str, list[tuple[str, list[str]]]], held_out_fraction: float
) -> set[str]:
    sizes = {
        package: sum(len(p) for _, found_paragraphs in documents for p in found_paragraphs)
        for package, documents in by_package.items()
    }
    remaining_characters = held_out_fraction * sum(sizes.values())
    held_out_packages = set()
    for package in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if 0 < sizes[package] <= remaining_characters:
            held_out_packages.add(package)
            remaining_characters -= sizes[package]
    return held_out_packages


def _write_documents(path: Path, documents: Iterator[tuple[str, str, list[str]]]) -> dict[str, int]:
    """Writes the documents that have a paragraph, and returns their counts."""
    counts: Counter[str] = Counter(documents=0)
    with atomic_path(path) as tmp_path, tmp_path.open("w", encoding="utf-8") as file:
        for package, module, found_paragraphs in documents:
            if not found_paragraphs:
                continue
            text = "\n\n".join(found_paragraphs)
            counts.update(documents=1, paragraphs=len(found_paragraphs), characters=len(text))
            file.write(json.dumps({"module": module, "package": package, "text": text}) + "\n")
    return dict(counts)


NUM_LIBRARIES = 8
MAX_TEXTS = 500
MIN_TEXTS = 60
DEV_FRACTION = 0.25

MAX_SENTENCES = 8000
MIN_SENTENCES = 200
SENTENCE_WORDS = range(6, 31)

Texts = list[tuple[str, str]]
"""A list of (module, text)."""


def write_library_task(documents: Path, output: Path) -> Columns:
    """Writes `train.csv` and `dev.csv` with the columns text and library.

    The classes are the libraries with the most paragraphs, at most 8, each with at most 500 in both
    splits together. A module belongs entirely to one split, so dev has no text from the same module
    as train.

    Args:
      documents: JSON lines of {"module", "package", "text"}.
      output: the output folder; it is created if necessary.

    Raises:
      UserError: fewer than two libraries have enough text in both splits.
    """
    texts = _read_texts_by_library(documents)
    examples: dict[str, list[tuple[str, str]]] = {"train": [], "dev": []}
    libraries: list[str] = []
    for library in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        splits = _split_train_dev(texts[library], MAX_TEXTS)
        if min(map(len, splits.values())) >= MIN_TEXTS * DEV_FRACTION:
            libraries.append(library)
            for split, found in splits.items():
                examples[split] += [(text, library) for text in found]
        if len(libraries) == NUM_LIBRARIES:
            break
    if len(libraries) < 2:
        raise UserError(
            f"{documents}: {len(libraries)} libraries have enough documentation for "
            "classification; expected at least two: pip install more packages"
        )
    return _write_task(output, "library", examples)


def write_word_order_task(documents: Path, output: Path) -> Columns:
    """Writes `train.csv` and `dev.csv` with the columns text and order, "intact" or "swapped".

    Every sentence is used once. In about half of them, chosen by a hash, two different neighboring
    words are swapped. The first word and words with digits or punctuation stay where they are,
    because a capital letter or a full stop in the wrong place would reveal the swap.
    Modules are split as in `write_library_task`.

    Args:
      documents: JSON lines of {"module", "package", "text"}.
      output: the output folder; it is created if necessary.

    Raises:
      UserError: there are too few sentences.
    """
    sentences: dict[str, str] = {}
    for module, _, paragraph in _read_paragraphs(documents):
        for sentence in split_sentences(paragraph):
            if sentence.endswith(".") and _swap_positions(sentence.split()):
                sentences.setdefault(sentence, module)
    splits = _split_train_dev([(m, s) for s, m in sentences.items()], MAX_SENTENCES)
    if min(map(len, splits.values())) < MIN_SENTENCES * DEV_FRACTION:
        raise UserError(
            f"{documents}: found {len(sentences)} sentences for the word order task; expected at "
            f"least {MIN_SENTENCES} in several modules: pip install more packages"
        )
    return _write_task(
        output, "order", {split: map(_swap_in_half, found) for split, found in splits.items()}
    )


def _swap_in_half(sentence: str) -> tuple[str, str]:
    """Returns (sentence, label) with two neighboring words swapped, or unchanged."""
    words = sentence.split()
    rng = random.Random(_hash(sentence))
    if rng.random() < 0.5:
        return " ".join(words), "intact"
    i = rng.choice(_swap_positions(words))
    words[i], words[i + 1] = words[i + 1], words[i]
    return " ".join(words), "swapped"


def _swap_positions(words: list[str]) -> list[int]:
    """Returns each i for which words i and i + 1 may be swapped; none if the length is unusual."""
    if len(words) not in SENTENCE_WORDS:
        return []
    return [
        i
        for i, (word, next_word) in enumerate(itertools.pairwise(words))
        if i > 0 and word.isalpha() and next_word.isalpha() and word.lower() != next_word.lower()
    ]


def _read_paragraphs(documents: Path) -> Iterator[tuple[str, str, str]]:
    """Yields (module, library, paragraph)."""
    for _, document in read_json_objects(documents):
        for paragraph in document["text"].split("\n\n"):
            yield document["module"], document["package"], paragraph


def _read_texts_by_library(documents: Path) -> dict[str, Texts]:
    """Returns {library: [(module, paragraph)]}, without paragraphs that several libraries have."""
    texts_by_library: dict[str, Texts] = defaultdict(list)
    for module, library, paragraph in _read_paragraphs(documents):
        texts_by_library[library].append((module, paragraph))
    library_counts = Counter(
        text for texts in texts_by_library.values() for text in {text for _, text in texts}
    )
    return {
        n: [pair for pair in texts if library_counts[pair[1]] == 1]
        for n, texts in texts_by_library.items()
    }


def _split_train_dev(texts: Texts, max_texts: int) -> dict[str, list[str]]:
    """Splits at most `max_texts` texts by hash, modules kept together."""
    modules = sorted({module for module, _ in texts}, key=_hash)
    dev_modules = set(modules[: max(1, round(DEV_FRACTION * len(modules)))])
    splits: dict[str, list[str]] = {"train": [], "dev": []}
    for module, text in sorted(texts, key=lambda pair: _hash(pair[1])):
        split = "dev" if module in dev_modules else "train"
        fraction = DEV_FRACTION if split == "dev" else 1 - DEV_FRACTION
        if len(splits[split]) < max_texts * fraction:
            splits[split].append(text)
    return splits


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _write_task(
    output: Path, label: str, examples: Mapping[str, Iterable[tuple[str, str]]]
) -> Columns:
    """Writes the (text, label) pairs of train and dev as CSV files."""
    output.mkdir(parents=True, exist_ok=True)
    for split, pairs in examples.items():
        file = output / f"{split}.csv"
        with (
            atomic_path(file) as tmp_path,
            tmp_path.open("w", newline="", encoding="utf-8") as stream,
        ):
            writer = csv.writer(stream)
            writer.writerow(("text", label))
            writer.writerows(pairs)
    return Columns(
        train=str(output / "train.csv"),
        dev=str(output / "dev.csv"),
        text="text",
        label=label,
        kind="classification",
    )
