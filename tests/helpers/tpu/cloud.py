"""Provides a fake cloud, its clock, and hosts without processes for tests of the launcher."""

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
from tests.helpers.tpu.fake_gcloud.main import main as gcloud  # noqa: E402
from tpu import bucket_layout  # noqa: E402
from tpu.launcher import cli, clock  # noqa: E402
from tpu.launcher.cloud.gcloud import CommandResult  # noqa: E402
from tpu.launcher.cloud.redaction import redact, reject_secrets  # noqa: E402
from tpu.launcher.runs.bundle import Bundle  # noqa: E402

BUNDLE = Bundle(
    "0" * 64,
    b"code",
    ("configs/finetune/multi_task.py", "configs/pretrain/bert.py", "tests/mine.py"),
)
LAUNCH = ("--slice", "v6e-16", "--bucket", "gs://bucket", "--run-id", "r1", "--yes")
WORK = ("--", "pretrain", "configs/pretrain/bert.py", "--arg", "corpus=@data/wiki")
DATA = ("--data", "wiki=gs://bucket/data/wiki")
SLICE = bucket_layout.slice_name_prefix("gs://bucket/runs/r1")
"""The prefix of the names of r1's slices."""


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

    def loop(self) -> dict[str, Any]:
        """Returns the saved state of the restart loop."""
        return json.loads(self.object("restart_loop.json").read_text())

    @property
    def state(self) -> dict[str, Any]:
        """Returns the resources that exist."""
        file = self.folder / "state.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def slices(self) -> list[str]:
        """Returns the names of queued resources, nodes and groups that exist."""
        kinds = ("queue", "nodes", "groups")
        return [key for kind in kinds for key in self.state.get(kind, {})]


_ONE = threading.Lock()


class InProcess:
    """Runs the fake gcloud as a function, which is a hundred times faster than as a process."""

    dry = False

    def __init__(self, verbose: bool = False):
        pass

    def run(
        self, argv: Sequence[str], *, stdin: str | bytes = "", timeout: float = 0
    ) -> CommandResult:
        """Runs one command."""
        reject_secrets(argv, os.environ, "a command")
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with _ONE:
            return self._alone(argv, data)

    def _alone(self, argv: Sequence[str], data: bytes) -> CommandResult:
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = gcloud(list(argv[1:]))
        finally:
            sys.stdin = before
        out.flush()
        output = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        return CommandResult(code, redact(output, os.environ), redact(err.getvalue(), os.environ))


class Clock(clock.ScaledClock):
    """Advances only by sleeping; the fake cloud uses the same clock."""

    now = 1e9
    on_sleep: Any = staticmethod(lambda: None)

    def __init__(self, scale: float = 1.0):
        pass

    def time(self) -> float:
        return Clock.now

    def sleep(self, seconds: float) -> None:
        Clock.now += seconds
        Clock.on_sleep()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait()


class Trainers:
    """Simulates the hosts without processes: their agents report, and end when asked to.

    Attributes:
      codes: exit code of attempt n, by host or for all hosts; 0: done, -1: it keeps running.
      steps: newest checkpoint of attempt n.
      silent: hosts that never report.
      each_turn: called each time the launcher sleeps, with the number of times.
    """

    def __init__(self, cloud: FakeCloud):
        self.cloud = cloud
        self.codes: dict[int, int | dict[int, int]] = {}
        self.silent: set[int] = set()
        self.starts: list[tuple[str, int]] = []
        self.units: dict[str, int] = {}
        self.steps: dict[int, int] = {}
        self.preflight_code = 0
        self.each_turn: Callable[[int], None] = lambda turn: None
        self.turns = 0
        self.attempts_folder = "attempts"

    def remote(self, root: Path, node: str, number: int, command: str) -> int:
        """Simulates running a command on a host."""
        if "agent.py" not in command:
            return 0
        verb, attempt = command.rpartition("agent.py ")[2].split()[0], int(node.rsplit("-", 1)[1])
        if verb == "preflight":
            self.write(attempt, number, "preflight", **_FIT, ok=not self.preflight_code)
            return self.preflight_code
        if verb == "start":
            self.starts.append((node, number))
            if f"{node}/{number}" not in self.units:
                self.units[f"{node}/{number}"] = 0
                self.beat(attempt, number)
        if verb == "stop" and f"{node}/{number}" in self.units:
            self.exits(attempt, number, 75)
        return 0

    def tick(self) -> None:
        """Lets time pass: trainers that run send a heartbeat."""
        self.turns += 1
        for name in self.units:
            node, number = name.split("/")
            attempt = int(node.rsplit("-", 1)[1])
            file = self.cloud.object(f"{self.attempts_folder}/{attempt}/host-{number}.exit.json")
            if not file.exists() and f"{SLICE}-{attempt}" in str(self.cloud.slices()):
                self.beat(attempt, int(number))
        self.each_turn(self.turns)

    def beat(self, attempt: int, number: int) -> None:
        """Sends one heartbeat; an attempt with an exit code exits with it."""
        if number in self.silent:
            return
        step = self.steps.get(attempt)
        plain = {"pid": 1, "last_log_line": "step", "rss_bytes": 1, "disk_free_bytes": 1}
        self.write(attempt, number, "heartbeat", phase="training", step=step, **plain)
        code = self.codes.get(attempt, 0)
        code = code.get(number, 0) if isinstance(code, dict) else code
        if code == 0 and number == 0:
            self.cloud.object("DONE.json").write_text("{}")
        if code >= 0:
            self.exits(attempt, number, code)

    def exits(self, attempt: int, number: int, code: int) -> None:
        """Ends a host's unit."""
        self.write(attempt, number, "exit", code=code, meaning="m")

    def write(self, attempt: int, number: int, what: str, **values: Any) -> None:
        """Writes a report."""
        file = self.cloud.object(f"{self.attempts_folder}/{attempt}/host-{number}.{what}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"host": number, "time": Clock.now, **values}))


_FIT = {"problems": [], "warnings": [], "address": "127.0.0.2", "versions": {}}


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
