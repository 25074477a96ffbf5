"""Tests that the Beam pipelines write the same bytes as `prepare` and `curate`.

Beam has its own environment; BERT_JAX_BEAM_PYTHON is the path of that environment's Python.
"""

import dataclasses
import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.curate.ledger import read_ledger
from bert_jax.apps.testing.text_corpus import write_text, write_vocabulary
from bert_jax.data.corpus.plan import PrepareConfig, make_prepare_plan
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.shards import write_shard
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.text.load_tokenizer import load_tokenizer

REPOSITORY = Path(__file__).parents[3]

# A file system for Beam that is not the local disk by its name, but stores files there.
STORE = """
import sys
from apache_beam.io import filesystems
from apache_beam.io.localfilesystem import LocalFileSystem

class Store(LocalFileSystem):
    @classmethod
    def scheme(cls):
        return "store"

def local(value):
    if isinstance(value, (list, tuple)):
        return [local(item) for item in value]
    return value.removeprefix("store:/") if isinstance(value, str) else value

def stored(result):
    for status in result.metadata_list:
        status.path = "store:/" + status.path
    result.pattern = "store:/" + result.pattern
    return result

def call_locally(name):
    method = getattr(LocalFileSystem, name)
    return lambda self, *args, **kwargs: method(self, *map(local, args), **kwargs)

for name in ("create", "open", "rename", "delete", "exists", "last_updated"):
    setattr(Store, name, call_locally(name))
Store.match = lambda self, patterns, limits=None: [
    stored(result) for result in LocalFileSystem.match(self, local(patterns), limits)
]
from bert_jax.data.corpus import beam
sys.exit(beam.main(sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def beam_python() -> str:
    python = os.environ.get("BERT_JAX_BEAM_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import apache_beam"], capture_output=True)
    if found.returncode:
        pytest.skip(f"{python} has no apache_beam; see requirements-beam.txt")
    return python


def _shards(folder: Path) -> dict[str, bytes]:
    paths = [*folder.glob("documents-*.arrayrecord"), *folder.glob("documents-*.npz")]
    return {path.name: path.read_bytes() for path in paths}


def _config(folder: Path, output: str) -> PrepareConfig:
    write_text(folder / "text", num_documents=9)
    vocabulary = write_vocabulary(folder / "vocabulary")
    return PrepareConfig(
        source=TextFiles(str(folder / "text" / "*")),
        tokenizer=str(vocabulary),
        output=str(folder / output),
        num_shards=4,
    )


def test_pickled_unit_writes_the_same_shard(tmp_path):
    """Tests the work of each Beam worker, without Beam."""
    config = _config(tmp_path, "local")
    prepare(config, num_workers=1)
    plan = make_prepare_plan(config)
    (tmp_path / "elsewhere").mkdir()
    vocabulary = load_tokenizer(tmp_path / "local" / "vocabulary")
    for name, unit in reversed(list(zip(plan.shard_files, plan.units, strict=True))):
        write_shard(
            tmp_path / "elsewhere" / name,
            pickle.loads(pickle.dumps(unit)).encoded_documents(
                vocabulary, plan.documents, lambda *_: None
            ),
            max_part_tokens=plan.documents.max_part_tokens,
            plan_fingerprint=plan.fingerprint,
        )
    assert len(plan.units) == 4
    assert _shards(tmp_path / "elsewhere") == _shards(tmp_path / "local")


@pytest.mark.parametrize("module", ["bert_jax.data.corpus.beam", "bert_jax.apps.curate.beam"])
def test_pipeline_imports_neither_seqio_nor_tensorflow(module):
    program = """
import importlib
import sys
from unittest.mock import MagicMock
for name in ("", ".io", ".io.filesystem", ".io.filesystems", ".options",
             ".options.pipeline_options"):
    sys.modules["apache_beam" + name] = MagicMock()
sys.modules["apache_beam"].DoFn = object
importlib.import_module(sys.argv[1])
heavy = {"seqio", "tensorflow", "tensorflow_datasets", "jax", "flax", "grain"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program, module], check=True, cwd=REPOSITORY)


def _run(command: list[str], config: PrepareConfig, files: str, output: str):
    assert config.tokenizer is not None
    flags = ["--files", files, "--tokenizer", config.tokenizer, "--output", output, "--shards", "4"]
    return subprocess.run(
        [*command, *flags, "--runner", "DirectRunner"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


def test_beam_writes_the_same_bytes(tmp_path, beam_python):
    config = _config(tmp_path, "local")
    prepare(config, num_workers=1)
    files, output = str(tmp_path / "text" / "*"), tmp_path / "beam"
    command = [beam_python, "-m", "bert_jax.data.corpus.beam"]
    done = _run(command, config, files, str(output))
    assert done.returncode == 0, done.stderr
    assert len(_shards(output)) == 8 and _shards(output) == _shards(tmp_path / "local")
    # The local command continues the corpus, complete or not.
    (output / "manifest.json").unlink()
    (output / "documents-00002-of-00004.json").unlink()
    manifest = prepare(dataclasses.replace(config, output=str(output)), num_workers=1)
    assert manifest.counts.documents == 9 and _shards(output) == _shards(tmp_path / "local")


def test_beam_reads_and_writes_remote_files(tmp_path, beam_python):
    config = _config(tmp_path, "local")
    prepare(config, num_workers=1)
    output = tmp_path / "beam"
    command = [beam_python, "-c", STORE]
    for _ in range(2):  # the second run finds all shards
        done = _run(command, config, f"store:/{tmp_path}/text/*", f"store:/{output}")
        assert done.returncode == 0, done.stderr
    assert _shards(output) == _shards(tmp_path / "local")
    assert (output / "vocabulary").is_dir() and (output / "manifest.json").is_file()
    assert not list(output.rglob("*.partial"))


def test_beam_reports_invalid_input(tmp_path, beam_python):
    config = _config(tmp_path, "local")
    command = [beam_python, "-m", "bert_jax.data.corpus.beam"]
    done = _run(command, config, str(tmp_path / "none*"), str(tmp_path / "x"))
    assert done.returncode == 1 and "error: no file matches" in done.stderr
    (tmp_path / "text" / "bad.txt").write_bytes(b"caf\xe9" + 40 * b" Baba.")
    done = _run(command, config, str(tmp_path / "text" / "*"), str(tmp_path / "x"))
    assert done.returncode == 1 and "error: " in done.stderr
    assert "bad.txt: not utf-8 text at byte 3" in done.stderr


CURATION_RECIPE = """
from bert_jax.apps.curate.plan import *
from bert_jax.apps.curate.plan import GOPHER_REPETITION
from bert_jax.data.corpus.sources import TextFiles

def get_config(*, files: str):
    return CurationConfig(
        sources=(Source(name="web", files=TextFiles(files)),),
        rule_sets=(GOPHER_REPETITION,),
        steps=(ExactDuplicates(), NearDuplicates(), RepeatedLines()),
        num_shards=3,
        max_dropped=0.99,
    )
"""


def _write_pages(folder: Path) -> None:
    """Writes pages of words in five files; of each two, the second is a near duplicate."""
    generator = random.Random(0)
    folder.mkdir()
    for number in range(5):
        pages: list[str] = []
        for _ in range(6):
            words = [f"word{generator.randrange(5_000)}" for _ in range(200)]
            changed = [*words[:100], "changed", *words[101:]]
            pages += [" ".join(words), " ".join(changed)]
        pages += [pages[0]] * (number == 2)
        lines = [json.dumps({"text": page}) + "\n" for page in pages]
        (folder / f"{number}.jsonl").write_text("".join(lines))


def test_beam_curates_to_the_same_bytes(tmp_path, beam_python):
    _write_pages(tmp_path / "web")
    (tmp_path / "recipe.py").write_text(CURATION_RECIPE)
    pattern = str(tmp_path / "web" / "*.jsonl")
    recipe = [str(tmp_path / "recipe.py"), "--arg", f"files={pattern}"]
    assert main(["curate", *recipe, "--output", str(tmp_path / "local"), "--workers", "1"]) == 0
    command = [beam_python, "-m", "bert_jax.apps.curate.beam", *recipe]
    flags = ["--output", str(tmp_path / "beam"), "--runner", "DirectRunner"]
    done = subprocess.run([*command, *flags], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "kept 30 of 61 documents" in done.stdout
    for name in ("plan.json", "manifest.json"):
        assert (tmp_path / "beam" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    shards = {path.name: path for path in (tmp_path / "local").glob("documents-*")}
    assert len(shards) == 3
    for name, path in shards.items():
        assert gzip.decompress((tmp_path / "beam" / name).read_bytes()) == gzip.decompress(
            path.read_bytes()
        )
    ledgers = [sorted((tmp_path / each).glob("ledger-*")) for each in ("beam", "local")]
    assert read_ledger(ledgers[0]) == read_ledger(ledgers[1])
    # The local command adds the report to what Beam wrote.
    assert main(["curate", *recipe, "--output", str(tmp_path / "beam")]) == 0
    assert (tmp_path / "beam" / "curation.html").is_file()


def test_beam_names_what_is_wrong_with_a_curation(tmp_path, beam_python):
    command = [beam_python, "-m", "bert_jax.apps.curate.beam"]
    flags = ["--arg", f"files={tmp_path}/none*", "--output", str(tmp_path / "out")]
    for recipe, code, message in (("curate/web", 1, "no file matches"), ("nosuch", 2, "no such")):
        done = subprocess.run(
            [*command, recipe, *flags], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert done.returncode == code and message in done.stderr
        assert "Traceback" not in done.stderr
