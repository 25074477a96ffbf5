"""Checks near-duplicates against theory and brute force, and repeated lines against a reference.

Covers bert_jax/apps/curate/corpus.py, near_duplicates.py and exact_duplicates.py. The real
documents are the license texts of installed packages: natural duplicates and near-duplicates.
"""

import gzip
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.curate import exact_duplicates, near_duplicates
from bert_jax.apps.curate.corpus import hash_text, remove_lines
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.exact_duplicates import paragraph_parts
from bert_jax.apps.curate.ledger import LedgerRow, read_ledger
from bert_jax.apps.curate.near_duplicates import (
    ShingleFiles,
    WordHashes,
    band_keys,
    jaccard,
    shingle_set,
    write_shingles,
)
from bert_jax.apps.curate.plan import (
    C4Lines,
    CurationConfig,
    ExactDuplicates,
    NearDuplicates,
    RepeatedLines,
    RepeatedParagraphs,
    Source,
    Step,
)
from bert_jax.apps.curate.workers import Workers
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.errors import ConfigError

pytest.importorskip("pyarrow")

ALL_STEPS = (ExactDuplicates(), NearDuplicates(), RepeatedParagraphs())
MAX_LICENSES, MAX_CHARACTERS = 120, 12_000


def words_of(number: int, count: int) -> list[str]:
    """Returns distinct words, which no other number gives."""
    return [f"w{number}x{i}" for i in range(count)]


def write_jsonl(path: Path, texts: list[str], **fields: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, **fields}) + "\n" for text in texts))
    return path


def config(*files: Path, steps: tuple[Step, ...], **fields: Any) -> CurationConfig:
    """Returns a config with one source for each file, named as the file."""
    sources = tuple(Source(name=file.stem, files=TextFiles(str(file))) for file in files)
    return CurationConfig(sources=sources, steps=steps, **fields)


def read_output(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the kept documents by id."""
    records = []
    for file in sorted(folder.glob("documents-*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            records += map(json.loads, lines)
    return {record["id"]: record for record in records}


def read_rows(folder: Path) -> dict[str, LedgerRow]:
    return {row.id: row for row in read_ledger(sorted(folder.glob("ledger-*")))}


def run(folder: Path, texts: list[str], *steps: Step, **fields: Any) -> dict[str, LedgerRow]:
    """Curates texts of one source; returns the ledger by the number of the text, from 1."""
    file = write_jsonl(folder / "web.jsonl", texts)
    curate(config(file, steps=steps, max_dropped=1.0, **fields), folder / "out", num_workers=1)
    rows = read_rows(folder / "out")
    return {row_id.rpartition(":")[2]: row for row_id, row in rows.items()}


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Returns the probability that two texts of this similarity have an equal band key."""
    return 1 - (1 - similarity**rows) ** bands


@pytest.fixture(scope="module")
def licenses(tmp_path_factory) -> tuple[Path, list[str]]:
    """Writes license texts of installed packages as one JSON-lines file for each three texts."""
    site_packages = Path(sysconfig.get_paths()["purelib"])
    texts = [
        path.read_text(errors="replace")[:MAX_CHARACTERS]
        for path in sorted(site_packages.glob("*.dist-info/**/*"))
        if re.search(r"licen[cs]e|copying", path.name, re.IGNORECASE) and path.is_file()
    ]
    texts = texts[:MAX_LICENSES]
    assert len(texts) > 40
    folder = tmp_path_factory.mktemp("licenses")
    for i in range(0, len(texts), 3):
        write_jsonl(folder / f"{i:03d}.jsonl", texts[i : i + 3])
    return folder, texts


def license_config(folder: Path, **fields: Any) -> CurationConfig:
    source = Source(name="licenses", files=TextFiles(str(folder / "*.jsonl")))
    return CurationConfig(
        sources=(source,), **({"steps": ALL_STEPS, "num_shards": 4, "max_dropped": 1.0} | fields)
    )


def checksums(folder: Path) -> list[str]:
    """Returns checksums of what a run writes; the manifest has those of the documents."""
    files = [folder / "plan.json", folder / "manifest.json", *sorted(folder.glob("ledger-*"))]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.parametrize(
    "edits",
    [65, 16, *(pytest.param(n, marks=pytest.mark.slow) for n in (53, 44, 33, 22, 10, 5))],
)
def test_pairs_are_found_with_the_probability_of_theory(edits):
    """Plants 400 pairs of 1,000 words that differ in isolated words: similarities .51 to .95."""
    config, pairs, num_words = NearDuplicates(), 400, 1000
    random = np.random.default_rng(edits)
    found, probabilities = 0, []
    for words in random.integers(2**64, size=(pairs, num_words), dtype=np.uint64):
        edited = words.copy()
        positions = (np.arange(edits) * num_words + num_words // 2) // edits
        edited[positions] = random.integers(2**64, size=edits, dtype=np.uint64)
        first, second = shingle_set(words, config.ngram), shingle_set(edited, config.ngram)
        similarity = jaccard(first, second)
        unique = len(first)
        assert similarity == pytest.approx((unique - 5 * edits) / (unique + 5 * edits), abs=0.01)
        probabilities.append(candidate_probability(similarity, config.bands, config.rows))
        keys = [band_keys(each, config.bands, config.rows) for each in (first, second)]
        found += bool((keys[0] == keys[1]).any())
    expected = sum(probabilities)
    deviation = sum(p * (1 - p) for p in probabilities) ** 0.5
    # 99.9 % of a binomial distribution, and one pair for its steps.
    assert abs(found - expected) <= 3.29 * deviation + 1


def test_jaccard_similarity_is_that_of_python_sets():
    hashes = WordHashes()
    texts = ["A b c, d e f g", "a B c d  e f h", "a b c d", "", "大家好 世界和平 ok ok ok"]
    sets = [shingle_set(hashes.hash_words(text), 3) for text in texts]
    for (text, first), (other, second) in itertools.combinations(zip(texts, sets, strict=True), 2):
        expected = reference_similarity(text, other, 3)
        assert jaccard(first, second) == jaccard(second, first) == expected
    assert len(sets[4]) == 8  # Chinese characters are words
    # 0.55 * 100 is rounded to more than 55.
    assert jaccard(np.arange(55), np.arange(100), at_least=0.55) == 0.55
    assert jaccard(sets[0], sets[1], at_least=0.9) in (
        0.0,
        reference_similarity(texts[0], texts[1], 3),
    )


def test_few_files_of_shingles_are_open_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "MAX_OPEN_FILES", 2)
    paths = [tmp_path / str(unit) for unit in range(5)]
    expected = {}
    for unit, path in enumerate(paths):
        sets = [(unit << 32 | k, np.arange(10 * unit + k, dtype="<u8")) for k in (1, 4)]
        expected.update(sets)
        write_shingles(path, sets)
    files = ShingleFiles(paths)
    for document in [*expected, *reversed(expected)]:
        np.testing.assert_array_equal(files.read(document), expected[document])
        open_files = {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
        assert sum(name.startswith(str(tmp_path)) for name in open_files) <= 2


def reference_shingles(text: str, n: int) -> set[tuple[str, ...]]:
    words = re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def reference_similarity(first: str, second: str, n: int) -> float:
    a, b = reference_shingles(first, n), reference_shingles(second, n)
    return len(a & b) / max(len(a | b), 1) if a and b else 0.0


def test_near_duplicates_of_licenses_equal_brute_force(licenses, tmp_path):
    folder, texts = licenses
    config = license_config(folder, steps=(NearDuplicates(),))
    manifest = curate(config, tmp_path / "out", num_workers=1)
    rows = list(read_rows(tmp_path / "out").values())
    assert [row.characters for row in rows] == list(map(len, texts))
    sets = {row.id: reference_shingles(text, 5) for row, text in zip(rows, texts, strict=True)}
    dropped = [row for row in rows if row.reason == NearDuplicates.REASON]
    assert len(dropped) > 20
    assert manifest["counts"]["dropped"]["licenses"][NearDuplicates.REASON] == len(dropped)
    retained = [row for row in rows if not row.reason]
    by_id = {row.id: row for row in rows}
    for row in dropped:  # precision 1: the twin is kept, and as similar as the ledger has it
        a, b = sets[row.id], sets[row.twin]
        assert by_id[row.twin].reason == ""
        assert row.value == len(a & b) / len(a | b) >= 0.8
    missed, expected_missed = 0, 0.0
    for first, second in itertools.combinations(retained, 2):
        a, b = sets[first.id], sets[second.id]
        if not a or not b or (similarity := len(a & b) / len(a | b)) < 0.8:
            continue
        missed += 1
        expected_missed += 1 - candidate_probability(similarity, 14, 8)
        assert similarity < 0.9, "found with a probability of more than 99.9 %"
    assert missed <= 3 + 0.1 * len(dropped), (missed, expected_missed)


def test_a_chain_of_similar_documents_is_not_one_duplicate(tmp_path):
    """A and B are similar, and so are B and C, but not A and C: only B has a kept twin."""
    a = words_of(0, 300)
    b, c = a.copy(), a.copy()
    b[10:100:20] = words_of(1, 5)
    c[10:200:20] = [*words_of(1, 5), *words_of(2, 5)]
    rows = run(tmp_path, [" ".join([*a, "end"]), " ".join(b), " ".join(c[:-1])], NearDuplicates())
    assert [rows[n].reason for n in "123"] == ["", NearDuplicates.REASON, ""]
    assert rows["2"].twin.endswith(":1") and rows["2"].value == pytest.approx(0.845, abs=0.005)


def test_documents_with_one_template_are_kept(tmp_path):
    """With one hash for each band nearly all pairs are proposed; exact sets reject them."""
    town = "The town of {0} had {1} inhabitants and {2} households at the census. The density was "
    texts = [
        (town + "{3} per square mile, and {4} housing units stood in {0}.").format(
            *(f"x{number}{i}" for i in range(5))
        )
        for number in range(40)
    ]
    rows = run(tmp_path, texts, NearDuplicates(bands=100, rows=1))
    assert Counter(row.reason for row in rows.values()) == {"": 40}


def test_one_of_many_copies_is_kept(tmp_path):
    """A bucket has more documents than are compared with each other, in two work units."""
    text = " ".join(words_of(0, 120))
    copies = [f"{text} {' '.join(words_of(number, 3))}" for number in range(1, 151)]
    files = [write_jsonl(tmp_path / f"{name}.jsonl", copies[i::2]) for i, name in enumerate("ab")]
    curate(config(*files, steps=ALL_STEPS, max_dropped=1.0), tmp_path / "out", num_workers=1)
    (document,) = read_output(tmp_path / "out").values()
    assert document["id"].startswith("a/"), "the earlier source has priority"


def test_sources_can_be_left_out_of_the_comparison(tmp_path):
    text = " ".join(words_of(0, 120))
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [text + name, text]) for name in "ab"]
    step = NearDuplicates(ignored_sources=("a",))
    curate(config(*files, steps=(step,)), tmp_path / "out", num_workers=1)
    assert list(read_output(tmp_path / "out")) == ["a/a.jsonl:1", "a/a.jsonl:2", "b/b.jsonl:1"]
    with pytest.raises(ConfigError, match=r"ignored_sources: there is no source 'x'"):
        config(*files, steps=(NearDuplicates(ignored_sources=("x",)),))
    with pytest.raises(ConfigError, match="threshold"):
        NearDuplicates(threshold=0)


def test_lines_are_kept_as_c4_keeps_them(tmp_path):
    """Compares with the rule in plain Python, and checks that the sentences are counted again."""
    random = np.random.default_rng(0)
    lines = [f"This is the sentence with the number {i} of many." for i in range(60)]
    texts = [
        "\n".join(f"  {lines[i]}".upper() if i % 7 == 0 else lines[i] for i in chosen)
        for chosen in random.zipf(1.3, (40, 8)) % 60
    ]
    files = [write_jsonl(tmp_path / f"{name}.jsonl", texts[i::2]) for i, name in enumerate("ab")]
    steps = (RepeatedLines(),)
    manifest = curate(
        config(*files, steps=steps, lines=C4Lines(), max_dropped=1.0),
        tmp_path / "out",
        num_workers=1,
    )
    by_id = {
        f"{f.stem}/{f.name}:{n + 1}": t
        for i, f in enumerate(files)
        for n, t in enumerate(texts[i::2])
    }
    selected: dict[str, str] = {}
    for name in sorted(by_id, key=lambda name: (name[0], hash_text(name) >> 16)):
        for line in by_id[name].split("\n"):
            selected.setdefault(line.strip().lower(), name)
    expected, removed = {}, 0
    for name, text in by_id.items():
        retained = dict.fromkeys(
            key for line in text.split("\n") if selected[key := line.strip().lower()] == name
        )
        removed += 8 - len(retained)
        if len(retained) >= 3:
            expected[name] = list(retained)
    output = read_output(tmp_path / "out")
    found = {name: record["text"].lower().split("\n") for name, record in output.items()}
    assert {k: [line.strip() for line in v] for k, v in found.items()} == expected
    assert len(expected) < len(texts) and removed > 50
    assert manifest["removed_lines"] == {"repeated line": removed}
    reasons = Counter(row.reason for row in read_rows(tmp_path / "out").values())
    assert set(reasons) <= {"", "C4: sentences", "empty"} and reasons["C4: sentences"] > 3


def test_paragraphs_are_removed_with_the_blank_lines_around_them():
    text = "One\ntwo\n\n \nThree\n\nfour  \nFIVE"
    parts = [(numbers, key) for key, numbers in paragraph_parts(text)]
    assert [list(numbers) for numbers, _ in parts] == [[0, 1], [4], [6, 7]]
    assert parts[2][1] == next(paragraph_parts("FOUR\nfive"))[0]
    assert remove_lines(text, [4]) == "One\ntwo\n\nfour  \nFIVE"


def test_other_fields_of_json_lines_are_written(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", ["One text.", "other"], id=7, url="x", original_id=8)
    curate(config(file, steps=ALL_STEPS), tmp_path / "out", num_workers=1)
    first, _ = read_output(tmp_path / "out").values()
    other = {"original_original_id": 7, "url": "x", "original_id": 8}
    assert first == {"id": "a/a.jsonl:1", "text": "One text."} | other


@pytest.fixture(scope="module")
def whole_run(licenses, tmp_path_factory) -> tuple[Path, list[str]]:
    """Returns the input and the checksums of a run in one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    curate(license_config(licenses[0]), out, num_workers=1)
    return out, checksums(out)


def test_bytes_are_equal_for_any_number_of_workers(licenses, whole_run, tmp_path):
    curate(license_config(licenses[0]), tmp_path / "out", num_workers=3)
    assert checksums(tmp_path / "out") == whole_run[1]


def test_bytes_are_equal_for_any_division_into_partitions(
    licenses, whole_run, tmp_path, monkeypatch
):
    monkeypatch.setattr(exact_duplicates, "RUN_ROWS", 64)
    monkeypatch.setattr(exact_duplicates, "PARTITION_ROWS", 300)
    curate(license_config(licenses[0]), tmp_path / "out", num_workers=1)
    assert checksums(tmp_path / "out") == whole_run[1]


def test_bytes_are_equal_after_interruptions(licenses, whole_run, tmp_path, monkeypatch):
    real, written = Workers.write_files, 0

    def stop_often(self, function, tasks, **options):
        def one_task(path, *arguments):
            nonlocal written
            written += 1
            if written % 6 == 0:
                raise KeyboardInterrupt
            function(path, *arguments)

        real(self, one_task, tasks, **options)

    monkeypatch.setattr(Workers, "write_files", stop_often)
    interruptions, finished = 0, False
    while not finished and interruptions < 100:
        try:
            curate(license_config(licenses[0]), tmp_path / "out", num_workers=1)
            finished = True
        except KeyboardInterrupt:
            interruptions += 1
    assert finished and interruptions > 5
    assert checksums(tmp_path / "out") == whole_run[1]
    assert not (tmp_path / "out" / ".work").exists()


def test_the_same_documents_are_kept_with_smaller_work_units(licenses, whole_run, tmp_path):
    curate(license_config(licenses[0], num_shards=11), tmp_path / "out", num_workers=1)
    assert read_output(tmp_path / "out") == read_output(whole_run[0])
    expected = read_rows(whole_run[0])
    assert read_rows(tmp_path / "out") == expected
    reasons = Counter(row.reason for row in expected.values())
    assert reasons[ExactDuplicates.REASON] and reasons[NearDuplicates.REASON]
    for row in expected.values():  # twins lead to a kept document
        while row.twin:
            row = expected[row.twin]
        assert row.reason not in (ExactDuplicates.REASON, NearDuplicates.REASON)


def test_bytes_do_not_depend_on_the_hash_seed(licenses, whole_run, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from bert_jax.apps.curate.plan import *\n"
        "from bert_jax.data.corpus.sources import TextFiles\n"
        "def get_config():\n"
        "    source = Source(name='licenses', files=TextFiles("
        f"{str(licenses[0] / '*.jsonl')!r}))\n"
        "    steps = (ExactDuplicates(), NearDuplicates(), RepeatedParagraphs())\n"
        "    return CurationConfig(sources=(source,), steps=steps, num_shards=4, max_dropped=1.0)\n"
    )
    command = [sys.executable, "-m", "bert_jax", "curate", str(recipe), "--workers", "1"]
    subprocess.run(
        [*command, "--output", str(tmp_path / "out")],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
    )
    assert checksums(tmp_path / "out") == whole_run[1]
