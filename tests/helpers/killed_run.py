"""Kills a run of `bert-jax` after its first checkpoint, and runs its command again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bert_jax.runs.attempt_log import read_attempts
from tests.helpers.same_parameters import assert_same_parameters


def compare_killed_run(arguments: Sequence[str], folder: Path, steps: int) -> Path:
    """Asserts that a run that is killed and resumed equals one that is not interrupted.

    Args:
      arguments: verb and flags of a training command, without --run; it must save a checkpoint
        before its last step, and one at it.
      steps: the number of the last step, whose parameters must be equal bit for bit.

    Returns:
      The folder of the run that was killed.
    """
    environment = {"BERT_JAX_COMPILATION_CACHE": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}

    def start(run: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bert_jax", *arguments, "--run", str(folder / run)]
        return subprocess.Popen(command, env={**os.environ, **environment})

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
    first, resumed = read_attempts(folder / "killed")
    assert first.start_step == 0 < resumed.start_step < steps
    assert_same_parameters(folder / "straight", folder / "killed", steps)
    return folder / "killed"
