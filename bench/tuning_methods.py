"""Compares methods of fine-tuning: how far weights move, what is learned, and what is forgotten.

    python bench/tuning_methods.py --model exported --corpus prepared/heldout \\
        --glue-dir glue_data --task mrpc

Every method fine-tunes the same encoder on the same examples with the same seeds. Reported are the
task's first metric on dev, the masked-LM loss on general text before and after (with the original
masked-LM head), and the relative distance |after - before| / |before| of the weights at each depth.
"""

import argparse
import collections
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "layer-wise decay 0.5": {"layerwise_lr_decay": 0.5},
    "embeddings frozen": {"frozen": ["encoder/embeddings/**"]},
    "encoder frozen": {"frozen": ["encoder/**"]},
    "unfreezing from the top": {"unfreeze_every": "a quarter of the steps"},
    "top layer fresh": {"reinit_layers": 1},
    "L2-SP": {"weight_anchor": {"type": "L2SP"}},
    "EWC": {"weight_anchor": {"type": "EWC"}},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table, with a row after each method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="pretrained model with a masked-LM head")
    parser.add_argument("--corpus", required=True, type=Path, help="prepared general text")
    parser.add_argument("--glue-dir", required=True, help="folder of the official GLUE files")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--l2sp", type=float, default=0.01, help="strength of L2-SP")
    parser.add_argument("--ewc", type=float, default=1e4, help="strength of EWC")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument(
        "--num-examples", type=int, default=1024, help="held-out examples of general text"
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        fisher_file = Path(folder) / "fisher.safetensors"
        measure_fisher(args, fisher_file)
        for index, method in enumerate(args.methods):
            runs = [run_method(args, method, seed, fisher_file) for seed in range(args.num_seeds)]
            if not index:
                print(heading(args, runs[0]))
            print(markdown_row(method, runs), flush=True)
    return 0


def measure_fisher(args: argparse.Namespace, file: Path) -> None:
    """Computes the Fisher information as `bert-jax fisher` does."""
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.train.tuning.fisher import fisher_information, save_fisher

    save_fisher(fisher_information(load_encoder(args.model), args.corpus), file)


def run_method(
    args: argparse.Namespace, method: str, seed: int, fisher_file: Path
) -> dict[str, Any]:
    """Runs one fine-tuning; returns its metric and what was forgotten."""
    from bert_jax.apps.studies.forgetting import measure_forgetting
    from bert_jax.config.config_lib import override
    from bert_jax.config.labeled_data import Glue
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.train.presets import fine_tuning_experiment
    from bert_jax.train.run import run

    experiment = fine_tuning_experiment(
        Glue(task=args.task, folder=args.glue_dir),
        args.model,
        epochs=args.epochs,
        learning_rate=args.learning_rate,
        seed=seed,
    )
    settings = dict(METHODS[method])
    if "unfreeze_every" in settings:
        settings["unfreeze_every"] = experiment.train.steps // 4
    if weight_anchor := settings.get("weight_anchor"):
        strength = (
            {"encoder_strength": args.l2sp, "head_strength": 0.0}
            if weight_anchor["type"] == "L2SP"
            else {"fisher": str(fisher_file), "strength": args.ewc}
        )
        settings["weight_anchor"] = {**weight_anchor, **strength}
    changes = [f"train.tuning.{name}={json.dumps(value)}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        run_path = Path(folder) / "run"
        run(override(experiment, changes), run_path)
        metrics = json.loads((run_path / "evaluation.json").read_text())["dev"]
        forgetting_result = measure_forgetting(
            load_encoder(args.model),
            load_encoder(str(run_path)),
            args.corpus,
            num_examples=args.num_examples,
        )
    first = experiment.train.checkpoints.best_metric
    return {"name": first, "metric": metrics[first], **forgetting_result}


def depth_distances(result: dict[str, Any]) -> list[float]:
    """Returns the mean relative distance of the weights at each depth, embeddings first."""
    from bert_jax.train.tuning.freezing import count_layers, param_depth

    distances = {f"encoder/{path}": value for path, value in result["distance"].items()}
    layers = count_layers(distances)
    found: dict[int, list[float]] = collections.defaultdict(list)
    for path, distance in distances.items():
        if path.endswith(("kernel", "embedding")):
            found[param_depth(path, layers)].append(distance)
    return [statistics.mean(found[layer_depth]) for layer_depth in range(layers + 1)]


def heading(args: argparse.Namespace, result: dict[str, Any]) -> str:
    """Formats the header of the table, with the loss before fine-tuning."""
    before = result["before"]["mlm_loss"]
    layers = [f"layer {number}" for number in range(1, len(depth_distances(result)))]
    names = [
        "method",
        f"{args.task} {result['name']} of each seed",
        "mean",
        f"masked-LM loss (before: {before:.3f})",
        "distance: embeddings",
        *layers,
    ]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def markdown_row(method: str, runs: list[dict[str, Any]]) -> str:
    """Formats one method: the metric of each seed, and means over the seeds."""
    each = ", ".join(f"{100 * run['metric']:.1f}" for run in runs)
    mean = 100 * statistics.mean(run["metric"] for run in runs)
    loss = statistics.mean(run["after"]["mlm_loss"] for run in runs)
    depths = [
        statistics.mean(distances) for distances in zip(*map(depth_distances, runs), strict=True)
    ]
    cells = [
        method,
        each,
        f"{mean:.1f}",
        f"{loss:.3f}",
        *(f"{distance:.4f}" for distance in depths),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
