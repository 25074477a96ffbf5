"""Runs `bert-jax plan`: estimates memory, time and cost of a run on TPU slices."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import RecipeArguments
from bert_jax.config.flags import REQUIRED, check_needs, flag, switch
from bert_jax.errors import ConfigError
from bert_jax.parallel.tpu_slices import Slice, all_slices, find_slice

if TYPE_CHECKING:
    from bert_jax.apps.plan.compile import CompiledEstimate
    from bert_jax.apps.plan.estimate import RunPlan
    from bert_jax.apps.plan.inputs import Inputs
    from bert_jax.config.experiment import Experiment

logger = logging.getLogger(__name__)

HELP = "estimate memory, hours and cost of a run on a TPU slice, without data or a TPU"

EPILOG = """examples:
  bert-jax plan bert --arg size=base --slice v5e-16
  bert-jax plan bert --arg size=large batch_size=1024 --slice all16
  bert-jax plan multi_task --slice v6e-4 \\
      --arg model=exported glue_dir=glue_data conll=conll2003

A corpus that the recipe needs (corpus=, heldout=) may be omitted or remote (@data/wiki, gs://...);
the plan only needs its vocabulary size. Labeled data is read, to know the lengths of its sequences.
The hours are given as two bounds: the lower counts compute only, at the assumed fraction of the
peak FLOP/s; the upper adds communication and optimizer time without any overlap.

Exit codes: 0 the run fits on at least one of the slices; 1 it fits on none; 2 wrong usage, or the
slice cannot divide the batch or mesh.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(RecipeArguments):
    """Names a recipe with its changes, and the slices."""

    slice: tuple[str, ...] = flag(
        "NAME",
        "TPU slices to compare, such as v5e-16; all16: all of 16 chips; all: every slice",
        REQUIRED,
    )
    mfu: float = flag("FRACTION", "assumed fraction of the peak FLOP/s", 0.4)
    vocab_size: int | None = flag(
        "N", "vocabulary size of an omitted corpus (default: 30522, as in BERT)"
    )
    compile: bool = switch(
        "compilation of each phase's step for each slice with libtpu (pip install "
        "'bert_jax[tpu]'); takes minutes each, and is cached in ~/.cache/bert_jax/plan"
    )
    largest_batch: bool = switch(
        "with --compile: search for the largest batch of each phase that fits, by bisection, "
        "with one compilation for each trial"
    )
    json: bool = switch("output as JSON")

    def __post_init__(self) -> None:
        check_needs(self, "compile", "largest_batch")


def run(args: Arguments) -> int:
    """Prints the plan; returns 0 if the run fits on one of the slices, else 1."""
    slices = _resolve_slices(args.slice)

    import jax

    jax.config.update("jax_platforms", "cpu")  # planning must not occupy a TPU of this machine
    from bert_jax.apps.plan import table
    from bert_jax.apps.plan.compile import compiler_versions
    from bert_jax.apps.plan.estimate import RunPlan, suggest
    from bert_jax.apps.plan.inputs import planned_experiment
    from bert_jax.parallel.tpu_slices import prices_as_of

    vocab_size = 30522 if args.vocab_size is None else args.vocab_size
    experiment, missing_corpora = planned_experiment(args.config, args.arg, args.set, vocab_size)
    if args.vocab_size is not None and not missing_corpora:
        raise ConfigError(
            f"--vocab-size {vocab_size} is for an omitted corpus, but {args.config} needs none or "
            "has it; remove --vocab-size"
        )
    planned = _plan_slices(experiment, slices, args.mfu)
    plans = [plan for _, plan in planned if isinstance(plan, RunPlan)]
    suggestions = {
        plan.tpu_slice.name: suggest(plan) for plan in plans if not plan.fits and len(slices) == 1
    }
    compiled = _for_each_phase(plans, "compiling", _compile) if args.compile else {}
    largest_batches = (
        _for_each_phase(plans, "searching for the largest batch", _largest_batch)
        if args.largest_batch
        else {}
    )
    if args.json:
        slice_entries = [
            table.plan_to_json(
                plan,
                suggestions.get(slice_.name, ()),
                compiled.get(slice_.name, ()),
                largest_batches.get(slice_.name, ()),
            )
            if isinstance(plan, RunPlan)
            else {"slice": slice_.name, "error": plan}
            for slice_, plan in planned
        ]
        content = {"name": experiment.name, "prices_as_of": prices_as_of(), "slices": slice_entries}
        print(json.dumps({**content, "placeholder_corpora": list(missing_corpora)}, indent=2))
    else:
        if missing_corpora:
            names = " and ".join(missing_corpora)
            print(f"{names} not found: assuming a vocabulary size of {vocab_size:,}\n")
        if len(slices) == 1:
            print(table.describe_plan(plans[0], suggestions.get(slices[0].name, ())))
        else:
            print(table.compare_plans(planned))
        print(table.assumptions(args.mfu))
        for plan in plans if args.compile else ():
            name = plan.tpu_slice.name
            report = table.describe_compiled(
                plan, compiled[name], compiler_versions(), largest_batches.get(name, ())
            )
            print(f"\n{report}", end="")
    return 0 if any(_fits(plan, compiled) for plan in plans) else 1


def _plan_slices(
    experiment: "Experiment", slices: Sequence[Slice], mfu: float
) -> list[tuple[Slice, "RunPlan | str"]]:
    """Plans each slice; for one that is impossible, returns the reason; a single one raises."""
    from bert_jax.apps.plan.estimate import make_plan
    from bert_jax.apps.plan.inputs import make_inputs

    inputs = make_inputs(experiment)
    planned: list[tuple[Slice, RunPlan | str]] = []
    for slice_ in slices:
        try:
            planned.append((slice_, make_plan(experiment, slice_, mfu=mfu, inputs=inputs)))
        except ConfigError as error:
            if len(slices) == 1:
                raise
            planned.append((slice_, str(error)))
    return planned


def _for_each_phase(
    plans: Sequence["RunPlan"], action: str, function: Callable[..., Any]
) -> dict[str, list[Any]]:
    """Calls a function for every phase of every plan; progress goes to standard error."""
    by_slice: dict[str, list[Any]] = {}
    for plan in plans:
        for index, phase in enumerate(plan.phases):
            label = f"{plan.tpu_slice.name}, length {phase.inputs.phase.seq_length}"
            logger.info("%s: %s; this takes minutes ...", label, action)
            start = time.monotonic()
            result = function(plan, phase.inputs, index)
            logger.info("%s: done in %.0f s", label, time.monotonic() - start)
            by_slice.setdefault(plan.tpu_slice.name, []).append(result)
    return by_slice


def _compile(plan: "RunPlan", inputs: "Inputs", index: int) -> "CompiledEstimate":
    from bert_jax.apps.plan.compile import compile_phase

    return compile_phase(plan.experiment, inputs, index, plan.tpu_slice)


def _largest_batch(plan: "RunPlan", inputs: "Inputs", index: int) -> int:
    from bert_jax.apps.plan.compile import largest_batch

    return largest_batch(plan.experiment, inputs, index, plan.tpu_slice, plan.usable_bytes)


def _fits(plan: "RunPlan", compiled: dict[str, list["CompiledEstimate"]]) -> bool:
    """Returns whether the plan fits: by the compiled programs if available."""
    by_slice = compiled.get(plan.tpu_slice.name)
    return (
        plan.fits
        if by_slice is None
        else all(compiled_phase.fits(plan.usable_bytes) for compiled_phase in by_slice)
    )


def _resolve_slices(names: Sequence[str]) -> list[Slice]:
    """Returns the slices of these names, without duplicates; expands "all16" and "all"."""
    by_slice: dict[str, Slice] = {}
    for name in names:
        if name in ("all", "all16"):
            by_slice |= {k: v for k, v in all_slices().items() if name == "all" or v.chips == 16}
        else:
            slice_ = find_slice(name)
            by_slice[slice_.name] = slice_
    return list(by_slice.values())
