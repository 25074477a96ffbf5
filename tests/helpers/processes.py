"""Starts tests/helpers/training_driver.py in other processes, and waits for their exit codes."""

import os
import subprocess
import sys
from pathlib import Path

from bert_jax.apps.simulate.attempt import free_port

DRIVER = Path(__file__).parent / "training_driver.py"


def start(corpus: Path, run: Path, *flags: str, **environment: str) -> subprocess.Popen[str]:
    """Starts the driver; compiled programs are cached in the folder of the corpus."""
    environment = {
        "PYTHONPATH": str(DRIVER.parents[2]),
        "JAX_PLATFORMS": "cpu",
        "BERT_JAX_COMPILATION_CACHE": str(corpus.parent / "compiled"),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(corpus), str(run), *flags],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def drive(corpus: Path, run: Path, *flags: str, expect: int) -> None:
    """Runs the driver until it ends with the expected exit code."""
    process = start(corpus, run, *flags)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == expect, errors[-3000:]


def drive_together(corpus: Path, run: Path, count: int, *flags: str, expect: int) -> None:
    """Runs the same experiment in `count` processes of one device each, over gloo."""
    port = free_port()
    processes = [
        start(
            corpus,
            run,
            *flags,
            BERT_JAX_COORDINATOR=f"localhost:{port}",
            BERT_JAX_NUM_PROCESSES=str(count),
            BERT_JAX_PROCESS_ID=str(index),
            BERT_JAX_LOCAL_DEVICES="1",
        )
        for index in range(count)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == expect, errors[-3000:]
