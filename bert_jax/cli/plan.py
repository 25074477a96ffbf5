"""`bert-jax plan`: what a run will need on a TPU slice, before it is paid for."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_jax.cli.recipe import add_recipe_arguments
from bert_jax.errors import ConfigError
from bert_jax.plan.slices import Slice, all_slices, find_slice

if TYPE_CHECKING:
    from bert_jax.experiment import Experiment
    from bert_jax.plan.compiled import Compiled
    from bert_jax.plan.estimate import Plan

HELP = "memory, hours and cost of a run on a TPU slice, without data, weights or a TPU"

_EPILOG = """examples:
  bert-jax plan configs/pretrain/bert.py --with size=base --slice v5e-16
  bert-jax plan configs/pretrain/bert.py --with size=large batch_size=1024 --slice all16
  bert-jax plan configs/finetune/multi_task.py --slice v6e-4 \\
      --with model=exported glue_dir=glue_data conll=conll2003

A corpus that the recipe asks for (prepared=, heldout=) may be left out, or be one of a launch
(@data/wiki, gs://...): what the plan needs of it is the size of its vocabulary. Labelled data is
read, for how long its rows are. Hours lie between two bounds: compute alone at a stated share of
the chips' peak, and compute, gradients over the links and the optimizer one after another.

Exit codes: 0 it fits on a slice asked for; 1 on none; 2 usage, or a batch or mesh that the slice
cannot share out.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG, --with, --set, --slice, --mfu, --vocab-size, --json."""
    add_recipe_arguments(parser)
    parser.add_argument(
        "--slice",
        dest="slices",
        metavar="NAME",
        nargs="+",
        required=True,
        help="as v5e-16; several are compared; all16: each slice of 16 chips; all: every one",
    )
    parser.add_argument(
        "--mfu", type=float, default=0.4, help="share of the chips' peak, assumed (default: 0.4)"
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=30522,
        metavar="N",
        help="of a corpus that is not given (default: 30522, that of BERT)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile each phase's step for each slice with libtpu (pip install 'bert_jax[tpu]'), "
        "minutes each; results are kept in ~/.cache/bert_jax/plan",
    )
    parser.add_argument(
        "--largest-batch",
        action="store_true",
        help="with --compile: the largest batch of each phase that fits, by bisection, a "
        "compilation each step",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the run fits on one of the slices, else 1."""
    slices = _slices(args.slices)
    if args.largest_batch and not args.compile:
        raise ConfigError("--largest-batch is the compiler's answer: add --compile")

    import jax

    jax.config.update("jax_platforms", "cpu")  # not the TPU of the machine, if it has one
    from bert_jax.plan import table
    from bert_jax.plan.as_json import plan_to_json
    from bert_jax.plan.compile import compiler_versions
    from bert_jax.plan.compiled_table import describe_compiled
    from bert_jax.plan.estimate import Plan
    from bert_jax.plan.slices import prices_as_of
    from bert_jax.plan.stand_in import planned_experiment
    from bert_jax.plan.ways_out import ways_out

    experiment, missing = planned_experiment(
        args.config, args.arguments, args.overrides, args.vocab_size
    )
    planned = _planned(experiment, slices, args.mfu)
    plans = [plan for _, plan in planned if isinstance(plan, Plan)]
    ways = {plan.where.name: ways_out(plan) for plan in plans if not plan.fits and len(slices) == 1}
    compiled = _compiled(plans) if args.compile else {}
    largest = _largest(plans) if args.largest_batch else {}
    if args.json:
        rows = [
            plan_to_json(
                plan,
                ways.get(where.name, ()),
                compiled.get(where.name, ()),
                largest.get(where.name, ()),
            )
            if isinstance(plan, Plan)
            else {"slice": where.name, "error": plan}
            for where, plan in planned
        ]
        content = {"name": experiment.name, "prices_as_of": prices_as_of(), "slices": rows}
        print(json.dumps({**content, "stands_in_for": list(missing)}, indent=2))
    else:
        if missing:
            names = " and ".join(missing)
            print(f"{names} not at hand: planned for a vocabulary of {args.vocab_size:,}\n")
        if len(slices) == 1:
            print(table.describe(plans[0], ways.get(slices[0].name, ())))
        else:
            print(table.compare(planned))
        print(table.assumptions(args.mfu))
        for plan in plans if args.compile else ():
            name = plan.where.name
            told = describe_compiled(
                plan, compiled[name], compiler_versions(), largest.get(name, ())
            )
            print(f"\n{told}", end="")
    return 0 if any(_fits(plan, compiled) for plan in plans) else 1


def _planned(
    experiment: "Experiment", slices: Sequence[Slice], mfu: float
) -> list[tuple[Slice, "Plan | str"]]:
    """The plan on each slice, or why there is none; an error where only one was asked for."""
    from bert_jax.plan.estimate import make_plan
    from bert_jax.plan.inputs import make_inputs

    inputs = make_inputs(experiment)
    planned: list[tuple[Slice, Plan | str]] = []
    for where in slices:
        try:
            planned.append((where, make_plan(experiment, where, mfu=mfu, inputs=inputs)))
        except ConfigError as error:
            if len(slices) == 1:
                raise
            planned.append((where, str(error)))
    return planned


def _compiled(plans: Sequence["Plan"]) -> dict[str, list["Compiled"]]:
    """Compiles every phase for every slice; progress goes to standard error."""
    from bert_jax.plan.compile import compile_phase
    from bert_jax.plan.count import check_formula
    from bert_jax.tuning.config import ReadOnce

    # The same for every slice; of an encoder that has read its rows no FLOPs are counted.
    for phase in plans[0].phases if plans else ():
        experiment = plans[0].experiment
        if not isinstance(experiment.train.tuning.encoder, ReadOnce):
            check_formula(experiment.program, phase.inputs)
    found: dict[str, list[Compiled]] = {}
    for plan in plans:
        for index, phase in enumerate(plan.phases):
            what = f"{plan.where.name}, length {phase.inputs.phase.length}"
            _say(f"compiling for {what}; this takes minutes ...")
            begun = time.monotonic()
            each = compile_phase(plan.experiment, phase.inputs, index, plan.where)
            _say(f"compiled for {what} in {time.monotonic() - begun:.0f} s")
            found.setdefault(plan.where.name, []).append(each)
    return found


def _largest(plans: Sequence["Plan"]) -> dict[str, list[int]]:
    """The largest batch of every phase for every slice."""
    from bert_jax.plan.largest_batch import largest_batch

    found: dict[str, list[int]] = {}
    for plan in plans:
        for index, phase in enumerate(plan.phases):
            _say(f"{plan.where.name}, length {phase.inputs.phase.length}: the largest batch ...")
            rows = largest_batch(
                plan.experiment, phase.inputs, index, plan.where, plan.room, say=_say
            )
            found.setdefault(plan.where.name, []).append(rows)
    return found


def _fits(plan: "Plan", compiled: dict[str, list["Compiled"]]) -> bool:
    """By the compiler where it was asked, else by the formula."""
    found = compiled.get(plan.where.name)
    return plan.fits if found is None else all(each.fits(plan.room) for each in found)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _slices(names: Sequence[str]) -> list[Slice]:
    """The slices of these names, each once; "all16" and "all" are many."""
    found: dict[str, Slice] = {}
    for name in names:
        if name in ("all", "all16"):
            found |= {k: v for k, v in all_slices().items() if name == "all" or v.chips == 16}
        else:
            where = find_slice(name)
            found[where.name] = where
    return list(found.values())
