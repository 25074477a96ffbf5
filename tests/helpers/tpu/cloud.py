"""Provides a fake cloud, its clock, and hosts without processes for tests of the launcher."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.tpu.fake_gcloud.main import main as gcloud
from tpu import cli
from tpu.code_archive import CodeArchive
from tpu.job import Job

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
CODE = CodeArchive(
    "0" * 64,
    b"code",
    ("configs/finetune/multi_task.py", "configs/pretrain/bert.py", "tests/mine.py"),
)
ONE = ("--bucket", "gs://bucket", "--run-id", "r1")
LAUNCH = ("--slice", "v6e-16", *ONE, "--yes")
WORK = ("--", "pretrain", "configs/pretrain/bert.py", "--arg", "corpus=@data/wiki")
DATA = ("--data", "wiki=gs://bucket/data/wiki")
SLICE = Job(bucket="gs://bucket", run_id="r1", slice="v6e-16", arguments=("glue",)).slice_name
"""The name of r1's slices."""


class FakeCloud:
    """Reads and scripts the folder of the fake cloud (FAKE_CLOUD)."""

    def __init__(self, folder: Path):
        self.folder = folder

    def script(self, **rows: Any) -> None:
        """Sets the failures to simulate from now on."""
        (self.folder / "script.json").write_text(json.dumps(rows))

    @property
    def argv(self) -> list[list[str]]:
        """Returns every command so far, without the word gcloud."""
        file = self.folder / "argv.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def commands(self, *words: str) -> list[str]:
        """Returns the commands that contain all these words, each as one line."""
        lines = [" ".join(argv) for argv in self.argv]
        return [line for line in lines if all(word in line for word in words)]

    def object(self, name: str) -> Path:
        """Returns the file of an object of the run r1 in gs://bucket."""
        return self.folder / "gcs" / "bucket" / "runs" / "r1" / name

    def history(self) -> dict[str, Any]:
        """Returns the saved history of the restart loop."""
        return json.loads(self.object("history.json").read_text())

    def slices(self) -> list[str]:
        """Returns the names of queued resources and nodes that exist."""
        file = self.folder / "state.json"
        state = json.loads(file.read_text()) if file.exists() else {}
        return [key for kind in ("queue", "nodes") for key in state.get(kind, {})]


def execute(argv: Sequence[str], stdin: str | bytes, timeout: float) -> tuple[int, str, str]:
    """Runs the fake gcloud as a function, which is a hundred times faster than as a process."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    output, message = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    original, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(message):
            code = gcloud(list(argv[1:]))
    finally:
        sys.stdin = original
    output.flush()
    return code, output.buffer.getvalue().decode(), message.getvalue()  # type: ignore[attr-defined]


class Clock:
    """Stands in for the module `time`: advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 1e9
        self.on_sleep: Callable[[], None] = lambda: None

    def time(self) -> float:
        """Returns the seconds since 1970."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advances the clock."""
        self.now += seconds
        self.on_sleep()


class Trainers:
    """Simulates the hosts without processes: they write exit codes and checkpoints to the bucket.

    Attributes:
      codes: exit code of attempt n, by host or for all hosts; 0: done, -1: it keeps running.
      steps: newest checkpoint of attempt n.
      silent: hosts that write no log.
      starts: (attempt, host) of every start.
      each_turn: called each time the launcher sleeps, with the number of times.
    """

    def __init__(self, cloud: FakeCloud, clock: Clock):
        self._cloud = cloud
        self.clock = clock
        self.codes: dict[int, int | dict[int, int]] = {}
        self.steps: dict[int, int] = {}
        self.silent: set[int] = set()
        self.starts: list[tuple[int, int]] = []
        self.each_turn: Callable[[int], None] = lambda turn: None
        self.turns = 0
        clock.on_sleep = self._tick

    def remote(self, root: Path, node: str, number: int, command: str) -> int:
        """Simulates a command on a host."""
        if "systemctl stop" in command:
            self.exit(int(command.rsplit("-", 1)[1]), number, 75)
            return 0
        found = re.search(r"BERT_TPU_ATTEMPT=(\d+) BERT_TPU_HOSTS=(\S+);", command)
        assert found and len(found[2].split(",")) == 4, command
        attempt = int(found[1])
        self.starts.append((attempt, number))
        if step := self.steps.get(attempt):
            self.checkpoint(step)
        if number not in self.silent:
            self._write(f"attempts/{attempt}/host-{number}.log")
        code = self.codes.get(attempt, 0)
        code = code.get(number, 0) if isinstance(code, dict) else code
        if code >= 0:
            self.exit(attempt, number, code)
        return 0

    def checkpoint(self, step: int) -> None:
        """Writes a checkpoint."""
        self._write(f"run/checkpoints/{step}/checksums.json")

    def exit(self, attempt: int, host: int, code: int) -> None:
        """Ends the trainer of a host."""
        self._write(f"attempts/{attempt}/host-{host}.exit-{code}")

    def _write(self, name: str) -> None:
        file = self._cloud.object(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def _tick(self) -> None:
        self.turns += 1
        self.each_turn(self.turns)


def tpuctl(*words: str) -> int:
    """Runs tpu/tpuctl in this process."""
    return cli.main(list(words))


def run_tpuctl(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs tpu/tpuctl as a subprocess, like a user."""
    return subprocess.run(
        [str(ROOT / "tpu/tpuctl"), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
