"""Runs `bert-jax tpu`: the launcher of TPU slices and the launch scripts, also from a wheel."""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import positional
from bert_jax.config.recipes import SOURCE_ROOT

HELP = "launch and manage runs on TPU slices: the commands of tpu/tpuctl, and the launch scripts"

_FOLDER = SOURCE_ROOT / "tpu"


def launch_scripts() -> dict[str, Path]:
    """Returns the file of every launch script by its name, such as "smoke_16"."""
    return {file.stem: file for file in sorted(_FOLDER.glob("*.sh"))}


_LISTED_SCRIPTS = "\n".join(f"  {name}" for name in launch_scripts())

EPILOG = f"""examples:
  bert-jax tpu launch --help
  bert-jax tpu prices --hours 12
  BUCKET=gs://my-bucket bert-jax tpu smoke_16 --dry-run

launch scripts, which pass their flags to `launch`:
{_LISTED_SCRIPTS}

They are in {_FOLDER}, each with the variables that it reads at the
top. The README.md in that folder explains everything from `gcloud auth login` to a trained model.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names a command of the launcher or a launch script, and its arguments."""

    command: str = positional("COMMAND", "launcher command or launch script")
    arguments: tuple[str, ...] = positional(
        "...", "arguments of the command", nargs=argparse.REMAINDER
    )


def run(args: Arguments) -> int:
    """Runs the launch script or the launcher's command; returns its exit code."""
    # The launcher's messages then advise commands that exist without a checkout.
    os.environ.setdefault("BERT_TPU_COMMAND_NAME", "bert-jax tpu")
    if args.command in (scripts := launch_scripts()):
        # The scripts call python3, which must be the interpreter that this package is installed in.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path}
        return subprocess.run(
            [str(scripts[args.command]), *args.arguments], env=environment
        ).returncode
    sys.path.insert(0, str(SOURCE_ROOT))  # in a wheel, the launcher is not on the path
    from tpu.cli import main

    return main([args.command, *args.arguments])
