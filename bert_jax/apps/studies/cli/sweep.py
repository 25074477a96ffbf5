"""Runs `bert-jax sweep`: searches over hyperparameters of a fine-tuning run."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import PRETRAINED, TaskArguments, seeds_from_count
from bert_jax.config.flags import REQUIRED, flag, flag_name, given
from bert_jax.errors import ConfigError

logger = logging.getLogger(__name__)

HELP = "search over hyperparameters of a fine-tuning run, in a grid or at random"

EPILOG = """examples:
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


_space = partial(flag, group="search space")
_shared = partial(flag, group="settings of all runs")


@dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments):
    """Names the task and the model, the search space, and the settings of all runs."""

    model: str = flag("", PRETRAINED, REQUIRED)
    output: str = flag("FOLDER", "folder of all runs and results", REQUIRED)
    grid: tuple[str, ...] = _space(
        "FIELD=V1,V2", "values to combine in a grid; with --random, values to sample from", ()
    )
    random: int | None = _space("N", "number of random samples")
    range: tuple[str, ...] = _space(
        "FIELD=LOW..HIGH[:log]",
        "interval to sample from, with --random; :log for a log-uniform distribution",
        (),
    )
    search_seed: int = _space("N", "random seed of the samples", 0)
    num_seeds: int = _shared("N", "number of runs of each setting, with the seeds 0 to N-1", 1)
    epochs: float | None = _shared("N", "training epochs (default: as in finetune)")
    batch_size: int | None = _shared("N", "sequences of a batch (default: 32)")
    learning_rate: float | None = _shared("RATE", "peak learning rate (default: 5e-5)")
    max_length: int | None = _shared("TOKENS", "maximum length of a sequence")
    set: tuple[str, ...] = _shared("FIELD=VALUE", "fields of the config of every run", ())


def run(args: Arguments) -> int:
    """Runs the sweep; returns 0, 1 if a run failed, 75 if stopped."""
    from bert_jax.apps.studies import sweep
    from bert_jax.apps.studies.job_runner import Interrupted, JobRunner
    from bert_jax.config.config_lib import to_json
    from bert_jax.data.finetuning.readers.load_task import load_task
    from bert_jax.errors import UserError
    from bert_jax.io.atomic_io import write_json
    from bert_jax.pretrained.initial import check_model_exists
    from bert_jax.train.preemption import EXIT_DONE, EXIT_PREEMPTED, EXIT_USER_ERROR

    config, seeds = args.task_config(), seeds_from_count(args.num_seeds)
    shared = _shared_settings(args)
    search = sweep.Search(
        values=sweep.parse_values(args.grid),
        ranges=sweep.parse_ranges(args.range),
        num_samples=args.random,
        seed=args.search_seed,
    )
    _check_not_set_twice(search, shared, args.set)
    output = Path(args.output)
    with JobRunner(output) as runner:
        task = load_task(config)
        for split in ("train", "dev"):
            if split not in task.splits:
                raise UserError(f"{task.name} has no {split} examples, which a sweep needs")
        fixed_settings = {"task": args.task, "data": to_json(config), "model": args.model}
        fixed_settings |= {"shared": shared, "overrides": [*args.set]}
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


def _shared_settings(args: Arguments) -> dict[str, Any]:
    from bert_jax.apps.studies.sweep_trials import FLAG_SETTINGS

    return given(args, *FLAG_SETTINGS)


def _check_not_set_twice(search: Any, shared: dict[str, Any], overrides: tuple[str, ...]) -> None:
    """Raises ConfigError for a field that is both searched over and set for all runs."""
    fixed = {*shared, *(assignment.partition("=")[0] for assignment in overrides)}
    for field in (*search.values, *search.ranges):
        if field in fixed:
            raise ConfigError(f"{field} is both searched over and set for all runs; remove one")


def _trials(
    args: Arguments,
    seeds: tuple[int, ...],
    settings: list[dict[str, Any]],
    shared: dict[str, Any],
    num_examples: int,
) -> list[Any]:
    from bert_jax.apps.studies.sweep_trials import Trial, setting_name

    base = args.command()
    base += [f"{flag_name(name)}={value}" for name, value in shared.items()]
    return [
        Trial(
            folder=setting_name(setting),
            setting=setting,
            seeds=seeds,
            base_arguments=tuple(base),
            overrides=args.set,
            models={seed: args.model for seed in seeds},
            cost=num_examples * _epochs(setting.get("epochs", shared.get("epochs", 3.0))),
        )
        for setting in settings
    ]


def _epochs(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"epochs is {value!r}, expected a number above 0")
    return float(value)
