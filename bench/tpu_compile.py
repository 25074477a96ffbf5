"""The train step compiled for TPU slices, beside its plain version and Hugging Face's Flax BERT.

    python bench/tpu_compile.py --slices v4-32 v5e-16 --sizes base --hf-python ~/hf4/bin/python

Estimates of XLA's TPU compiler (libtpu): nothing here runs on a TPU. All rows are one update of 256
rows of 512 with AdamW, in bfloat16, and the same model FLOPs are held against the chips' peak:

    tpu      configs/pretrain/bert.py --with tpu=true layout=fsdp
    plain    the same recipe as it is: attention by plain operations, copies of the parameters
    hf-flax  Hugging Face's (`bench/hf_flax_step.py`), in an environment with transformers 4.x, jax
             and optax; left out without --hf-python
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from bert_jax.models.config import bert
from bert_jax.plan.compile import (
    ENVIRONMENT,
    Compiled,
    compile_phase,
    compiler_versions,
    estimate,
)
from bert_jax.plan.inputs import make_inputs
from bert_jax.plan.slices import find_slice
from bert_jax.plan.stand_in import planned_experiment
from bert_jax.train.flops import step_flops

RECIPE = "configs/pretrain/bert.py"
LONG = 1
"""The phase of the recipe with rows of 512."""
VARIANTS = {"tpu": ["tpu=true", "layout=fsdp"], "plain": []}
SIXTEEN_CHIPS = ("v2-32", "v3-32", "v4-32", "v5e-16", "v5p-32", "v6e-16", "tpu7x-32")
VOCABULARY = 30522


def main() -> int:
    """Compiles row after row and prints each as it comes, as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", nargs="+", default=SIXTEEN_CHIPS)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "base", "large"])
    parser.add_argument("--hf-python", help="Python of an environment with transformers 4.x")
    args = parser.parse_args()
    print(f"{compiler_versions()}, {time.strftime('%Y-%m-%d')}; milliseconds on one device\n")
    print("| size | slice | step | by schedule | by roofline | collectives | MFU | peak, GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for size in args.sizes:
        for name in args.slices:
            for variant in [*VARIANTS, *(["hf-flax"] if args.hf_python else [])]:
                if variant == "hf-flax":
                    found = hugging_face(size, name, args.hf_python)
                else:
                    found = ours(size, name, VARIANTS[variant])
                print(f"| {size} | {name} | {variant} | {cells(found)} |", flush=True)
    return 0


def ours(size: str, name: str, arguments: list[str]) -> Compiled:
    """Of `bert_jax`."""
    experiment, _ = planned_experiment(RECIPE, [f"size={size}", *arguments], [], VOCABULARY)
    return compile_phase(experiment, make_inputs(experiment)[LONG], LONG, find_slice(name))


def hugging_face(size: str, name: str, python: str) -> Compiled:
    """Of Hugging Face's Flax BERT, with our count of the model's FLOPs."""
    experiment, _ = planned_experiment(RECIPE, [f"size={size}"], [], VOCABULARY)
    phase, model = make_inputs(experiment)[LONG].phase, bert(size)  # type: ignore[arg-type]
    fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        request = {
            "slice": name,
            "rows": phase.batch_size,
            "length": phase.length,
            "config": {field: getattr(model, field) for field in fields},
            "answer": str(answer),
        }
        root = Path(__file__).parents[1]
        # Not all of sys.path, which has another transformers.
        paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        subprocess.run(
            [python, str(root / "bench/hf_flax_step.py")],
            input=json.dumps(request),
            text=True,
            check=True,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": paths,
            },
        )
        facts = json.loads(answer.read_text(encoding="utf-8"))
    return estimate(facts, find_slice(name), step_flops(experiment.program, phase, phase.length))


def cells(found: Compiled) -> str:
    """The columns of a row from the third on."""
    if found.out_of_memory is not None:
        return "does not fit | - | - | - | -"
    roofline = "-" if found.roofline is None else f"{found.roofline * 1e3:.1f}"
    mfu = " / ".join(f"{share:.2f}" for share in found.mfu.values())
    return (
        f"{found.schedule * 1e3:.1f} | {roofline} | {found.links * 1e3:.1f} | {mfu} | "
        f"{found.peak_bytes / 2**30:.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
