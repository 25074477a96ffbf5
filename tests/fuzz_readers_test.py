"""Damages files at random: every reader returns a value or raises a UserError, nothing else.

Covers bert_jax/io/json_io.py, text/files.py, text/load_tokenizer.py, data/finetuning/readers/,
data/corpus/manifest.py, data/corpus/shards.py, runs/, report/run_data.py, report/run_report.py,
checkpoints/checksums.py, interop/, tuning/fisher.py and recipes.py.
"""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from etils import epath
from safetensors.numpy import save as safetensors_bytes

from bert_jax.apps.testing.models import small_model
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config import recipes
from bert_jax.config.labeled_data import Columns, Conll, Snli, Squad, Swag
from bert_jax.data.corpus.manifest import read_manifest
from bert_jax.data.corpus.shards import read_shard_metadata
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import read_config
from bert_jax.models.parameters import parts_in
from bert_jax.params.paths import flatten as paths_of
from bert_jax.report.run_report import write_report
from bert_jax.runs import attempt_log, metrics, run_folder
from bert_jax.runs.checkpoints import checksums
from bert_jax.text.files import read_documents
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.train.tuning.fisher import load_fisher

CSV = 'text,label,other\nA net.,good,1\n"A boat, small",bad,2\nThe sea.,good,3\n'
TSV = "text\tlabel\nA net.\tgood\nThe sea.\tbad\n"
JSONL = '{"text": "A net.", "label": "good"}\n{"text": "The sea.", "label": "bad"}\n'
CONLL = "A B-LOC\nnet O\n\nThe O\nsea B-PER\n\n"
SWAG = "sent1,sent2,ending0,ending1,label\nA man,he,sits,runs,0\nA dog,it,barks,eats,1\n"
SNLI = "".join(
    json.dumps({"sentence1": "A net.", "sentence2": "The sea.", "gold_label": label}) + "\n"
    for label in ("entailment", "neutral", "contradiction", "-")
)
QUESTION = {"id": "q", "question": "Who?", "answers": [{"text": "man", "answer_start": 2}]}
SQUAD = json.dumps(
    {"data": [{"title": "t", "paragraphs": [{"context": "A man sits.", "qas": [QUESTION]}]}]}
)
METRICS = '{"split": "train", "step": 1, "phase": "a", "seconds": 1.5, "loss": 2.0}\n' * 3
ATTEMPTS = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"event": "start", "time": "t", "step": 0, "command": "c", "num_parameters": 3, "data": {}},
        {"event": "end", "seconds": 2.5, "outcome": "complete", "message": ""},
    )
)
RUN_CONFIG = {
    "objective": {"model": {"type": "BertConfig", "vocab_size": 50}},
    "data": {"type": "PretrainingData", "corpus": "c"},
    "train": {"phases": [{"steps": 1, "seq_length": 8, "batch_size": 2}]},
}
RECIPE = "def get_config(size: int = 3, name: str = 'x'):\n    return {'size': size, 'n': name}\n"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 5, 2.5, 10**30, float("nan"), float("inf"), "", "x", "\udfff", [], [[]], {},
    {"a": 1}, ["x"], [1], 2**31, -(2**63),
)  # fmt: skip
BYTES = (b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"{", b"[" * 3000, b"9" * 5000, b"\n", b",", b"\t")


class Reader(NamedTuple):
    """A valid file, and a function that reads it."""

    file: Path
    read: Callable[[], Any]


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> dict[str, Reader]:
    """One reader for each format; the fixture writes a valid file for each."""
    root = tmp_path_factory.mktemp("readers")

    def file(name: str, content: str | bytes) -> Path:
        path = root / name.replace("/", "_") / Path(name).name
        path.parent.mkdir()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    model = root / "model"
    loaded = small_model(root / "vocabulary")
    assert loaded.tokenizer is not None
    loaded.tokenizer.save(model)
    flat = paths_of(loaded.params)
    huggingface.write_config(model, loaded.config, parts_in(flat), pad_token_id=0)
    huggingface.write_weights(model, flat, loaded.config)
    corpus = prepare_corpus(root / "corpus", num_documents=3, sentences_per_document=4)
    shard = next(corpus.glob("documents-*.arrayrecord"))
    plan = json.loads(shard.with_suffix(".json").read_text())["plan"]
    checkpoint = root / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "data").write_bytes(b"abc")
    checksums.write_checksums(epath.Path(checkpoint), 7)
    tensors = {"encoder/a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float16)}
    config = json.dumps({"config": {"type": "Experiment"}, "checkpoints": "x"})
    paths = {
        "csv": file("t.csv", CSV),
        "tsv": file("t.tsv", TSV),
        "jsonl": file("t.jsonl", JSONL),
        "gz": file("t.jsonl.gz", gzip.compress(JSONL.encode(), mtime=0)),
        "squad": file("squad.json", SQUAD),
        "conll": file("t.conll", CONLL),
        "swag": file("swag.csv", SWAG),
        "snli": file("snli_1.0_train.jsonl", SNLI),
        "metrics": file("metrics.jsonl", METRICS),
        "config": file("run/config.json", config),
        "report": file("reported/config.json", json.dumps({"config": RUN_CONFIG})),
        "attempts": file("attempts.jsonl", ATTEMPTS),
        "recipe": file("recipe.py", RECIPE),
        "fisher": file("f.safetensors", safetensors_bytes(tensors)),
        "documents": file("d.txt", "One line.\n\nAnother line.\n"),
    }
    tables = {
        name: Columns(train=str(paths[name]), text="text", label="label")
        for name in ("csv", "tsv", "jsonl", "gz")
    }
    tasks = tables | {
        "squad": Squad(train=str(paths["squad"])),
        "conll": Conll(train=str(paths["conll"])),
        "swag": Swag(train=str(paths["swag"])),
        "snli": Snli(folder=str(paths["snli"].parent)),
    }
    found = {name: Reader(paths[name], lambda c=c: load_task(c)) for name, c in tasks.items()}
    found["documents"] = Reader(paths["documents"], lambda: [*read_documents(paths["documents"])])
    found["json documents"] = Reader(paths["jsonl"], lambda: [*read_documents(paths["jsonl"])])
    found["metrics"] = Reader(paths["metrics"], lambda: metrics.read_metrics(paths["metrics"]))
    found["run config"] = Reader(
        paths["config"], lambda: run_folder.checkpoint_dir(paths["config"].parent)
    )
    (paths["report"].parent / "metrics.jsonl").write_text(METRICS)
    (paths["report"].parent / "attempts.jsonl").write_text(ATTEMPTS)
    found["report"] = Reader(paths["report"], lambda: write_report(paths["report"].parent))
    found["attempts"] = Reader(
        paths["attempts"], lambda: attempt_log.read_attempts(paths["attempts"].parent)
    )
    found["recipe"] = Reader(
        paths["recipe"],
        lambda: recipes.call_recipe(
            recipes.load_recipe(paths["recipe"]), ["size=4"], str(paths["recipe"])
        ),
    )
    found["fisher"] = Reader(paths["fisher"], lambda: load_fisher(str(paths["fisher"])))
    found["checksums"] = Reader(
        checkpoint / checksums.FILE, lambda: checksums.find_problems(epath.Path(checkpoint))
    )
    found["manifest"] = Reader(corpus / "manifest.json", lambda: read_manifest(corpus))
    found["shard"] = Reader(shard.with_suffix(".json"), lambda: read_shard_metadata(shard, plan))
    found["model config"] = Reader(
        model / "config.json", lambda: read_config(model / "config.json")
    )
    found["weights"] = Reader(model / "model.safetensors", lambda: huggingface.read_folder(model))
    for name in ("tokenizer.json", "vocab.txt", "vocabulary.json", "tokenizer_config.json"):
        target = model / name if name in ("tokenizer.json", "vocab.txt") else model
        found[name] = Reader(model / name, lambda target=target: load_tokenizer(target))
    return found


def damage(content: bytes, rng: random.Random) -> bytes:
    """Returns the content with one change: of a JSON value, or of bytes."""
    if rng.random() < 0.5:
        try:
            text = content.decode()
            lines = text.splitlines(keepends=True)
            is_lines = len(lines) > 1 and text.startswith("{") and lines[0].rstrip().endswith("}")
            index = rng.randrange(len(lines)) if is_lines else None
            data = json.loads(text if index is None else lines[index])
            changed = json.dumps(_replace_value(data, rng))
            if index is None:
                return changed.encode()
            lines[index] = changed + "\n"
            return "".join(lines).encode()
        except ValueError:  # not JSON
            pass
    position = rng.randrange(len(content) + 1)
    match rng.randrange(4):
        case 0:
            return content[:position]
        case 1:
            flipped = bytearray(content)
            flipped[min(position, len(content) - 1)] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 2:
            return content[:position] + rng.choice(BYTES) + content[position:]
        case _:
            end = position + rng.randrange(40)
            return content[:position] + content[end:]


def _replace_value(data: Any, rng: random.Random) -> Any:
    """Replaces, adds or removes one value at a random place of JSON data."""
    if not isinstance(data, (dict, list)) or not data or rng.random() < 0.15:
        return rng.choice(VALUES)
    if isinstance(data, dict):
        key = rng.choice(list(data))
        if rng.random() < 0.15:
            return {k: v for k, v in data.items() if k != key}
        return {**data, key: _replace_value(data[key], rng)}
    index = rng.randrange(len(data))
    return [*data[:index], _replace_value(data[index], rng), *data[index + 1 :]]


def _fuzz(readers: dict[str, Reader], tries: int, seed: int) -> None:
    rng, names = random.Random(seed), sorted(readers)
    original = {name: readers[name].file.read_bytes() for name in names}
    refused = 0
    for number in range(tries):
        name = names[number % len(names)]
        reader = readers[name]
        reader.file.write_bytes(content := damage(original[name], rng))
        try:
            reader.read()
        except UserError as error:
            refused += 1
            assert str(error), name
        except Exception as error:
            raise AssertionError(f"{name}, try {number}: {content[:2000]!r}") from error
        finally:
            reader.file.write_bytes(original[name])
    assert tries / 10 < refused < tries  # most changes matter, and some do not


def test_undamaged_files_are_read(readers):
    for reader in readers.values():
        reader.read()


def test_damaged_files_are_read_or_refused(readers):
    _fuzz(readers, 300, seed=0)


@pytest.mark.slow
def test_thousands_of_damaged_files_are_read_or_refused(readers):
    _fuzz(readers, 10_000, seed=1)
