"""Measures fine-tuning on SST-2 with batches of a few lengths versus padding everything to 128.

    python bench/fine_tuning_lengths.py --glue-dir glue_data --model exported

Time: steps of each length are timed, including batch construction on the host, with the two methods
in turns; the time of an epoch is the sum over its batches. Accuracy: one epoch on the first
examples of train, with several seeds.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MAX_LENGTH = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--glue-dir", required=True, help="folder that contains SST-2/train.tsv")
    parser.add_argument("--model", required=True, help="pretrained model to start from")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each length")
    parser.add_argument(
        "--num-examples", type=int, default=8000, help="training examples for the accuracy"
    )
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    args = parser.parse_args(argv)
    seconds = epoch_seconds(args)
    print("| batches | seconds per epoch | speedup | dev accuracy of each seed | mean |")
    print("|---|---|---|---|---|")
    for name, bucket_lengths in METHODS.items():
        found = accuracies(args, bucket_lengths)
        each = ", ".join(f"{accuracy:.3f}" for accuracy in found)
        speedup = seconds[f"padded to {MAX_LENGTH}"] / seconds[name]
        print(
            f"| {name} | {seconds[name]:.1f} | {speedup:.2f} | {each} "
            f"| {statistics.mean(found):.3f} |"
        )
    return 0


METHODS: dict[str, tuple[int, ...]] = {
    f"padded to {MAX_LENGTH}": (),
    "of lengths 8, 16, 32, 64, 128": (8, 16, 32, 64),
}


def experiment(
    args: argparse.Namespace, glue_dir: str, bucket_lengths: tuple[int, ...], seed: int = 0
):
    """Returns the config of one epoch on SST-2."""
    from bert_jax.config.labeled_data import Glue
    from bert_jax.train.presets import fine_tuning_experiment

    config = fine_tuning_experiment(
        Glue(task="sst2", folder=glue_dir),
        args.model,
        epochs=1,
        learning_rate=args.learning_rate,
        max_length=MAX_LENGTH,
        seed=seed,
    )
    return dataclasses.replace(
        config, data=dataclasses.replace(config.data, bucket_lengths=bucket_lengths)
    )


def epoch_seconds(args: argparse.Namespace) -> dict[str, float]:
    """Returns {method: seconds of all steps of an epoch}."""
    timed_methods = {
        name: time_method(experiment(args, args.glue_dir, b)) for name, b in METHODS.items()
    }
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(args.rounds):
        for name, (_, update_at) in timed_methods.items():
            for length, update in update_at.items():
                times.setdefault((name, length), []).append(update())
    return {
        name: sum(n * statistics.median(times[name, length]) for length, n in counts.items())
        for name, (counts, _) in timed_methods.items()
    }


def time_method(experiment: Any) -> tuple[Counter[int], dict[int, Callable[[], float]]]:
    """Returns the number of batches of each length, and a function that times a step of each."""
    import jax

    from bert_jax import batch as batch_lib
    from bert_jax.parallel import sharding
    from bert_jax.train.initialize import initialize_or_load
    from bert_jax.train.step import TrainSetup
    from bert_jax.train.workloads import make_workload

    phase, source = experiment.train.phases[0], make_workload(experiment)
    mesh = sharding.make_mesh(experiment.mesh)
    setup = TrainSetup.from_experiment(experiment, mesh)
    fields = source.batch_fields(setup.objective)
    step = setup.compile_step(phase, fields, source.shapes(0))
    state = initialize_or_load(setup)
    counts: Counter[int] = Counter()
    positions: dict[int, int] = {}
    with source.loader(0, 0) as loader:
        for _ in range(phase.steps):
            position = loader.position
            length = batch_lib.sequence_length(next(iter(loader)))
            counts[length] += 1
            positions[length] = position
    for length in counts:
        step.prepare(length)

    def update(position: int) -> float:
        nonlocal state
        start = time.perf_counter()
        with source.loader(0, position) as loader:
            batch = next(iter(loader))
        device_batch = sharding.put_batch(
            {n: batch[n] for n in fields}, sharding.batch_sharding(mesh)
        )
        state, metrics = step(state, device_batch)
        jax.block_until_ready((state, metrics))
        return time.perf_counter() - start

    return counts, {n: functools.partial(update, at) for n, at in positions.items()}


def accuracies(args: argparse.Namespace, bucket_lengths: tuple[int, ...]) -> list[float]:
    """Returns the dev accuracy after one epoch on the first examples, for each seed."""
    from bert_jax.train.run import run

    with tempfile.TemporaryDirectory() as folder:
        sst2_folder = Path(folder) / "glue" / "SST-2"
        sst2_folder.mkdir(parents=True)
        for split, num_examples in (("train", args.num_examples), ("dev", None)):
            (sst2_folder / f"{split}.tsv").write_text(
                "".join(lines(args.glue_dir, split, num_examples))
            )
        found = []
        for seed in range(args.num_seeds):
            config = experiment(args, str(sst2_folder.parent), bucket_lengths, seed)
            run(config, Path(folder) / f"seed-{seed}")
            results = json.loads((Path(folder) / f"seed-{seed}" / "evaluation.json").read_text())
            found.append(results["dev"]["accuracy"])
    return found


def lines(glue_dir: str, split: str, num_examples: int | None) -> list[str]:
    """Reads the header and the first examples of an SST-2 file, gzipped or not."""
    from bert_jax.text.files import read_text

    file = Path(glue_dir) / "SST-2" / f"{split}.tsv"
    text = read_text(file if file.exists() else file.with_suffix(".tsv.gz"))
    return text.splitlines(keepends=True)[: None if num_examples is None else num_examples + 1]


if __name__ == "__main__":
    raise SystemExit(main())
