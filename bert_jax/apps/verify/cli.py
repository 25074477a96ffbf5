"""Defines `bert-jax verify`: whether kernels, training and resuming are right on this hardware."""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import check_needs, flag, switch

HELP = "check kernels, training, resuming, sharding and speed on the devices of this machine"

EPILOG = """examples:
  bert-jax verify
  bert-jax verify --dry-run --slice v5e-16

Compares the attention kernel and all hand-written gradients with NumPy, tests the statistics of
dropout, trains BERT-tiny on generated text to known losses, resumes it from a checkpoint, compares
sharded steps with steps on one device, measures step time, MFU and memory next to the estimates of
`bert-jax plan`, and whether the loader keeps up. Nothing is downloaded.

Prints a line for each check. The output folder gets verify.json and verify.html, a page that opens
offline: attach both to an issue. Several processes are started as for `bert-jax pretrain`, with a
folder that all of them can write, such as --checkpoints gs://BUCKET/verify.

Exit codes: 0 no check failed, 1 a check failed, 2 wrong usage.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the output folder, or what a dry run lists."""

    output: str = flag("FOLDER", "folder of verify.json and verify.html", "verify")
    checkpoints: str | None = flag(
        "FOLDER", "folder of the checkpoints, for several processes; may be a gs:// path"
    )
    dry_run: bool = switch("list of the checks, without running them")
    slice: str | None = flag(
        "NAME", "with --dry-run: a TPU slice, such as v5e-16, in place of this machine"
    )

    def __post_init__(self) -> None:
        check_needs(self, "dry_run", "slice")


def run(args: Arguments) -> int:
    """Runs or lists the checks; returns 0 if none failed, else 1."""
    import jax

    from bert_jax.apps.verify.checks import Result, Target
    from bert_jax.apps.verify.verify import format_result, list_checks, summarize, verify
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.parallel.processes import config_from_environment, initialize
    from bert_jax.parallel.tpu_slices import find_slice

    if args.slice is not None:
        tpu_slice = find_slice(args.slice)
        jax.config.update("jax_platforms", "cpu")  # listing must not occupy a TPU of this machine
        print("\n".join(list_checks(Target.of_slice(tpu_slice))))
        return 0
    initialize(config_from_environment())
    if args.dry_run:
        print("\n".join(list_checks(Target.of_this_machine())))
        return 0
    check_writable(args.output, is_folder=True)

    def print_result(result: Result) -> None:
        if jax.process_index() == 0:
            print(format_result(result), flush=True)

    package_logger = logging.getLogger("bert_jax")
    level = package_logger.level
    package_logger.setLevel(logging.ERROR)  # a training would log what a user of it should know
    try:
        report = verify(Path(args.output), checkpoint_dir=args.checkpoints, on_result=print_result)
    finally:
        package_logger.setLevel(level)
    if jax.process_index() == 0:
        print(f"{summarize(report)}\nreport: {Path(args.output) / 'verify.html'}")
    return 0 if report["status"] == "pass" else 1
