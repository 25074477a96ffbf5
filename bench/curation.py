"""Measures how fast one core curates text, by stage, and the memory of a worker.

    python bench/curation.py                                the novels and speeches of
                                                            BERT_JAX_SHARED, cut into pages
    python bench/curation.py --datatrove-python PATH        also the same stages of datatrove,
                                                            in an environment of its own
    python bench/curation.py --memory-of 1000               peak memory for 1,000 MB of input

Each number is the median of several interleaved runs, in MB of UTF-8 text per second of processor
time of one core; the first run of a stage does not count. A stage gets the texts in memory.
"""

import argparse
import contextlib
import functools
import gzip
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.apps.curate import units
from bert_jax.apps.curate.corpus import Corpus, match_digest
from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.exact_duplicates import line_parts
from bert_jax.apps.curate.near_duplicates import WordHashes, band_keys, shingle_hashes
from bert_jax.apps.curate.plan import (
    FINEWEB_QUALITY,
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    CurationConfig,
    ExactDuplicates,
    NearDuplicates,
    RepeatedLines,
    RuleSet,
    Source,
    make_units,
)
from bert_jax.apps.curate.units import clean_page
from bert_jax.apps.curate.workers import Workers
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.text.cleaning import normalize_text
from bert_jax.text.sentences import get_sentence_splitter

PAGE_CHARACTERS = 4_000
REPEATED_PAGES = 0.2
"""Fraction of the pages that occur twice, the second time with 1 % of the words replaced."""
REPLACED_WORDS = (0.0, 0.2, 0.01, 0.4)
"""Fraction of the words that are replaced, in each pass over the texts."""
MEMORY_FILES = 8

Stages = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datatrove-python", metavar="PATH", help="python with datatrove 0.10.1")
    parser.add_argument("--runs", type=int, default=5, help="runs of each stage (default: 5)")
    parser.add_argument("--megabytes", type=float, default=3, help="size of the text (default: 3)")
    parser.add_argument("--stages", nargs="+", metavar="NAME", help="stages (default: all)")
    parser.add_argument("--memory-of", type=int, metavar="MB", help="measure memory instead")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if args.memory_of:
            print_memory(args.memory_of, Path(scratch))
        else:
            print_speed(args, Path(scratch))


def make_pages(megabytes: float) -> Iterator[str]:
    """Yields pages of novels and speeches, repeated with variations until there are enough."""
    folder = Path(os.environ["BERT_JAX_SHARED"]) / "data" / "text"
    files = [*sorted(folder.glob("novels/*.gz")), *sorted(folder.glob("inaugural/*.txt"))]
    lines: list[str] = []
    for file in files:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
        lines += text.splitlines(keepends=True)
    generator, written, pass_number = random.Random(0), 0, 0
    while True:
        page = ""
        for line in lines:
            page += line
            if len(page) < PAGE_CHARACTERS:
                continue
            rates = [REPLACED_WORDS[pass_number % len(REPLACED_WORDS)]]
            if generator.random() < REPEATED_PAGES:
                rates.append(rates[0] + 0.01)
            for rate in rates:
                words = page.split(" ")
                for k in range(len(words)):
                    if generator.random() < rate:
                        words[k] = f"w{generator.randrange(50_000)}"
                yield " ".join(words)
                written += len(page)
                if written > megabytes * 1e6:
                    return
            page = ""
        pass_number += 1


def write_pages(path: Path, megabytes: float) -> list[str]:
    """Writes pages as JSON lines, and returns them."""
    pages = list(make_pages(megabytes))
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": page}) + "\n" for page in pages)
    return pages


def make_config(path: Path, **fields: Any) -> CurationConfig:
    return CurationConfig(sources=(Source(name="pages", files=TextFiles(str(path))),), **fields)


def make_stages(pages: list[str], path: Path, scratch: Path) -> Stages:
    """Returns the stages by name; each processes all pages."""
    splitter, near = get_sentence_splitter("rules"), NearDuplicates()
    unit_config = make_config(path, steps=())

    def rules(rule_set: RuleSet) -> Callable[[], Any]:
        config = make_config(path, rule_sets=(rule_set,))
        return lambda: [units.check_text(page, config) for page in pages]

    def compute_bands() -> None:
        hashes = WordHashes()
        for page in pages:
            shingles = shingle_hashes(hashes.hash_words(page), near.ngram)
            if len(shingles):
                band_keys(shingles, near.bands, near.rows)

    def deduplicate(step: ExactDuplicates | NearDuplicates | RepeatedLines) -> Callable[[], Any]:
        spilled = scratch / "spilled"
        corpus = Corpus(
            folder=spilled,
            sources=("pages",),
            priorities=(0,),
            step=0,
            check=functools.partial(units.check_text, config=unit_config),
        )
        if not spilled.exists():
            spilled.mkdir()
            (unit,) = make_units(unit_config)[:1]
            units.write_spill(corpus.spill_path(0), unit, unit_config, "")

        def decide() -> None:
            for file in spilled.glob("step-*"):
                file.unlink()
            with Workers(1) as workers:
                step.decide(corpus, workers)

        return decide

    def curate_all() -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as output:
            steps = (ExactDuplicates(), NearDuplicates())
            rule_sets = (GOPHER_QUALITY, GOPHER_REPETITION, FINEWEB_QUALITY)
            config = make_config(path, rule_sets=rule_sets, steps=steps, num_shards=1)
            curate(config, Path(output) / "out", num_workers=1)

    return {
        "normalize characters": lambda: [normalize_text(page) for page in pages],
        "C4 lines": lambda: [clean_page(page, splitter) for page in pages],
        "Gopher quality": rules(GOPHER_QUALITY),
        "Gopher repetition": rules(GOPHER_REPETITION),
        "FineWeb quality": rules(FINEWEB_QUALITY),
        "keys of documents": lambda: [match_digest(page) for page in pages],
        "keys of lines": lambda: [list(line_parts(page)) for page in pages],
        "MinHash bands": compute_bands,
        "exact duplicates, whole": deduplicate(ExactDuplicates()),
        "repeated lines, whole": deduplicate(RepeatedLines()),
        "near duplicates, whole": deduplicate(near),
        "curate: files to shards": curate_all,
    }


class Datatrove:
    """Runs stages of datatrove in a process of its own."""

    def __init__(self, python: str, path: Path):
        script = Path(__file__).with_name("curation_datatrove.py")
        self._process = subprocess.Popen(
            [python, str(script), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.stages: list[str] = json.loads(self._read())

    def run(self, stage: str) -> float:
        """Returns the seconds of processor time of a stage."""
        assert self._process.stdin
        self._process.stdin.write(stage + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit("error: datatrove's process failed; run bench/curation_datatrove.py alone")
        return line


def run_seconds(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def print_speed(args: argparse.Namespace, scratch: Path) -> None:
    """Prints the table of all stages."""
    path = scratch / "pages.jsonl"
    pages = write_pages(path, args.megabytes)
    size = sum(len(page.encode()) for page in pages) / 1e6
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by datatrove's process
    stages = make_stages(pages, path, scratch)
    datatrove = Datatrove(args.datatrove_python, path) if args.datatrove_python else None
    print(f"{len(pages):,} pages, {size:.1f} MB; medians of {args.runs} runs\n")
    print("| stage | MB/s | datatrove | ratio |\n|---|---|---|---|")
    for name in args.stages or stages:
        function = stages[name]
        internal, external = list[float](), list[float]()
        peer = datatrove if datatrove is not None and name in datatrove.stages else None
        for _ in range(args.runs + 1):
            internal.append(run_seconds(function))
            if peer is not None:
                external.append(peer.run(name))
        rate = size / statistics.median(internal[1:])
        row = f"| {name} | {rate:.1f} | "
        if peer is not None:
            other_rate = size / statistics.median(external[1:])
            row += f"{other_rate:.2f} | {rate / other_rate:.1f} |"
        print(row if peer is not None else row + "| |", flush=True)


def print_memory(megabytes: int, scratch: Path) -> None:
    """Prints the peak memory of the parent and of the largest worker, for all steps."""
    size = 0
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context((scratch / f"{i}.jsonl").open("w")) for i in range(MEMORY_FILES)
        ]
        for i, page in enumerate(make_pages(megabytes)):
            size += files[i % len(files)].write(json.dumps({"text": page}) + "\n")
    steps = (ExactDuplicates(), NearDuplicates(), RepeatedLines())
    config = make_config(scratch / "*.jsonl", steps=steps, max_dropped=1.0)
    start = time.time()
    manifest = curate(config, scratch / "out", num_workers=2)
    peak = {
        name: resource.getrusage(who).ru_maxrss / 1e6
        for name, who in (("parent", resource.RUSAGE_SELF), ("worker", resource.RUSAGE_CHILDREN))
    }
    print(f"{size / 1e6:,.0f} MB of input, {time.time() - start:,.0f} s")
    print(f"peak memory: parent {peak['parent']:.2f} GB, largest worker {peak['worker']:.2f} GB")
    print(json.dumps(manifest["counts"], indent=2))


if __name__ == "__main__":
    main()
