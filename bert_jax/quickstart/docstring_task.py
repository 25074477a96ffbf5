"""Writes a labeled task from the gathered documentation: which library is a docstring from?"""

import csv
import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from bert_jax.atomic_io import atomic_path
from bert_jax.data.finetuning.config import Columns
from bert_jax.errors import UserError

NUM_LIBRARIES = 8
MAX_TEXTS = 500
MIN_TEXTS = 60
DEV_FRACTION = 0.25


@dataclass(frozen=True, kw_only=True)
class DocstringTask:
    """Holds the task and its counts, {split: {library: number of texts}}."""

    task: Columns
    counts: dict[str, dict[str, int]]


def write_docstring_task(documents: Path, output: Path) -> DocstringTask:
    """Writes `train.csv` and `dev.csv` with the columns text and library.

    The classes are the libraries with the most text, at most 8, each with at most 500 paragraphs. A
    module belongs entirely to one split, so dev has no text from the same module as train.

    Args:
      documents: JSON lines of {"module", "package", "text"}.
      output: the output folder; it is created if necessary.

    Raises:
      UserError: fewer than two libraries have enough text in both splits.
    """
    texts = _read_texts_by_library(documents)
    output.mkdir(parents=True, exist_ok=True)
    chosen: dict[str, dict[str, list[str]]] = {}
    for library in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        splits = _split_train_dev(texts[library])
        if min(len(splits["train"]), len(splits["dev"])) >= MIN_TEXTS * DEV_FRACTION:
            chosen[library] = splits
        if len(chosen) == NUM_LIBRARIES:
            break
    if len(chosen) < 2:
        raise UserError(
            f"{documents}: {len(chosen)} libraries have enough documentation for classification; "
            "expected at least two: pip install more packages"
        )
    for split in ("train", "dev"):
        _write_csv(output / f"{split}.csv", {name: texts[split] for name, texts in chosen.items()})
    counts = {split: {n: len(t[split]) for n, t in chosen.items()} for split in ("train", "dev")}
    task = Columns(
        train=str(output / "train.csv"),
        dev=str(output / "dev.csv"),
        text="text",
        label="library",
        kind="classification",
    )
    return DocstringTask(task=task, counts=counts)


def _read_texts_by_library(documents: Path) -> dict[str, list[tuple[str, str]]]:
    """Returns {library: [(module, paragraph)]} without paragraphs of several libraries."""
    texts_by_library: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with documents.open(encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            for paragraph in document["text"].split("\n\n"):
                texts_by_library[document["package"]].append((document["module"], paragraph))
    library_counts = Counter(
        text for texts in texts_by_library.values() for text in {text for _, text in texts}
    )
    return {
        n: [pair for pair in texts if library_counts[pair[1]] == 1]
        for n, texts in texts_by_library.items()
    }


def _split_train_dev(texts: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Splits at most 500 of a library's paragraphs by hash, modules kept together."""
    modules = sorted({module for module, _ in texts}, key=_hash)
    dev_modules = set(modules[: max(1, round(DEV_FRACTION * len(modules)))])
    splits: dict[str, list[str]] = {"train": [], "dev": []}
    for module, text in sorted(texts, key=lambda pair: _hash(pair[1])):
        split = "dev" if module in dev_modules else "train"
        max_texts = MAX_TEXTS * (DEV_FRACTION if split == "dev" else 1 - DEV_FRACTION)
        if len(splits[split]) < max_texts:
            splits[split].append(text)
    return splits


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _write_csv(file: Path, texts: dict[str, list[str]]) -> None:
    with atomic_path(file) as tmp_path, tmp_path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("text", "library"))
        for library in sorted(texts):
            writer.writerows((text, library) for text in texts[library])
