"""Runs `bert-jax sheet`: compares models with equal budgets, over seeds, on one page."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.studies.cli.shards import SHARDS_HELP, ShardArguments
from bert_jax.config.flags import REQUIRED, flag, positional

HELP = "train and evaluate models with equal budgets and several seeds, and compare them on a page"

EPILOG = f"""examples:
  bert-jax sheet masking --output runs/masking --arg corpus=p-train heldout=p-heldout \\
      blimp='blimp/*.jsonl.gz'
  bert-jax sheet objectives --output runs/objectives --arg corpus=p-train heldout=p-heldout \\
      blimp='blimp/*.jsonl.gz' budget=6e12 seeds='[0,1,2]'
  bert-jax sheet my_sheet.py --output runs/mine

Shipped sheets: masking, objectives, families, sizes, data, growth, textbook and tuning.
A sheet of your own is a Python file with a function get_config that returns a
bert_jax.apps.studies.sheets.sheet.Sheet.

Each training and each evaluation is a process of its own with a folder under --output. The same
command resumes after a stop; finished ones are not repeated, and seeds, models and columns may be
added. If one fails, it is reported and the others continue.

{SHARDS_HELP}
Files written: table.html (the table with intervals and paired tests, pictures, and the command
behind each number), table.md and results.json. Exit codes: 0 done, 1 a command failed, 2 usage,
75 stopped by SIGTERM or Ctrl-C.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(ShardArguments):
    """Names the sheet, its arguments and the output folder."""

    sheet: str = positional("SHEET", "name of a shipped sheet, or a Python file")
    output: str = flag("FOLDER", "folder of all runs and results", REQUIRED)
    arg: tuple[str, ...] = flag("NAME=VALUE", "arguments of get_config in the sheet", ())


def run(args: Arguments) -> int:
    """Runs the sheet; returns 0, 1 if a command failed, 75 if stopped."""
    from bert_jax.apps.studies.jobs import run_study
    from bert_jax.apps.studies.sheets.run import SheetStudy, load_sheet

    study = SheetStudy(load_sheet(args.sheet, args.arg), Path(args.output))
    return run_study(study, Path(args.output), shard=args.job_shard())
