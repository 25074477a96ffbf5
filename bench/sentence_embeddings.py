"""Measures what training adds to a sentence encoder on STS-B, beside sentence-transformers.

    python bench/sentence_embeddings.py --model MODEL --snli-dir nli --glue-dir glue --output runs

Both sides start from the same Hugging Face folder and train on the same files with the same losses,
batch sizes and learning rates: one epoch of multiple negatives ranking on triples of SNLI (a
premise, a hypothesis that it entails, one that it contradicts), then epochs of CoSENT on the
training pairs of STS-B. Printed are Spearman's correlations on STS-B dev in percent, before
training and after each stage, as mean and standard deviation over the seeds, and the seconds of an
epoch, evaluation and start included. The seed changes the order of the examples and dropout.

The two sides take turns, each training in a process of its own. The side of sentence-transformers
is a loop over its model and its loss modules with AdamW. A run that is finished is not repeated.
It needs `make install-parity`.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.config.labeled_data import Snli
from bert_jax.config.sentence_embeddings import NliFiles, StsBenchmark
from bert_jax.data.sentence_embeddings.text_groups import TextGroups, read_text_groups
from bert_jax.io.json_io import read_json_object

SIDES = ("bert_jax", "sentence-transformers")
STAGES = ("nli", "stsb")
WARMUP, WEIGHT_DECAY, CLIP = 0.1, 0.01, 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder to start from")
    parser.add_argument("--snli-dir", required=True)
    parser.add_argument("--snli-splits", default="train", help="comma-separated (default: train)")
    parser.add_argument("--max-triples", type=int, help="triples to train on (default: all)")
    parser.add_argument("--glue-dir", required=True)
    parser.add_argument("--max-pairs", type=int, help="pairs of STS-B (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=1, help="of STS-B (default: 1)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", default="2e-5")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--output", type=Path, required=True, help="folder of data and runs")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        stage, start, folder = args.worker
        train_peer(args, stage, start, Path(folder))
        return 0
    write_data(args)
    print(f"before training: {100 * evaluate(args.model, data_file(args, 'dev')):.2f}")
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for seed in args.seeds:
        for side in SIDES:
            results[side].append(run_stages(args, side, seed))
    print_table(results)
    return 0


def data_file(args: argparse.Namespace, stage: str) -> Path:
    """Returns the file that both sides train on."""
    return args.output / f"{stage}.csv"


def write_data(args: argparse.Namespace) -> None:
    """Writes the data of both stages as CSV files."""
    args.output.mkdir(parents=True, exist_ok=True)
    splits = tuple(args.snli_splits.split(","))
    nli = read_text_groups(NliFiles(tasks=(Snli(folder=args.snli_dir),), splits=splits))
    for stage, groups, count in (
        ("nli", nli, args.max_triples),
        ("stsb", read_text_groups(StsBenchmark(folder=args.glue_dir)), args.max_pairs),
        ("dev", read_text_groups(StsBenchmark(folder=args.glue_dir, split="dev")), None),
    ):
        write_groups(data_file(args, stage), groups, count)


def write_groups(path: Path, groups: TextGroups, count: int | None) -> None:
    """Writes the first groups as CSV with the columns text0, text1, ..., and score."""
    columns = [f"text{i}" for i in range(groups.num_texts)]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, *(["score"] if groups.scores is not None else [])])
        for index, texts in enumerate(groups.texts[:count]):
            scores = [] if groups.scores is None else [f"{groups.scores[index]:.6f}"]
            writer.writerow([*texts, *scores])


def run_stages(args: argparse.Namespace, side: str, seed: int) -> dict[str, Any]:
    """Trains both stages of one side and seed; returns scores and seconds."""
    start, result = args.model, dict[str, Any]()
    for stage in STAGES:
        folder = args.output / f"{side}-{stage}-{seed}"
        file = args.output / f"{folder.name}.json"
        if not file.is_file():
            command = (
                bert_jax_command(args, stage, start, folder, seed)
                if side == SIDES[0]
                else peer_command(args, stage, start, folder, seed)
            )
            begin = time.monotonic()
            subprocess.run(command, check=True)
            seconds = time.monotonic() - begin
            scores = evaluate(folder, data_file(args, "dev"))
            file.write_text(json.dumps({"seconds": seconds, "spearman": scores}))
        result[stage] = read_json_object(file)
        start = str(folder)
        print(f"{side}, seed {seed}, {stage}: {result[stage]}", flush=True)
    return result


def bert_jax_command(
    args: argparse.Namespace, stage: str, start: str, folder: Path, seed: int
) -> list[str]:
    """Returns the command that trains one stage with bert_jax."""
    data = ["--texts", "text0,text1,text2"]
    if stage == "stsb":
        data = ["--texts", "text0,text1", "--score", "score", "--epochs", str(args.epochs)]
    return [
        *(sys.executable, "-m", "bert_jax", "embed-train", "columns"),
        *("--train", str(data_file(args, stage)), *data),
        *("--model", start, "--run", str(folder), "--seed", str(seed)),
        *("--batch-size", str(args.batch_size), "--learning-rate", args.learning_rate),
        *("--max-length", str(args.max_length)),
    ]


def peer_command(
    args: argparse.Namespace, stage: str, start: str, folder: Path, seed: int
) -> list[str]:
    """Returns the command that trains one stage with sentence-transformers."""
    options = ("epochs", "batch_size", "learning_rate", "max_length", "glue_dir", "snli_dir")
    flags = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in options]
    worker = ["--worker", stage, start, str(folder)]
    fixed = [f"--model={args.model}", f"--output={args.output}", f"--seeds={seed}"]
    return [sys.executable, __file__, *flags, *fixed, *worker]


def train_peer(args: argparse.Namespace, stage: str, start: str, folder: Path) -> None:
    """Trains one stage with sentence-transformers' model and loss, and saves the model."""
    import numpy as np
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(args.seeds[0])
    model = SentenceTransformer(start, device="cpu")
    model.max_seq_length = args.max_length
    with open(data_file(args, stage), newline="") as file:
        rows = list(csv.reader(file))[1:]
    scored = stage == "stsb"
    loss = losses.CoSENTLoss(model) if scored else losses.MultipleNegativesRankingLoss(model)
    decayed = [p for n, p in model.named_parameters() if not n.endswith(("bias", "Norm.weight"))]
    others = [p for n, p in model.named_parameters() if n.endswith(("bias", "Norm.weight"))]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0}],
        lr=float(args.learning_rate),
    )
    epochs = args.epochs if scored else 1
    steps = len(rows) // args.batch_size * epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    rng = np.random.default_rng(args.seeds[0])
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(rows))
        for first in range(0, len(rows) - args.batch_size + 1, args.batch_size):
            batch = [rows[i] for i in order[first : first + args.batch_size]]
            num_texts = len(batch[0]) - scored
            features = [model.preprocess([row[i] for row in batch]) for i in range(num_texts)]
            labels = torch.tensor([float(row[-1]) for row in batch]) if scored else None
            value = loss(features, labels)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.save(str(folder))


def evaluate(model: Path | str, dev: Path) -> float:
    """Returns Spearman's correlation on scored pairs, by one evaluation for both sides."""
    import numpy as np

    from bert_jax.predict.embedder import Embedder
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.tasks.metrics.sentence_embeddings import pairwise_similarity, similarity_metrics

    with open(dev, newline="") as file:
        rows = list(csv.reader(file))[1:]
    embedder = Embedder(load_encoder(str(model)))
    first, second = (embedder([row[i] for row in rows]) for i in (0, 1))
    scores = np.array([float(row[2]) for row in rows])
    return similarity_metrics(scores, pairwise_similarity(first, second))["spearman"]


def print_table(results: dict[str, list[dict[str, Any]]]) -> None:
    """Prints scores and seconds of each stage and side."""
    print("| stage | trained with | Spearman on STS-B dev | seconds, median (range) |")
    print("|---|---|---|---|")
    for stage in STAGES:
        for side, runs in results.items():
            scores = [100 * run[stage]["spearman"] for run in runs]
            seconds = sorted(run[stage]["seconds"] for run in runs)
            spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
            times = f"{statistics.median(seconds):.0f} ({seconds[0]:.0f} .. {seconds[-1]:.0f})"
            print(f"| {stage} | {side} | {statistics.mean(scores):.2f}{spread} | {times} |")


if __name__ == "__main__":
    sys.exit(main())
