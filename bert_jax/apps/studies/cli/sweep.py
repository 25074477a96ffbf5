"""Runs `bert-jax sweep`: searches over hyperparameters of a fine-tuning run."""

import argparse
import logging
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments.task import (
    add_num_seeds_argument,
    add_task_arguments,
    seeds_from_count,
    task_command,
    task_config,
)
from bert_jax.errors import ConfigError

logger = logging.getLogger(__name__)

HELP = "search over hyperparameters of a fine-tuning run, in a grid or at random"

_EPILOG = """examples:
  bert-jax sweep glue/rte --glue-dir glue_data --model exported --output runs/rte-grid \\
      --grid batch_size=16,32 learning_rate=5e-5,3e-5,2e-5 epochs=2,3,4
  bert-jax sweep glue/rte --glue-dir glue_data --model exported --output runs/rte-random \\
      --random 20 --range learning_rate=1e-6..1e-4:log \\
      --grid epochs=2,3,4 train.tuning.layerwise_lr_decay=0.8,0.9,1.0

The first is the grid of Devlin et al. 2019, appendix A.3. FIELD is epochs, batch_size,
learning_rate, max_length, or any field of the config, as in `bert-jax finetune --set`
(train.optimizer.weight_decay, objective.classifier_dropout, ...).

Each run is a separate process with its own run folder under --output. The same command resumes
after a stop; values and samples may be added and --num-seeds increased later; finished runs are not
repeated.
Files written: results.json, table.md, and table.html with a plot for each field. Exit codes:
0 done, 1 a run failed, 2 usage, 75 stopped by SIGTERM or Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds TASK with its flags, the model, the search space, and the settings of all runs."""
    add_task_arguments(parser)
    parser.add_argument(
        "--model",
        required=True,
        help="pretrained model: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", required=True, help="folder of all runs and results"
    )
    search = parser.add_argument_group("search space")
    search.add_argument(
        "--grid",
        nargs="+",
        metavar="FIELD=V1,V2",
        default=[],
        help="values to combine in a grid; with --random, values to sample from",
    )
    search.add_argument("--random", type=int, metavar="N", help="number of random samples")
    search.add_argument(
        "--range",
        dest="ranges",
        nargs="+",
        metavar="FIELD=LOW..HIGH[:log]",
        default=[],
        help="interval to sample from, with --random; :log for a log-uniform distribution",
    )
    search.add_argument(
        "--search-seed",
        type=int,
        default=0,
        metavar="N",
        help="random seed of the samples (default: 0)",
    )
    shared = parser.add_argument_group("settings of all runs")
    add_num_seeds_argument(shared, default=1)
    shared.add_argument(
        "--epochs", type=float, metavar="N", help="training epochs (default: as in finetune)"
    )
    shared.add_argument(
        "--batch-size", type=int, metavar="N", help="sequences of a batch (default: 32)"
    )
    shared.add_argument(
        "--learning-rate", type=float, metavar="RATE", help="peak learning rate (default: 5e-5)"
    )
    shared.add_argument(
        "--max-length", type=int, metavar="TOKENS", help="maximum length of a sequence"
    )
    shared.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        nargs="+",
        default=[],
        help="fields of the config of every run",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Runs the sweep; returns 0, 1 if a run failed, 75 if stopped."""
    from bert_jax.apps.studies import sweep
    from bert_jax.apps.studies.job_runner import Interrupted, JobRunner
    from bert_jax.config.config_lib import to_json
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.errors import UserError
    from bert_jax.io.atomic_io import write_json
    from bert_jax.pretrained.initial import check_model_exists
    from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, EXIT_USER_ERROR

    config, shared, seeds = task_config(args), _shared_settings(args), seeds_from_count(args)
    search = sweep.Search(
        values=sweep.parse_values(args.grid),
        ranges=sweep.parse_ranges(args.ranges),
        num_samples=args.random,
        seed=args.search_seed,
    )
    _check_not_set_twice(search, shared, args.overrides)
    output = Path(args.output)
    with JobRunner(output) as runner:
        task = load_task(config)
        for split in ("train", "dev"):
            if split not in task.splits:
                raise UserError(f"{task.name} has no {split} examples, which a sweep needs")
        fixed_settings = {"task": args.task, "data": to_json(config), "model": args.model}
        fixed_settings |= {"shared": shared, "overrides": args.overrides}
        trials = _trials(args, seeds, search.settings(), shared, len(task.splits["train"]))
        check_model_exists(args.model)
        runner.write_or_check_settings(fixed_settings)
        try:
            failed = runner.run([job for trial in trials for job in trial.jobs()])
        except Interrupted:
            logger.info("stopped; run the same command to resume")
            return EXIT_PREEMPTED
        study_config = {
            **fixed_settings,
            "search": sweep.search_json(search),
            "seeds": [*seeds],
        }
        results = sweep.collect_results(output, trials, task.metrics, study_config, failed)
        write_json(output / "results.json", results)
        print(sweep.write_table(output, results).markdown(), end="")
    for job, reason in failed.items():
        logger.error("%s failed: %s", job, reason)
    return EXIT_USER_ERROR if failed else EXIT_DONE


def _shared_settings(args: argparse.Namespace) -> dict[str, Any]:
    from bert_jax.apps.studies.sweep_trials import FLAG_SETTINGS

    return {flag: value for flag in FLAG_SETTINGS if (value := getattr(args, flag)) is not None}


def _check_not_set_twice(search: Any, shared: dict[str, Any], overrides: list[str]) -> None:
    """Raises ConfigError for a field that is both searched over and set for all runs."""
    fixed = {*shared, *(assignment.partition("=")[0] for assignment in overrides)}
    for field in (*search.values, *search.ranges):
        if field in fixed:
            raise ConfigError(f"{field} is both searched over and set for all runs; remove one")


def _trials(
    args: argparse.Namespace,
    seeds: tuple[int, ...],
    settings: list[dict[str, Any]],
    shared: dict[str, Any],
    num_examples: int,
) -> list[Any]:
    from bert_jax.apps.studies.sweep_trials import Trial, setting_name

    base = task_command(args)
    for flag, value in shared.items():
        base.append(f"--{flag.replace('_', '-')}={value}")
    return [
        Trial(
            folder=setting_name(setting),
            setting=setting,
            seeds=seeds,
            base_arguments=tuple(base),
            overrides=tuple(args.overrides),
            models={seed: args.model for seed in seeds},
            cost=num_examples * _epochs(setting.get("epochs", shared.get("epochs", 3.0))),
        )
        for setting in settings
    ]


def _epochs(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"epochs is {value!r}, expected a number above 0")
    return float(value)
