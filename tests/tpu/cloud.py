"""What tests of the launcher stand on: a fake cloud, its clock, hosts without processes."""

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

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from fake_gcloud.main import main as gcloud  # noqa: E402

from tpu import names  # noqa: E402
from tpu.launcher import cli, timing  # noqa: E402
from tpu.launcher.bundle import Bundle  # noqa: E402
from tpu.launcher.gcloud import Answer  # noqa: E402
from tpu.launcher.secrecy import redact, refuse_secrets  # noqa: E402

BUNDLE = Bundle("0" * 64, b"code", ("configs/pretrain/bert.py", "tests/mine.py"))
LAUNCH = ("--slice", "v6e-16", "--bucket", "gs://bucket", "--run-id", "r1", "--yes")
WORK = ("--", "pretrain", "configs/pretrain/bert.py", "--with", "corpus=@data/wiki")
DATA = ("--data", "wiki=gs://bucket/data/wiki")
SLICE = names.slice_prefix("gs://bucket/runs/r1")
"""How the names of r1's slices begin."""


class FakeCloud:
    """The folder behind FAKE_CLOUD."""

    def __init__(self, folder: Path):
        self.folder = folder

    def script(self, **rows: Any) -> None:
        """What is to go wrong from now on."""
        (self.folder / "script.json").write_text(json.dumps(rows))

    @property
    def argv(self) -> list[list[str]]:
        """Every command so far, without the word gcloud."""
        file = self.folder / "argv.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def commands(self, *words: str) -> list[str]:
        """Those that hold all these words, each as one line."""
        lines = [" ".join(argv) for argv in self.argv]
        return [line for line in lines if all(word in line for word in words)]

    def object(self, name: str) -> Path:
        """An object of the run r1 in gs://bucket."""
        return self.folder / "gcs" / "bucket" / "runs" / "r1" / name

    def loop(self) -> dict[str, Any]:
        """What the restart loop remembers."""
        return json.loads(self.object("babysit.json").read_text())

    @property
    def state(self) -> dict[str, Any]:
        """What exists."""
        file = self.folder / "state.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def slices(self) -> list[str]:
        """Names of queued resources, nodes and groups that exist."""
        kinds = ("queue", "nodes", "groups")
        return [key for kind in kinds for key in self.state.get(kind, {})]


_ONE = threading.Lock()


class InProcess:
    """Runs the fake gcloud as a function, which is a hundred times faster than as a process."""

    dry = False

    def __init__(self, verbose: bool = False):
        pass

    def run(self, argv: Sequence[str], *, stdin: str | bytes = "", seconds: float = 0) -> Answer:
        """One command."""
        refuse_secrets(argv, os.environ, "a command")
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with _ONE:
            return self._alone(argv, data)

    def _alone(self, argv: Sequence[str], data: bytes) -> Answer:
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = gcloud(list(argv[1:]))
        finally:
            sys.stdin = before
        out.flush()
        said = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        return Answer(code, redact(said, os.environ), redact(err.getvalue(), os.environ))


class Clock(timing.Timing):
    """Time that passes by sleeping only; the fake cloud goes by the same clock."""

    now = 1e9
    on_sleep: Any = staticmethod(lambda: None)

    def __init__(self, scale: float = 1.0):
        pass

    def clock(self) -> float:
        return Clock.now

    def sleep(self, seconds: float) -> None:
        Clock.now += seconds
        Clock.on_sleep()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait()


class Trainers:
    """What happens on hosts, without processes: agents that report, and end when they are told.

    Attributes:
      codes: what the n-th life ends with, by host or for all; 0: done, -1: it goes on and on.
      steps: the newest checkpoint of the n-th life.
      silent: hosts that never report.
      each_turn: called when the launcher sleeps, with how often it has.
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

    def remote(self, root: Path, node: str, number: int, command: str) -> int:
        """Instead of running a command on a host."""
        if "agent.py" not in command:
            return 0
        verb, life = command.rpartition("agent.py ")[2].split()[0], int(node.rsplit("-", 1)[1])
        if verb == "preflight":
            self.write(life, number, "preflight", **_FIT, ok=not self.preflight_code)
            return self.preflight_code
        if verb == "start":
            self.starts.append((node, number))
            if f"{node}/{number}" not in self.units:
                self.units[f"{node}/{number}"] = 0
                self.beat(life, number)
        if verb == "stop" and f"{node}/{number}" in self.units:
            self.exits(life, number, 75)
        return 0

    def tick(self) -> None:
        """Time passes: who trains says so."""
        self.turns += 1
        for name in self.units:
            node, number = name.split("/")
            life = int(node.rsplit("-", 1)[1])
            file = self.cloud.object(f"incarnations/{life}/host-{number}.exit.json")
            if not file.exists() and f"{SLICE}-{life}" in str(self.cloud.slices()):
                self.beat(life, int(number))
        self.each_turn(self.turns)

    def beat(self, life: int, number: int) -> None:
        """One heartbeat; a life that has a code ends with it."""
        if number in self.silent:
            return
        step = self.steps.get(life)
        plain = {"pid": 1, "line": "step", "rss_bytes": 1, "disk_free_bytes": 1}
        self.write(life, number, "state", phase="training", step=step, **plain)
        code = self.codes.get(life, 0)
        code = code.get(number, 0) if isinstance(code, dict) else code
        if code == 0 and number == 0:
            self.cloud.object("DONE.json").write_text("{}")
        if code >= 0:
            self.exits(life, number, code)

    def exits(self, life: int, number: int, code: int) -> None:
        """The end of a host's unit."""
        self.write(life, number, "exit", code=code, meaning="m")

    def write(self, life: int, number: int, what: str, **values: Any) -> None:
        """A report."""
        file = self.cloud.object(f"incarnations/{life}/host-{number}.{what}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"host": number, "time": Clock.now, **values}))


_FIT = {"problems": [], "warnings": [], "address": "127.0.0.2", "versions": {}}


def pod(*words: str) -> int:
    """tpu/pod in this process."""
    return cli.main(list(words))


def run_pod(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """tpu/pod as a user runs it."""
    return subprocess.run(
        [str(ROOT / "tpu/pod"), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
