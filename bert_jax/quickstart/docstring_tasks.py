"""Writes two labeled tasks from the gathered documentation: library and word order.

The first is to name the library that a text documents, and can be solved by counting words. The
second is to find the sentences in which two neighboring words were swapped; counting words does not
help, because such a sentence has the same words as before.
"""

import csv
import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bert_jax.atomic_io import atomic_path
from bert_jax.data.finetuning.config import Columns
from bert_jax.errors import UserError
from bert_jax.text.files import read_json_objects
from bert_jax.text.sentences import split_sentences

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
