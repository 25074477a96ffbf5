"""Runs `bert-jax sweep`: searches over hyperparameters of a fine-tuning run."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bert_jax.cli.arguments import PRETRAINED, TaskArguments, seeds_from_count
from bert_jax.config.flags import REQUIRED, check_needs, flag, given

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
    search_seed: int | None = _space("N", "seed of the samples of --random (default: 0)")
    num_seeds: int = _shared("N", "number of runs of each setting, with the seeds 0 to N-1", 1)
    epochs: float | None = _shared("N", "training epochs (default: as in finetune)")
    batch_size: int | None = _shared("N", "sequences of a batch (default: 32)")
    learning_rate: float | None = _shared("RATE", "peak learning rate (default: 5e-5)")
    max_length: int | None = _shared("TOKENS", "maximum length of a sequence")
    set: tuple[str, ...] = _shared("FIELD=VALUE", "fields of the config of every run", ())

    def __post_init__(self) -> None:
        check_needs(self, "random", "search_seed")


def run(args: Arguments) -> int:
    """Runs the sweep; returns 0, 1 if a run failed, 75 if stopped."""
    from bert_jax.apps.studies.jobs import run_study
    from bert_jax.apps.studies.sweep import Search, Sweep, parse_ranges, parse_values
    from bert_jax.apps.studies.trials import FLAG_SETTINGS

    search = Search(
        values=parse_values(args.grid),
        ranges=parse_ranges(args.range),
        num_samples=args.random,
        seed=args.search_seed or 0,
    )
    output = Path(args.output)
    study = Sweep(
        args.task_config(),
        args.command(),
        search,
        output,
        model=args.model,
        seeds=seeds_from_count(args.num_seeds),
        shared=given(args, *FLAG_SETTINGS),
        overrides=args.set,
    )
    return run_study(study, output, model=args.model)
