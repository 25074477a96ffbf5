"""Measures what curation does for a model: equal tokens and steps, with and without curation.

    python bench/curation_ablation.py --work ablation             all runs; the same command resumes
    python bench/curation_ablation.py --work ablation --seeds 1   one run of each corpus

The raw material is found on this machine: all text of the HTML pages and all copyright files in
/usr/share/doc, the docstrings of this Python's packages, and novels of BERT_JAX_SHARED. Three
corpora are made of it: "raw" as it is, "rules" with all rules of Gopher but one, and "rules,
duplicates" also without duplicates, near duplicates and repeated lines. Each is cut, in an order by
hash, to the tokens of the smallest. A tiny BERT is pretrained on each with the same steps, and
compared by its masked-LM loss on clean text that is in none of them (speeches and other novels), on
SST-2, and on finding sentences of speeches in which two neighboring words changed places.
"""

import argparse
import ast
import contextlib
import csv
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.apps.curate.curate import curate
from bert_jax.apps.curate.formats.web import HtmlFiles
from bert_jax.apps.curate.plan import (
    GOPHER_QUALITY,
    GOPHER_REPETITION,
    CurationConfig,
    ExactDuplicates,
    NearDuplicates,
    RepeatedLines,
    RuleSet,
    Source,
)
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.sentences import get_sentence_splitter

# Punctuation marks count as tokens, so this rule drops a third of the pages of novels, for their
# dialogue.
QUALITY = RuleSet(
    name="Gopher quality",
    rules=tuple(rule for rule in GOPHER_QUALITY.rules if rule.signal != "tokens_with_letter"),
)
RULES: dict[str, Any] = {"rule_sets": (QUALITY, GOPHER_REPETITION)}
DUPLICATES: dict[str, Any] = {"steps": (ExactDuplicates(), NearDuplicates(), RepeatedLines())}
CORPORA: dict[str, dict[str, Any]] = {
    "raw": {"steps": ()},
    "rules": {"steps": (), **RULES},
    "rules, duplicates": {**RULES, **DUPLICATES},
}
PAGE_CHARACTERS = 4_000
MEASURES = ("held-out loss", "SST-2 accuracy", "word order accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", required=True, type=Path, help="folder of corpora and results")
    parser.add_argument("--docs", type=Path, default=Path("/usr/share/doc"), help="HTML pages")
    parser.add_argument("--megabytes", type=float, default=12, help="limit of each source")
    parser.add_argument("--steps", type=int, default=3_000, help="steps of pretraining")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    shared = Path(os.environ["BERT_JAX_SHARED"]) / "data"
    args.work.mkdir(parents=True, exist_ok=True)
    make_corpora(args, shared)
    make_word_order(args.work, shared)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CORPORA}
    for seed in range(args.seeds):
        for name in CORPORA:
            found[name].append(run(args, shared, name, seed))
    print_table(found)


def make_corpora(args: argparse.Namespace, shared: Path) -> None:
    """Writes the raw material, the corpora of equal tokens, and the held-out text."""
    work, vocabulary = args.work, shared / "vocab" / "bert-base-uncased"
    material, clean = work / "material", work / "clean.jsonl"
    novels = sorted((shared / "text" / "novels").glob("*.gz"))
    if not (work / "heldout" / "manifest.json").exists():  # written last
        material.mkdir(exist_ok=True)
        speeches = [str(path) for path in (shared / "text" / "inaugural").glob("1*.txt")]
        write_texts(clean, pages([*speeches, *map(str, novels[::20])]), args.megabytes)
        others = [str(path) for path in novels if path not in novels[::20]]
        html = HtmlFiles(str(args.docs / "**" / "*.html"), content="all")
        licenses = TextFiles(str(args.docs / "*" / "copyright"), errors="replace")
        sources = {
            "html": (doc.text for f in by_hash(html.list_files()) for doc in html.read_file(f)),
            "licenses": licenses.read_texts(licenses.list_files()),
            "docstrings": docstrings(),
            "novels": pages(others),
        }
        for name, texts in sources.items():
            write_texts(material / f"{name}.jsonl", texts, args.megabytes)
        prepare(clean, vocabulary, work / "heldout")
    tokenizer = load_tokenizer(vocabulary)
    documents: dict[str, list[tuple[str, int]]] = {}
    for name, fields in CORPORA.items():
        if (work / name / "prepared" / "manifest.json").exists():
            continue
        source = Source(name="raw", files=TextFiles(str(material / "*.jsonl")))
        config = CurationConfig(sources=(source,), max_dropped=0.99, **fields)
        curate(config, work / name / "curated", num_workers=1)
        shards = TextFiles(str(work / name / "curated" / "documents-*"))
        texts = sorted(shards.read_texts(shards.list_files()), key=digest)
        lengths = map(len, tokenizer.encode_ids(texts))
        documents[name] = list(zip(texts, lengths, strict=True))
    if documents and len(documents) < len(CORPORA):
        sys.exit(f"error: {work} was stopped between two corpora; remove it and start again")
    totals = {name: sum(length for _, length in found) for name, found in documents.items()}
    if totals:
        write_json(work / "tokens.json", totals)
    for name, found in documents.items():
        chosen, budget = list[str](), min(totals.values())
        for text, length in found:
            budget -= length
            if budget >= 0:
                chosen.append(text)
        write_texts(work / name / "documents.jsonl", chosen, float("inf"))
    for name in documents:
        prepare(work / name / "documents.jsonl", vocabulary, work / name / "prepared")


def digest(text: object) -> str:
    return hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest()


def by_hash(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=digest)


def pages(files: Iterable[str]) -> Iterator[str]:
    """Yields pages of whole paragraphs from text files."""
    page = ""
    for path in by_hash(files):
        source = TextFiles(path, document_unit="blank-line", errors="replace")
        for text in source.read_texts(source.list_files()):
            page += text + "\n\n"
            if len(page) > PAGE_CHARACTERS:
                yield page
                page = ""


def docstrings() -> Iterator[str]:
    """Yields the docstrings of each module of the installed packages, as they are."""
    for path in by_hash(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            tree = ast.parse(path.read_text("utf-8"))
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            found = [ast.get_docstring(n) for n in ast.walk(tree) if isinstance(n, kinds)]
            if text := "\n\n".join(filter(None, found)):
                yield text


def write_texts(path: Path, texts: Iterable[str], megabytes: float) -> None:
    """Writes texts as JSON lines, until the file has a size."""
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            clean = text.encode("utf-8", "replace").decode()
            size += file.write(json.dumps({"text": clean}) + "\n")
            if size > megabytes * 1e6:
                return


def make_word_order(work: Path, shared: Path) -> None:
    """Writes sentences of speeches; in half of them, two neighboring words are exchanged."""
    generator, splitter = random.Random(0), get_sentence_splitter("rules")
    for split, pattern in (("train", "1[89]*.txt"), ("dev", "20[12]*.txt")):
        rows: list[tuple[str, str]] = []
        for path in sorted((shared / "text" / "inaugural").glob(pattern)):
            for sentence in splitter.split(" ".join(path.read_text("utf-8", "replace").split())):
                words = sentence.split()
                if not 8 <= len(words) <= 40:
                    continue
                is_changed = generator.random() < 0.5
                k = generator.randrange(1, len(words) - 2)
                if is_changed:
                    words[k], words[k + 1] = words[k + 1], words[k]
                rows.append((" ".join(words), "changed" if is_changed else "original"))
        with (work / f"order_{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])


def bert_jax(*words: object) -> None:
    command = [sys.executable, "-m", "bert_jax", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def prepare(files: Path, vocabulary: Path, output: Path) -> None:
    flags = ("--tokenizer", vocabulary, "--output", output, "--workers", 1)
    bert_jax("prepare", "--files", files, *flags)


def run(args: argparse.Namespace, shared: Path, name: str, seed: int) -> dict[str, float]:
    """Returns the measures of one corpus and seed; results that exist are read."""
    work: Path = args.work
    folder = work / "runs" / f"{name.replace(', ', '-')}-{seed}"
    path = folder / "measures.json"
    if path.exists():
        return read_json(path)
    corpora = (f"corpus={work / name / 'prepared'}", f"heldout={work / 'heldout'}")
    arguments = (*corpora, f"steps={args.steps}", f"seed={seed}")
    bert_jax("pretrain", "small_corpus", "--run", folder / "pretrain", "--arg", *arguments)
    tasks = {
        "SST-2 accuracy": ("glue/sst2", "--glue-dir", shared / "glue"),
        "word order accuracy": (
            *("columns", "--train", work / "order_train.csv", "--dev", work / "order_dev.csv"),
            *("--text", "text", "--label", "label"),
        ),
    }
    measures = {"held-out loss": find_number(folder / "pretrain", "mlm_loss")}
    for number, (measure, words) in enumerate(tasks.items()):
        task_folder = folder / f"task-{number}"
        settings = ("--epochs", (0.3, 10)[number], "--max-length", 64, "--learning-rate", 3e-4)
        model = ("--model", folder / "pretrain", "--run", task_folder, "--seed", seed)
        bert_jax("finetune", *words, *settings, *model)
        measures[measure] = find_number(task_folder, "accuracy")
    write_json(path, measures)
    return measures


def find_number(folder: Path, name: str) -> float:
    """Returns a number of evaluation.json, whatever the split is called."""
    groups = [read_json(folder / "evaluation.json")]
    while groups:
        group = groups.pop(0)
        if name in group:
            return float(group[name])
        groups += [value for value in group.values() if isinstance(value, dict)]
    raise KeyError(f"{folder}: no {name} in evaluation.json")


def print_table(found: dict[str, list[dict[str, float]]]) -> None:
    """Prints mean and standard deviation over seeds."""
    print(f"| corpus | {' | '.join(MEASURES)} |\n|---|---|---|---|")
    for name, runs in found.items():
        cells: list[str] = []
        for measure in MEASURES:
            values = [each[measure] for each in runs]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
