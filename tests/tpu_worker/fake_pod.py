"""Hosts of a slice on this machine: a home each, real processes, a fake gcloud, systemd and dev."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.tpu_worker.metadata_server import MetadataServer
from tpu import strict_json
from tpu.protocol import Order, SliceShape

ROOT = Path(__file__).parents[2]
BINS = (ROOT / "tests/tpu_worker/bin", ROOT / "tests/tpu/bin", Path(sys.executable).parent)
BUNDLE = "0" * 64
CHIPS = 4


class FakePod:
    """A slice of `hosts` hosts with four chips each.

    Args:
      folder: holds the bucket (gcs/bucket) and the homes (hosts/<i>).
      metadata: serves all hosts.
    """

    def __init__(self, folder: Path, metadata: MetadataServer, hosts: int):
        self.folder, self.metadata, self.hosts = folder, metadata, hosts
        self.bucket = folder / "gcs" / "bucket"
        self.bucket.mkdir(parents=True)
        self.run_url = "gs://bucket/runs/try"
        self.extra: dict[str, str] = {}
        for host in range(hosts):
            self.make_host(host)

    @property
    def run(self) -> Path:
        """The run's folder in the bucket."""
        return self.bucket / "runs" / "try"

    def home(self, host: int) -> Path:
        """A host's home."""
        return self.folder / "hosts" / str(host)

    def make_host(self, host: int) -> None:
        """A host as new: nothing but the code is there."""
        home = self.home(host)
        shutil.rmtree(home, ignore_errors=True)
        code = home / "bert_jax" / BUNDLE
        shutil.copytree(ROOT / "tpu", code / "tpu", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("bert_jax", "configs"):
            (code / name).symlink_to(ROOT / name)
        (home / "dev" / "vfio").mkdir(parents=True)
        for chip in range(CHIPS):
            (home / "dev" / "vfio" / str(chip)).touch()
        self.metadata.set(host, "instance/network-interfaces/0/ip", self.address(host))
        self.metadata.set(host, "instance/preempted", "FALSE")

    def address(self, host: int) -> str:
        """Different for each, all of them this machine."""
        return f"127.0.0.{host + 1}"

    def order(self, incarnation: int, arguments: Sequence[str], **fields: Any) -> Order:
        """Leaves an order in the bucket."""
        chips = CHIPS * self.hosts
        plain: dict[str, Any] = {
            "run_id": "try",
            "incarnation": incarnation,
            "slice": SliceShape(name="v6e-16", hosts=self.hosts, devices=chips, chips=chips),
            "bundle": BUNDLE,
            "run_url": self.run_url,
            "mode": "pod",
            "arguments": tuple(arguments),
            "max_hours": 1.0,
            "hosts": tuple(map(self.address, range(self.hosts))),
            "coordinator_port": free_port(),
        }
        order = Order(**{**plain, **fields})
        file = self.life(incarnation) / "order.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(strict_json.to_text(order))
        return order

    def life(self, incarnation: int) -> Path:
        """Where the reports of a life are."""
        return self.run / "incarnations" / str(incarnation)

    def environment(self, host: int) -> dict[str, str]:
        """What a shell on the host has."""
        return {
            "HOME": str(self.home(host)),
            "PATH": os.pathsep.join([*map(str, BINS), "/usr/bin", "/bin"]),
            "FAKE_CLOUD": str(self.folder),
            "BERT_TPU_METADATA": self.metadata.url(host),
            "BERT_TPU_CLOCK": self.metadata.url(host),
            "BERT_TPU_DEV": str(self.home(host) / "dev"),
            "BERT_TPU_LOCKFILE": str(self.home(host) / "libtpu_lockfile"),
            "BERT_TPU_MOUNT": str(self.folder / "gcs"),
            "BERT_TPU_PYTHON": sys.executable,
            "BERT_TPU_HEARTBEAT": "1",
            "BERT_TPU_RENDEZVOUS": "20",
            "BERT_TPU_MIN_DISK_GB": "1",
            "BERT_TPU_MIN_MEMORY_GB": "0.5",
            "BERT_JAX_LOCAL_DEVICES": "2",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            **self.extra,
        }

    def agent(
        self, verb: str, incarnation: int, host: int, word: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a verb on a host, to its end."""
        script = self.home(host) / "bert_jax" / BUNDLE / "tpu/worker/agent.py"
        told = [verb, self.run_url, str(incarnation), str(host) if word is None else word]
        return subprocess.run(
            [sys.executable, str(script), *told],
            env={**self.environment(host), **more},
            cwd=self.home(host),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def launch(self, incarnation: int) -> None:
        """Preflight and start on all hosts."""
        for verb in ("preflight", "start"):
            for host in range(self.hosts):
                done = self.agent(verb, incarnation, host, "auto")
                assert done.returncode == 0, done.stderr + done.stdout

    def codes(self, incarnation: int) -> dict[int, int]:
        """Host -> exit code, of those that have ended."""
        return {
            host: found["code"]
            for host in range(self.hosts)
            if (found := self.read(incarnation, f"host-{host}.exit.json")) is not None
        }

    def read(self, incarnation: int, name: str) -> dict[str, Any] | None:
        """A JSON object of a life."""
        file = self.life(incarnation) / name
        return json.loads(file.read_text()) if file.exists() else None

    def log(self, incarnation: int, host: int) -> str:
        """What a host has said, by the bucket."""
        file = self.life(incarnation) / f"host-{host}.log"
        return file.read_text() if file.exists() else ""

    def await_end(self, incarnation: int, seconds: float = 240) -> dict[int, int]:
        """The exit codes of all hosts."""
        await_true(lambda: len(self.codes(incarnation)) == self.hosts, seconds, self.tell)
        return self.codes(incarnation)

    def kill(self, incarnation: int, host: int) -> None:
        """Everything on the host ends at once, as when the machine is taken away."""
        subprocess.run(
            ["systemctl", "kill", "--signal=SIGKILL", f"bert-try-{incarnation}"],
            env=self.environment(host),
            check=False,
            capture_output=True,
        )

    def starts(self, host: int) -> list[str]:
        """The units that were started on a host."""
        file = self.home(host) / ".fake-systemd" / "starts.txt"
        return file.read_text().split() if file.exists() else []

    def unit(self, incarnation: int, host: int) -> dict[str, str]:
        """What systemd says of a host's unit: ActiveState, MainPID."""
        words = ["systemctl", "show", f"bert-try-{incarnation}", "--property=ActiveState,MainPID"]
        done = subprocess.run(
            words, env=self.environment(host), check=True, capture_output=True, text=True
        )
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    def tell(self) -> str:
        """All logs, for a failure's message."""
        files = sorted(self.folder.glob("hosts/*/bert_jax/runs/*/*.log"))
        files += sorted(self.folder.glob("hosts/*/.fake-systemd/*.journal"))
        return "\n".join(f"== {file}\n{file.read_text()[-6000:]}" for file in files)

    def close(self) -> None:
        """Ends what still runs."""
        for host in range(self.hosts):
            for file in (self.home(host) / ".fake-systemd").glob("*.json"):
                subprocess.run(
                    ["systemctl", "kill", "--signal=SIGKILL", file.stem],
                    env=self.environment(host),
                    check=False,
                    capture_output=True,
                )


def await_true(
    condition: Callable[[], bool], seconds: float, tell: Callable[[], str] = lambda: ""
) -> None:
    """Waits until it holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s\n{tell()}"
        time.sleep(0.1)


def free_port() -> int:
    """A port with a free one after it."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            if port >= 1024:
                return port
