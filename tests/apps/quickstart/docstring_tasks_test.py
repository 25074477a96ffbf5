"""Writes the docstring tasks: modules in one split, no shared text, deterministic, balanced.

tests/quickstart/stages_test.py covers bert_jax/apps/quickstart/stages.py.
"""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.quickstart.docstrings import (
    MAX_TEXTS,
    NUM_LIBRARIES,
    write_library_task,
    write_word_order_task,
)
from bert_jax.errors import UserError


def write_documents(file: Path, libraries: int, modules: int, texts: int) -> None:
    rng = np.random.default_rng(0)
    with file.open("w") as stream:
        for library in range(libraries):
            for module in range(modules):
                name = f"lib{library}.m{module}"
                found = [f"{name} {i} {rng.integers(1 << 40)}" for i in range(texts)]
                found.append("a sentence that every library has")
                row = {"module": name, "package": f"lib{library}", "text": "\n\n".join(found)}
                stream.write(json.dumps(row) + "\n")


def read_examples(folder: Path, split: str) -> list[dict[str, str]]:
    with (folder / f"{split}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_splits_share_no_module_and_no_sentence(tmp_path):
    write_documents(tmp_path / "documents.jsonl", libraries=10, modules=40, texts=30)
    write_library_task(tmp_path / "documents.jsonl", tmp_path / "task")
    train, dev = (read_examples(tmp_path / "task", split) for split in ("train", "dev"))
    assert {row["library"] for row in train} == {row["library"] for row in dev}
    assert len({row["library"] for row in train}) == NUM_LIBRARIES
    modules = [{row["text"].split()[0] for row in split} for split in (train, dev)]
    assert not modules[0] & modules[1]
    assert not any("every library" in row["text"] for row in train + dev)
    assert all(row["text"].startswith(row["library"] + ".") for row in train + dev)
    largest = [max(Counter(row["library"] for row in split).values()) for split in (train, dev)]
    assert sum(largest) <= MAX_TEXTS
    before = (tmp_path / "task/train.csv").read_bytes()
    write_library_task(tmp_path / "documents.jsonl", tmp_path / "second_task")
    assert (tmp_path / "second_task/train.csv").read_bytes() == before


def test_one_library_is_an_error(tmp_path):
    write_documents(tmp_path / "documents.jsonl", libraries=1, modules=40, texts=30)
    with pytest.raises(UserError, match="1 libraries have enough documentation"):
        write_library_task(tmp_path / "documents.jsonl", tmp_path / "task")


SENTENCE = "the file value array default name is read from given path before it can be"


def write_sentences(file: Path, modules: int, sentences: int) -> None:
    rng = np.random.default_rng(0)
    with file.open("w") as stream:
        for module in range(modules):
            texts = [
                " ".join(["Returns", *rng.permutation(SENTENCE.split()), "again."])
                for _ in range(sentences)
            ]
            row = {"module": f"m{module}", "package": "lib", "text": "\n\n".join(texts)}
            stream.write(json.dumps(row) + "\n")


def test_word_order_task_swaps_two_neighbors_in_half_of_the_sentences(tmp_path):
    documents = tmp_path / "documents.jsonl"
    write_sentences(documents, modules=8, sentences=100)
    sentences = {
        text
        for line in documents.read_text().splitlines()
        for text in json.loads(line)["text"].split("\n\n")
    }
    config = write_word_order_task(documents, tmp_path / "task")
    assert (config.text, config.label) == ("text", "order")
    examples = read_examples(tmp_path / "task", "train") + read_examples(tmp_path / "task", "dev")
    assert len(examples) == len(sentences) == 800
    used = set()
    for row in examples:
        words = row["text"].split()
        if row["order"] == "intact":
            assert row["text"] in sentences
            used.add(row["text"])
            continue
        assert row["text"] not in sentences
        originals = {
            " ".join([*words[:i], words[i + 1], words[i], *words[i + 2 :]])
            for i in range(1, len(words) - 2)
        }
        (original,) = originals & sentences
        used.add(original)
    assert used == sentences  # each is used once, intact or swapped
    # 400 are expected; 60 are more than four standard deviations.
    assert abs(sum(row["order"] == "swapped" for row in examples) - 400) < 60


def test_too_few_sentences_are_an_error(tmp_path):
    write_sentences(tmp_path / "documents.jsonl", modules=2, sentences=20)
    with pytest.raises(UserError, match="found 40 sentences for the word order task"):
        write_word_order_task(tmp_path / "documents.jsonl", tmp_path / "task")
