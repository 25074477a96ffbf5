"""`bert-jax glue`: all tasks of GLUE with several seeds, one table, and the leaderboard's zip."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.studies.job_shards import JobShard

HELP = "fine-tune and evaluate a model on all tasks of GLUE, over several seeds"

_EPILOG = """examples:
  bert-jax glue --glue-dir glue_data --model exported --output runs/glue --zip
  bert-jax glue --glue-dir glue_data --model exported --output runs/paper --seeds 0 1 2 3 4 \\
      --batch-size 16 32 --learning-rate 5e-5 3e-5 2e-5 --epochs 2 3 4

The second is the grid of Devlin et al. 2019, appendix A.3: 18 settings for each task, of which the
best median over the seeds on dev is reported. Each run is a process of its own, with a folder of
its own under --output (rte/seed-0, ...) as `bert-jax finetune` makes one. Stopped or killed, the
same command goes on where it was, and does not repeat what is finished; more --tasks and --seeds
may be asked for later. A run that fails is reported and the others go on.

On several chips or machines: the same command in each, with --lanes N --lane 0 ... N-1, runs the
runs of one lane each, longest first, as equal as whole runs can be; when all lanes have ended, the
command without --lanes writes the tables.

Written: results.json, table.md, table.html, and with --zip submission.zip for gluebenchmark.com:
test predictions of each task's best run on dev, the diagnostic set by the MNLI model, WNLI as the
majority class. Exit codes: 0 done, 1 some run failed, 2 usage, 75 stopped by SIGTERM or Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Data, model and output; the protocol."""
    # The tasks' names are in a config file, which is light.
    from bert_jax.data.finetuning.config import GLUE_NAMES

    tasks = [name for name in GLUE_NAMES if name != "ax"]
    parser.add_argument(
        "--glue-dir", metavar="DIR", required=True, help="holds CoLA/train.tsv and so on"
    )
    parser.add_argument(
        "--model",
        required=True,
        help="what to start from: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument("--output", metavar="FOLDER", required=True, help="where all goes")
    parser.add_argument(
        "--tasks", nargs="+", choices=tasks, default=tasks, metavar="TASK", help=" ".join(tasks)
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default: 0 1 2"
    )
    parser.add_argument("--epochs", nargs="+", type=float, default=[3.0], help="default: 3")
    parser.add_argument(
        "--batch-size", nargs="+", type=int, default=[32], metavar="ROWS", help="default: 32"
    )
    parser.add_argument(
        "--learning-rate",
        nargs="+",
        type=float,
        default=[5e-5],
        metavar="RATE",
        help="peak; default: 5e-5. All combinations of several values of these three are tried",
    )
    parser.add_argument("--max-length", type=int, metavar="PIECES", help="of rows (default: 128)")
    parser.add_argument(
        "--mnli-init",
        nargs="?",
        const="",
        metavar="MODEL",
        help="start RTE, MRPC and STS-B from this model of MNLI; without MODEL, from the run of "
        "mnli with the same seed",
    )
    parser.add_argument("--lanes", type=int, metavar="N", help="share the runs among N processes")
    parser.add_argument("--lane", type=int, metavar="I", help="which one this is, from 0 on")
    parser.add_argument("--zip", action="store_true", help="write the leaderboard's zip as well")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        nargs="+",
        default=[],
        help="fields of every run's config, as train.tuning.layerwise_lr_decay=0.9",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Returns 0, 1 when a run failed, 75 when stopped."""
    from dataclasses import asdict

    from bert_jax.atomic_io import write_json
    from bert_jax.studies import benchmark_table, leaderboard
    from bert_jax.studies.benchmark import SAME_SEED_MNLI, Benchmark, BenchmarkConfig
    from bert_jax.studies.job_runner import Interrupted, JobRunner
    from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, EXIT_USER_ERROR

    benchmark_config = BenchmarkConfig(
        glue_dir=args.glue_dir,
        model=args.model,
        tasks=tuple(args.tasks),
        seeds=tuple(args.seeds),
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
        runner.write_or_check_settings(fixed_settings)
        for task, reason in benchmark.skipped.items():
            _log(f"{task} is skipped: {reason}")
        try:
            failed = benchmark.run(runner)
        except Interrupted:
            _log("stopped; the same command goes on from here")
            return EXIT_PREEMPTED
        if shard is None:
            results = benchmark.results(failed)
            write_json(output / "results.json", results)
            print(benchmark_table.write_table(output, results).markdown(), end="")
        if args.zip and shard is None:
            file = output / leaderboard.FILE
            file_errors = leaderboard.write_submission(file, benchmark.best_run, args.glue_dir)
            for name, reason in file_errors.items():
                _log(f"{file}: {name} {reason}")
    for job, reason in failed.items():
        _log(f"{job} failed: {reason}")
    return EXIT_USER_ERROR if failed else EXIT_DONE


def _parse_shard(args: argparse.Namespace) -> "JobShard | None":
    from bert_jax.studies.job_shards import JobShard

    if (args.lanes is None) != (args.lane is None):
        raise ConfigError("--lanes N and --lane I go together: how many, and which one this is")
    if args.lanes is None:
        return None
    if args.mnli_init == "":
        raise ConfigError(
            "--mnli-init without a model does not go with --lanes, since the runs of mnli have to "
            "come first: run --tasks mnli on lanes, then the others with --mnli-init "
            f"{args.output}/mnli/seed-{args.seeds[0]} and another --output"
        )
    return JobShard(index=args.lane, count=args.lanes)


def _log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
