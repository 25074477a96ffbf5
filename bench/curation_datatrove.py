"""Runs datatrove for two other benches, in the environment where datatrove is installed.

    python bench/curation_datatrove.py DOCUMENTS.jsonl                for curation.py
    python bench/curation_datatrove.py DOCUMENTS.jsonl --decisions    for curation_agreement.py

Prints the names of the stages, then runs one stage for each name that it reads from standard input
and prints the seconds of processor time that it took. With --decisions, it prints the punctuation
that datatrove knows, and of each document the tokens and which filters keep it, as JSON lines.
Imports nothing of bert_jax.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("LOGURU_LEVEL", "ERROR")

from datatrove.data import Document
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION, split_into_words

BANDS, ROWS = 14, 8


def make_stages(texts: list[str], folder: Path) -> dict[str, Callable[[], Any]]:
    """Returns the stages by name; each processes all documents, with the parameters of ours."""
    documents = [Document(text=text, id=str(i)) for i, text in enumerate(texts)]
    config = MinhashConfig(num_buckets=BANDS, hashes_per_bucket=ROWS)

    def apply(quality_filter: Any) -> Callable[[], Any]:
        # C4's filter changes the text.
        return lambda: [quality_filter.filter(Document(text=t, id="")) for t in texts]

    def compute_signatures() -> None:
        step = MinhashDedupSignature(str(folder / "unused"), config)
        for text in texts:
            shingles = step.get_shingles(text)
            if shingles.size:
                step.get_signature(shingles)

    def deduplicate() -> None:
        with tempfile.TemporaryDirectory() as work:
            signatures, pairs, removed = (f"{work}/{name}" for name in ("sig", "dups", "remove"))
            MinhashDedupSignature(signatures, config).run(documents, 0, 1)
            for bucket in range(BANDS):
                MinhashDedupBuckets(signatures, pairs, config=config).run(None, bucket, BANDS)
            MinhashDedupCluster(pairs, removed, config).run(None, 0, 1)
            list(MinhashDedupFilter(removed).run(documents, 0, 1))

    return {
        "C4 lines": apply(C4QualityFilter(min_num_sentences=3, min_words_per_line=5)),
        "Gopher quality": apply(GopherQualityFilter()),
        "Gopher repetition": apply(GopherRepetitionFilter()),
        "FineWeb quality": apply(FineWebQualityFilter()),
        "MinHash bands": compute_signatures,
        "near duplicates, whole": deduplicate,
    }


def print_decisions(texts: list[str]) -> None:
    """Prints tokens and decisions of each document."""
    filters = {
        "Gopher quality": GopherQualityFilter(),
        "Gopher repetition": GopherRepetitionFilter(),
        "FineWeb quality": FineWebQualityFilter(),
    }
    symbols, terminal = sorted(PUNCTUATION_SET), sorted(TERMINAL_PUNCTUATION)
    print(json.dumps({"symbols": symbols, "terminal": terminal}))
    for text in texts:
        document = Document(text=text, id="")
        decisions = {name: each.filter(document) is True for name, each in filters.items()}
        print(json.dumps({"tokens": split_into_words(text), "decisions": decisions}))


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    if sys.argv[2:] == ["--decisions"]:
        print_decisions(texts)
        return
    with tempfile.TemporaryDirectory() as folder:
        stages = make_stages(texts, Path(folder))
        print(json.dumps(list(stages)), flush=True)
        for line in sys.stdin:
            start = time.process_time()
            stages[line.strip()]()
            print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
