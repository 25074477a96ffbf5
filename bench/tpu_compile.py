"""The train step compiled for TPU slices, beside its plain version and Hugging Face's Flax BERT.

    python bench/tpu_compile.py --slices v4-32 v5e-16 --sizes base --hf-python ~/hf4/bin/python
    python bench/tpu_compile.py --sizes base --phase 0 --set train.phases.0.batch_size=512

Estimates of XLA's TPU compiler (libtpu): nothing here runs on a TPU. All rows are one update with
AdamW, in bfloat16, of 256 rows of 512 if nothing else is said, and the same model FLOPs are held
against the chips' peak:

    tpu      configs/pretrain/bert.py --with tpu=true layout=fsdp (--with ... instead)
    plain    the same recipe as it is: attention by plain operations, copies of the parameters
    hf-flax  Hugging Face's (`bench/hf_flax_step.py`), in an environment with transformers 4.x, jax
             and optax; left out without --hf-python
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.experiment import Experiment
from bert_jax.models.config import bert
from bert_jax.plan.compile import answer_of, compile_phase, compiler_versions
from bert_jax.plan.compiled import Compiled, estimate
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.slices import all_slices, find_slice
from bert_jax.plan.stand_in import planned_experiment
from bert_jax.train.flops import step_flops

RECIPE = "configs/pretrain/bert.py"
VOCABULARY = 30522
VARIANTS = ("tpu", "plain", "hf-flax")


def main() -> int:
    """Compiles row after row and prints each as it comes, as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sixteen = [name for name, where in all_slices().items() if where.chips == 16]
    parser.add_argument("--slices", nargs="+", default=sixteen)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "base", "large"])
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument(
        "--with",
        nargs="*",
        default=["tpu=true", "layout=fsdp"],
        dest="arguments",
        metavar="NAME=VALUE",
        help="of the variant tpu (default: tpu=true layout=fsdp)",
    )
    parser.add_argument("--set", nargs="*", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--phase", type=int, default=1, help="from 0 (default: 1, rows of 512)")
    parser.add_argument("--hf-python", help="Python of an environment with transformers 4.x")
    args = parser.parse_args()
    print(f"{compiler_versions()}, {time.strftime('%Y-%m-%d')}; milliseconds on one device\n")
    print(
        "| size | slice | step | by schedule | of that kernels | by roofline | collectives | MFU "
        "| peak, GiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    try:
        for size in args.sizes:
            for name in args.slices:
                for variant in args.variants:
                    if variant != "hf-flax" or args.hf_python:
                        found = compiled(args, variant, size, name)
                        print(f"| {size} | {name} | {variant} | {cells(found)} |", flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def compiled(args: argparse.Namespace, variant: str, size: str, name: str) -> Compiled:
    """One row."""
    mine = args.arguments if variant == "tpu" else []
    experiment, _ = planned_experiment(RECIPE, [f"size={size}", *mine], args.overrides, VOCABULARY)
    if variant == "hf-flax":
        return hugging_face(experiment, args.phase, size, name, args.hf_python)
    inputs = make_inputs(experiment)[args.phase]
    return compile_phase(experiment, inputs, args.phase, find_slice(name))


def hugging_face(experiment: Experiment, index: int, size: str, name: str, python: str) -> Compiled:
    """Of Hugging Face's Flax BERT, with our count of the model's FLOPs."""
    phase, model = experiment.train.phases[index], bert(size)  # type: ignore[arg-type]
    fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    request = {
        "slice": name,
        "rows": phase.batch_size,
        "length": phase.length,
        "config": {field: getattr(model, field) for field in fields},
    }
    root = Path(__file__).parents[1]
    # Not all of sys.path, which has another transformers.
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    answer = answer_of(
        [python, str(root / "bench/hf_flax_step.py")], request, {"PYTHONPATH": paths}
    )
    flops = step_flops(experiment.program, phase, phase.length)
    return estimate(json.loads(answer), find_slice(name), flops)


def cells(found: Compiled) -> str:
    """The columns of a row from the fourth on."""
    if found.out_of_memory is not None:
        return "does not fit | - | - | - | - | -"
    roofline = "-" if found.roofline is None else f"{found.roofline * 1e3:.1f}"
    mfu = " / ".join(f"{share:.2f}" for share in found.mfu.values())
    return (
        f"{found.schedule * 1e3:.1f} | {found.kernels * 1e3:.1f} | {roofline} | "
        f"{found.links * 1e3:.1f} | {mfu} | {found.peak_bytes / 2**30:.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
