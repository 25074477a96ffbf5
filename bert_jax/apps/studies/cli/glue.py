"""Runs `bert-jax glue`: fine-tunes on all GLUE tasks over several seeds and writes a table."""

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.cli.arguments.task import (
    add_contamination_argument,
    add_num_seeds_argument,
    seeds_from_count,
)
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.apps.studies.job_shards import JobShard

logger = logging.getLogger(__name__)

HELP = "fine-tune and evaluate a model on all tasks of GLUE, over several seeds"

_EPILOG = """examples:
  bert-jax glue --glue-dir glue_data --model exported --output runs/glue --zip
  bert-jax glue --glue-dir glue_data --model exported --output runs/paper --num-seeds 5 \\
      --batch-size 16 32 --learning-rate 5e-5 3e-5 2e-5 --epochs 2 3 4

The second is the grid of Devlin et al. 2019, appendix A.3: 18 settings for each task, of which the
one with the best median dev score over the seeds is reported. Each run is a separate process with
its own run folder under --output (rte/seed-0, ...), like one of `bert-jax finetune`. The same
command resumes after a stop and does not repeat finished runs; --tasks may be added and
--num-seeds increased later. If a run fails, it is reported and the others continue.

To use several chips or machines, run the same command on each with --num-shards N and --shard 0 to
N-1. Each executes its shard of the runs, longest first; shards are balanced by estimated cost. When
all shards have finished, the command without --num-shards writes the tables.

Files written: results.json, table.md, table.html, and with --zip submission.zip for
gluebenchmark.com: test predictions of each task's best run on dev, predictions of the MNLI model
for the diagnostic set, and the majority class for WNLI. Exit codes: 0 done, 1 a run failed,
2 usage, 75 stopped by SIGTERM or Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the data, the model, --output, and the settings of the benchmark."""
    # This config module imports nothing heavy, so --help stays fast.
    from bert_jax.config.labeled_data import GLUE_NAMES

    tasks = [name for name in GLUE_NAMES if name != "ax"]
    parser.add_argument(
        "--glue-dir", metavar="DIR", required=True, help="folder with CoLA/train.tsv and so on"
    )
    parser.add_argument(
        "--model",
        required=True,
        help="pretrained model: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", required=True, help="folder of all runs and results"
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=tasks,
        default=tasks,
        metavar="TASK",
        help=f"tasks to run (default: {' '.join(tasks)})",
    )
    add_num_seeds_argument(parser, default=3)
    _add_hyperparameters(parser)
    parser.add_argument(
        "--mnli-init",
        nargs="?",
        const="",
        metavar="MODEL",
        help="MNLI model that RTE, MRPC and STS-B start from (without MODEL: the MNLI run of this "
        "benchmark with the same seed)",
    )
    add_contamination_argument(parser)
    _add_shard_arguments(parser)
    parser.add_argument("--zip", action="store_true", help="submission.zip for the leaderboard")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        nargs="+",
        default=[],
        help="fields of the config of every run, as in train.tuning.layerwise_lr_decay=0.9",
    )
    parser.epilog = _EPILOG


def _add_shard_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --num-shards and --shard."""
    parser.add_argument(
        "--num-shards",
        type=int,
        metavar="N",
        help="number of processes that split the runs",
    )
    parser.add_argument(
        "--shard", type=int, metavar="I", help="index of this process, from 0 to N-1"
    )


def _add_hyperparameters(parser: argparse.ArgumentParser) -> None:
    """Adds the hyperparameters, each with one or several values."""
    parser.add_argument(
        "--epochs",
        nargs="+",
        type=float,
        default=[3.0],
        metavar="N",
        help="training epochs (default: 3)",
    )
    parser.add_argument(
        "--batch-size",
        nargs="+",
        type=int,
        default=[32],
        metavar="N",
        help="sequences of a batch (default: 32)",
    )
    parser.add_argument(
        "--learning-rate",
        nargs="+",
        type=float,
        default=[5e-5],
        metavar="RATE",
        help="peak learning rate (default: 5e-5); of several epochs, batch sizes and learning "
        "rates, every combination is run",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="maximum length of a sequence (default: 128)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark; returns 0, 1 if a run failed, 75 if stopped."""
    from dataclasses import asdict

    from bert_jax.apps.studies import benchmark_table, leaderboard
    from bert_jax.apps.studies.benchmark import SAME_SEED_MNLI, Benchmark, BenchmarkConfig
    from bert_jax.apps.studies.job_runner import Interrupted, JobRunner
    from bert_jax.data.corpus.contamination.found_items import known_items
    from bert_jax.io.atomic_io import write_json
    from bert_jax.pretrained.initial import check_model_exists
    from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, EXIT_USER_ERROR

    benchmark_config = BenchmarkConfig(
        glue_dir=args.glue_dir,
        model=args.model,
        tasks=tuple(args.tasks),
        seeds=seeds_from_count(args),
        epochs=tuple(args.epochs),
        batch_size=tuple(args.batch_size),
        learning_rate=tuple(args.learning_rate),
        max_length=args.max_length,
        mnli_init=SAME_SEED_MNLI if args.mnli_init == "" else args.mnli_init,
        overrides=tuple(args.overrides),
    )
    output, shard = Path(args.output), _parse_shard(args)
    with JobRunner(output, shard=shard) as runner:
        benchmark = Benchmark(benchmark_config, output)
        fixed_settings = {
            k: v for k, v in asdict(benchmark_config).items() if k not in ("tasks", "seeds")
        }
        check_model_exists(args.model)
        runner.write_or_check_settings(fixed_settings)
        for task, reason in benchmark.skipped.items():
            logger.info("%s skipped: %s", task, reason)
        try:
            failed = benchmark.run(runner)
        except Interrupted:
            logger.info("stopped; run the same command to resume")
            return EXIT_PREEMPTED
        if shard is None:
            results = benchmark.results(failed, known_items(args.contamination, args.model))
            write_json(output / "results.json", results)
            print(benchmark_table.write_table(output, results).markdown(), end="")
        if args.zip and shard is None:
            file = output / leaderboard.FILE
            file_errors = leaderboard.write_submission(file, benchmark.best_run, args.glue_dir)
            for name, reason in file_errors.items():
                logger.warning("%s: %s %s", file, name, reason)
    for job, reason in failed.items():
        logger.error("%s failed: %s", job, reason)
    return EXIT_USER_ERROR if failed else EXIT_DONE


def _parse_shard(args: argparse.Namespace) -> "JobShard | None":
    from bert_jax.apps.studies.job_shards import JobShard

    if (args.num_shards is None) != (args.shard is None):
        raise ConfigError(
            "only one of --num-shards N and --shard I is given; expected both or neither"
        )
    if args.num_shards is None:
        return None
    if args.mnli_init == "":
        raise ConfigError(
            "--mnli-init without a model cannot be combined with --num-shards, because the MNLI "
            "runs must finish first: run --tasks mnli in shards, then the other tasks with "
            f"--mnli-init {args.output}/mnli/seed-0 and another --output"
        )
    return JobShard(index=args.shard, count=args.num_shards)
