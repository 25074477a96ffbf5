"""Covers bert_jax/io/parent_process.py: no subprocess survives a parent that is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import grain
import pytest

from bert_jax.apps.simulate.attempt import host_environment
from bert_jax.config.data import PretrainingData
from bert_jax.data.pretraining import loader
from bert_jax.io.parent_process import is_running

CHILD = "import time; from bert_jax.io.parent_process import exit_with_parent; exit_with_parent(); "
# A parent started under nohup inherits that SIGHUP is ignored, and would survive it.
PARENT = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
SUBPROCESS = f"""
{PARENT}
import os, subprocess, sys, time
from bert_jax.io.parent_process import environment_of_child
code = "{CHILD} print(1, flush=True); time.sleep(600)"
child = subprocess.Popen(
    [sys.executable, "-c", code],
    env=os.environ | environment_of_child(),
    stdout=subprocess.PIPE,
    start_new_session=True,
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
WORKER = f"""
import multiprocessing, time

def work(queue):
    {CHILD}
    queue.put(1)
    time.sleep(600)

if __name__ == "__main__":
    {PARENT}
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    queue.get()
    print(process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("code", [SUBPROCESS, WORKER], ids=["subprocess", "worker"])
def test_child_ends_with_its_killed_parent(code: str, sent: signal.Signals, tmp_path: Path):
    (tmp_path / "parent.py").write_text(code)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(sent)
        parent.wait(timeout=10)
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    survived = is_running(child)
    if survived:
        os.kill(child, signal.SIGKILL)
    assert not survived


def test_simulated_hosts_and_loader_workers_end_with_their_parent(monkeypatch):
    assert host_environment(0, 2, 1, 1234)["BERT_JAX_EXIT_WITH_PARENT"] == str(os.getpid())
    calls: list[bool] = []
    monkeypatch.setattr(loader, "exit_with_parent", lambda: calls.append(True))

    def prefetch(dataset: Any, options: Any, *, worker_init_fn: Callable[[int, int], None]) -> Any:
        worker_init_fn(0, options.num_workers)  # in each worker process, before its first batch
        return []

    monkeypatch.setattr(grain.IterDataset, "mp_prefetch", prefetch)
    config = PretrainingData(corpus="", num_workers=1)
    list(loader._prefetch(loader._IndexedBatches(cast(Any, None), 5), config))
    assert calls == [True]
