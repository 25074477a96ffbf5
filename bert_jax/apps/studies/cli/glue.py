"""Runs `bert-jax glue`: fine-tunes on all GLUE tasks over several seeds and writes a table."""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.studies.cli.shards import SHARDS_HELP, ShardArguments
from bert_jax.cli.arguments import CONTAMINATION, PRETRAINED, seeds_from_count
from bert_jax.config.flags import REQUIRED, flag, switch
from bert_jax.config.labeled_data import GLUE_NAMES
from bert_jax.errors import ConfigError

logger = logging.getLogger(__name__)

HELP = "fine-tune and evaluate a model on all tasks of GLUE, over several seeds"

EPILOG = f"""examples:
  bert-jax glue --glue-dir glue_data --model exported --output runs/glue --zip
  bert-jax glue --glue-dir glue_data --model exported --output runs/paper --num-seeds 5 \\
      --batch-size 16 32 --learning-rate 5e-5 3e-5 2e-5 --epochs 2 3 4

The second is the grid of Devlin et al. 2019, appendix A.3: 18 settings for each task, of which the
one with the best median dev score over the seeds is reported. Each run is a separate process with
its own run folder under --output (rte/seed-0, ...), like one of `bert-jax finetune`. The same
command resumes after a stop and does not repeat finished runs; --tasks may be added and
--num-seeds increased later. If a run fails, it is reported and the others continue.

{SHARDS_HELP}
Files written: results.json, table.md, table.html, and with --zip submission.zip for
gluebenchmark.com: test predictions of each task's best run on dev, predictions of the MNLI model
for the diagnostic set, and the majority class for WNLI. Exit codes: 0 done, 1 a run failed,
2 usage, 75 stopped by SIGTERM or Ctrl-C.
"""


_TASKS = tuple(name for name in GLUE_NAMES if name != "ax")


@dataclass(frozen=True, kw_only=True)
class Arguments(ShardArguments):
    """Names the data, the model and the output folder, and the settings of the benchmark."""

    glue_dir: str = flag("DIR", "folder with CoLA/train.tsv and so on", REQUIRED)
    model: str = flag("", PRETRAINED, REQUIRED)
    output: str = flag("FOLDER", "folder of all runs and results", REQUIRED)
    tasks: tuple[str, ...] = flag("TASK", "tasks to run", _TASKS, choices=_TASKS)
    num_seeds: int = flag("N", "number of runs of each setting, with the seeds 0 to N-1", 3)
    epochs: tuple[float, ...] = flag("N", "training epochs (default: 3)", (3.0,))
    batch_size: tuple[int, ...] = flag("N", "sequences of a batch", (32,))
    learning_rate: tuple[float, ...] = flag(
        "RATE",
        "peak learning rate (default: 5e-5); of several epochs, batch sizes and learning "
        "rates, every combination is run",
        (5e-5,),
    )
    max_length: int | None = flag(
        "TOKENS", "maximum length of a sequence (default: as in finetune)"
    )
    mnli_init: str | None = flag(
        "MODEL",
        "MNLI model that RTE, MRPC and STS-B start from (without MODEL: the MNLI run of this "
        "benchmark with the same seed)",
        nargs="?",
        const="",
    )
    contamination: str | None = flag("DIR", CONTAMINATION)
    zip: bool = switch("submission.zip for the leaderboard")
    set: tuple[str, ...] = flag(
        "FIELD=VALUE",
        "fields of the config of every run, as in train.tuning.layerwise_lr_decay=0.9",
        (),
    )

    def __post_init__(self) -> None:
        if self.num_shards is not None and self.mnli_init == "":
            raise ConfigError(
                "--mnli-init without a model cannot be combined with --num-shards, because the "
                "MNLI runs must finish first: run --tasks mnli in shards, then the other tasks "
                f"with --mnli-init {self.output}/mnli/seed-0 and another --output"
            )


def run(args: Arguments) -> int:
    """Runs the benchmark; returns 0, 1 if a run failed, 75 if stopped."""
    from bert_jax.apps.studies import leaderboard
    from bert_jax.apps.studies.benchmark import SAME_SEED_MNLI, Benchmark, BenchmarkConfig
    from bert_jax.apps.studies.jobs import run_study
    from bert_jax.data.corpus.contamination.found_items import known_items
    from bert_jax.pretrained.folder import resolve_model_folder
    from bert_jax.train.preemption import EXIT_PREEMPTED

    benchmark_config = BenchmarkConfig(
        glue_dir=args.glue_dir,
        model=args.model,
        tasks=args.tasks,
        seeds=seeds_from_count(args.num_seeds),
        epochs=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        max_length=args.max_length,
        mnli_init=SAME_SEED_MNLI if args.mnli_init == "" else args.mnli_init,
        overrides=args.set,
    )
    output, shard = Path(args.output), args.job_shard()
    found_items = known_items(args.contamination, resolve_model_folder(args.model))
    study = Benchmark(benchmark_config, output, found_items)
    for task, reason in study.skipped.items():
        logger.info("%s skipped: %s", task, reason)
    exit_code = run_study(study, output, model=args.model, shard=shard)
    if args.zip and shard is None and exit_code != EXIT_PREEMPTED:
        file = output / leaderboard.FILE
        file_errors = leaderboard.write_submission(file, study.best_run, args.glue_dir)
        for name, reason in file_errors.items():
            logger.warning("%s: %s %s", file, name, reason)
    return exit_code
