"""Writes the docstring task: modules in one split, no shared text, deterministic.

Covers bert_jax/quickstart/docstring_task.py; tests/quickstart/stages_test.py covers
bert_jax/quickstart/classification.py.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.quickstart.docstring_task import MAX_TEXTS, NUM_LIBRARIES, write_docstring_task


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
    written = write_docstring_task(tmp_path / "documents.jsonl", tmp_path / "task")
    train, dev = (read_examples(tmp_path / "task", split) for split in ("train", "dev"))
    assert {row["library"] for row in train} == {row["library"] for row in dev}
    assert len({row["library"] for row in train}) == NUM_LIBRARIES
    modules = [{row["text"].split()[0] for row in split} for split in (train, dev)]
    assert not modules[0] & modules[1]
    assert not any("every library" in row["text"] for row in train + dev)
    assert all(row["text"].startswith(row["library"] + ".") for row in train + dev)
    for split, found in (("train", train), ("dev", dev)):
        assert sum(written.counts[split].values()) == len(found)
    assert max(written.counts["train"].values()) + max(written.counts["dev"].values()) <= MAX_TEXTS
    before = (tmp_path / "task/train.csv").read_bytes()
    write_docstring_task(tmp_path / "documents.jsonl", tmp_path / "second_task")
    assert (tmp_path / "second_task/train.csv").read_bytes() == before


def test_one_library_is_an_error(tmp_path):
    write_documents(tmp_path / "documents.jsonl", libraries=1, modules=40, texts=30)
    with pytest.raises(UserError, match="1 libraries have enough documentation"):
        write_docstring_task(tmp_path / "documents.jsonl", tmp_path / "task")
