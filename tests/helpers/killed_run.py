"""Kills a run of `bert-jax` after its first checkpoint, and runs its command again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.checkpoints.step_folder import restore_params
from bert_jax.params import paths


def compare_killed_run(arguments: Sequence[str], folder: Path, steps: int) -> Path:
    """Compares a run that was killed and resumed with one that was not interrupted.

    Args:
      arguments: verb and flags of a training command without --run, which saves before `steps`.
      steps: the last step, whose parameters must be equal bit for bit.

    Returns:
      The folder of the run that was killed.
    """
    cache = {"BERT_JAX_COMPILATION_CACHE": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}

    def start(run: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bert_jax", *arguments, "--run", str(folder / run)]
        return subprocess.Popen(command, env={**os.environ, **cache})

    def saved_steps(run: str) -> list[int]:
        folders = (folder / run / "checkpoints").glob("*")
        return [int(each.name) for each in folders if each.name.isdigit()]

    assert start("straight").wait() == 0
    process = start("killed")
    while not saved_steps("killed") and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert max(saved_steps("killed")) < steps
    assert start("killed").wait() == 0
    assert_same_parameters(folder / "straight", folder / "killed", steps)
    return folder / "killed"


def assert_same_parameters(one: Path, other: Path, step: int) -> None:
    """Checks that the checkpoints of two runs at a step have the same bits."""
    expected, found = (
        paths.flatten(restore_params(folder / "checkpoints", step)[0]) for folder in (one, other)
    )
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[path], found[path]) for path in expected)
