"""Compiles the train step for TPU slices, next to a plain variant and Hugging Face's Flax BERT.

    python -m bench.tpu_compile --slices v4-32 v5e-16 --sizes base --hf-python ~/hf4/bin/python
    python -m bench.tpu_compile --sizes base --phase 0 --set train.phases.0.batch_size=512
    python -m bench.tpu_compile --slices v5e-16 --config configs/pretrain/modernbert.py \\
        --vocab-size 50368 --phase 0 --arg tpu=true parallelism=fsdp batch_size=64 seq_length=2048

The numbers are estimates of XLA's TPU compiler (libtpu); nothing runs on a TPU. Every row is one
AdamW step in bfloat16, by default with batch size 256 and length 512. The MFU of all rows uses the
same model FLOPs:

    tpu      configs/pretrain/bert.py --arg tpu=true parallelism=fsdp (or other --arg arguments)
    plain    the recipe without arguments: unfused attention, replicated parameters
    hf-flax  Hugging Face's model (`bench/hf_flax_step.py`), in an environment with transformers
             4.x, jax, and optax; skipped without --hf-python

With --config it is one row for each slice: the step of that recipe.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from bench.tpu_estimate import CompiledEstimate, estimate_compiled, estimate_phase
from bert_jax.apps.plan.compile import compiler_versions, run_worker
from bert_jax.apps.plan.inputs import make_inputs, planned_experiment
from bert_jax.config.experiment import Experiment
from bert_jax.errors import UserError
from bert_jax.models.bert.config import BertConfig
from bert_jax.parallel.tpu_slices import all_slices, find_slice
from bert_jax.train.flops import step_flops

RECIPE = "configs/pretrain/bert.py"
VOCAB_SIZE = 30522
VARIANTS = ("tpu", "plain", "hf-flax")


def main() -> int:
    """Compiles every variant and prints a row of a Markdown table for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    slices_of_16_chips = [name for name, tpu_slice in all_slices().items() if tpu_slice.chips == 16]
    parser.add_argument("--slices", nargs="+", default=slices_of_16_chips)
    parser.add_argument("--config", help="another recipe, instead of sizes and variants of BERT")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "base", "large"])
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument(
        "--arg",
        nargs="*",
        default=["tpu=true", "parallelism=fsdp"],
        dest="arguments",
        metavar="NAME=VALUE",
        help="recipe arguments of the variant tpu (default: tpu=true parallelism=fsdp)",
    )
    parser.add_argument("--set", nargs="*", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument(
        "--phase", type=int, default=1, help="index of the phase from 0 (default: 1, length 512)"
    )
    parser.add_argument("--hf-python", help="interpreter of an environment with transformers 4.x")
    args = parser.parse_args()
    if args.config:
        args.sizes, args.variants = [Path(args.config).stem], ["tpu"]
    print(f"{compiler_versions()}, {time.strftime('%Y-%m-%d')}; milliseconds on one device\n")
    print(
        "| size | slice | step | by schedule | of which kernels | by roofline | collectives | MFU "
        "| peak, GiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    try:
        for size in args.sizes:
            for name in args.slices:
                for variant in args.variants:
                    if variant != "hf-flax" or args.hf_python:
                        result = compile_variant(args, variant, size, name)
                        print(
                            f"| {size} | {name} | {variant} | {table_cells(result)} |", flush=True
                        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def compile_variant(
    args: argparse.Namespace, variant: str, size: str, name: str
) -> CompiledEstimate:
    """Compiles one variant."""
    recipe_arguments = args.arguments if variant == "tpu" else []
    if args.config is None:
        recipe_arguments = [f"size={size}", *recipe_arguments]
    experiment, _ = planned_experiment(
        args.config or RECIPE, recipe_arguments, args.overrides, args.vocab_size
    )
    if variant == "hf-flax":
        return compile_hf_flax(experiment, args.phase, size, name, args.hf_python)
    inputs = make_inputs(experiment)[args.phase]
    return estimate_phase(experiment, inputs, args.phase, find_slice(name))


def compile_hf_flax(
    experiment: Experiment, phase_index: int, size: str, name: str, python: str
) -> CompiledEstimate:
    """Compiles Hugging Face's Flax BERT; the FLOPs are those that bert_jax counts for the model."""
    phase, model = experiment.train.phases[phase_index], BertConfig.from_size(size)  # type: ignore[arg-type]
    fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    request = {
        "slice": name,
        "batch_size": phase.batch_size,
        "seq_length": phase.seq_length,
        "config": {field: getattr(model, field) for field in fields},
    }
    root = Path(__file__).parents[1]
    # Not all of sys.path, which has another transformers.
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    report = run_worker(
        [python, str(root / "bench/hf_flax_step.py")], request, {"PYTHONPATH": paths}
    )
    flops = step_flops(experiment.objective, phase)
    return estimate_compiled(json.loads(report), find_slice(name), flops)


def table_cells(result: CompiledEstimate) -> str:
    """Formats the cells of a row from the fourth column on."""
    if result.out_of_memory is not None:
        return "does not fit | - | - | - | - | -"
    roofline = "-" if result.roofline_seconds is None else f"{result.roofline_seconds * 1e3:.1f}"
    mfu = " / ".join(f"{fraction:.2f}" for fraction in result.mfu.values())
    return (
        f"{result.schedule_seconds * 1e3:.1f} | {result.kernel_seconds * 1e3:.1f} | {roofline} | "
        f"{result.collective_seconds * 1e3:.1f} | {mfu} | {result.peak_bytes / 2**30:.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
