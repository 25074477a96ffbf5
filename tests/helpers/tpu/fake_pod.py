"""Provides hosts of a slice on this machine: real processes with fake gcloud, systemd and /dev."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert_jax.apps.simulate.attempt import free_port
from tests.helpers.tpu.metadata_server import MetadataServer
from tpu import strict_json
from tpu.protocol import JobSpec, SliceShape

ROOT = Path(__file__).parents[3]
BINS = (
    ROOT / "tests/helpers/tpu/worker_bin",
    ROOT / "tests/helpers/tpu/bin",
    Path(sys.executable).parent,
)
BUNDLE = "0" * 64
CHIPS = 4


class FakePod:
    """Runs a slice of `hosts` hosts with four chips each on this machine.

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
        """Returns the run's folder in the bucket."""
        return self.bucket / "runs" / "try"

    def home(self, host: int) -> Path:
        """Returns a host's home folder."""
        return self.folder / "hosts" / str(host)

    def make_host(self, host: int) -> None:
        """Creates a new host that has only the code."""
        home = self.home(host)
        shutil.rmtree(home, ignore_errors=True)
        code = home / "bert_jax" / BUNDLE
        shutil.copytree(ROOT / "tpu", code / "tpu")  # with __pycache__, which saves seconds
        for name in ("bert_jax", "configs"):
            (code / name).symlink_to(ROOT / name)
        (home / "dev" / "vfio").mkdir(parents=True)
        for chip in range(CHIPS):
            (home / "dev" / "vfio" / str(chip)).touch()
        self.metadata.set(host, "instance/network-interfaces/0/ip", self.address(host))
        self.metadata.set(host, "instance/preempted", "FALSE")

    def address(self, host: int) -> str:
        """Returns a host's address; each one is a different address of this machine."""
        return f"127.0.0.{host + 1}"

    def write_job_spec(self, attempt: int, arguments: Sequence[str], **fields: Any) -> JobSpec:
        """Writes a job spec to the bucket."""
        chips = CHIPS * self.hosts
        plain: dict[str, Any] = {
            "run_id": "try",
            "attempt": attempt,
            "slice": SliceShape(name="v6e-16", hosts=self.hosts, devices=chips, chips=chips),
            "bundle": BUNDLE,
            "run_url": self.run_url,
            "mode": "pod",
            "arguments": tuple(arguments),
            "max_hours": 1.0,
            "host_addresses": tuple(map(self.address, range(self.hosts))),
            "coordinator_port": free_port(),
        }
        job_spec = JobSpec(**{**plain, **fields})
        file = self.attempt_folder(attempt) / "job.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(strict_json.to_text(job_spec))
        return job_spec

    def attempt_folder(self, attempt: int) -> Path:
        """Returns the folder of an attempt's reports."""
        return self.run / "attempts" / str(attempt)

    def environment(self, host: int) -> dict[str, str]:
        """Returns the environment of a shell on the host."""
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
            "XLA_FLAGS": os.environ["XLA_FLAGS"],
            **self.extra,
        }

    def agent(
        self, verb: str, attempt: int, host: int, word: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a verb of the agent on a host and waits for it."""
        script = self.home(host) / "bert_jax" / BUNDLE / "tpu/worker/agent.py"
        arguments = [verb, self.run_url, str(attempt), str(host) if word is None else word]
        return subprocess.run(
            # -S: it needs no installed packages, and starts twice as fast without them.
            [sys.executable, "-S", str(script), *arguments],
            env={**self.environment(host), **more},
            cwd=self.home(host),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def launch(self, attempt: int) -> None:
        """Runs preflight and start on all hosts."""
        for verb in ("preflight", "start"):
            for host in range(self.hosts):
                done = self.agent(verb, attempt, host, "auto")
                assert done.returncode == 0, done.stderr + done.stdout

    def codes(self, attempt: int) -> dict[int, int]:
        """Returns {host: exit code} of the hosts that have exited."""
        return {
            host: found["code"]
            for host in range(self.hosts)
            if (found := self.read(attempt, f"host-{host}.exit.json")) is not None
        }

    def read(self, attempt: int, name: str) -> dict[str, Any] | None:
        """Reads a JSON object of an attempt."""
        file = self.attempt_folder(attempt) / name
        return json.loads(file.read_text()) if file.exists() else None

    def log(self, attempt: int, host: int) -> str:
        """Reads a host's log from the bucket."""
        file = self.attempt_folder(attempt) / f"host-{host}.log"
        return file.read_text() if file.exists() else ""

    def await_end(self, attempt: int, seconds: float = 240) -> dict[int, int]:
        """Waits until all hosts have exited and returns their exit codes."""
        await_true(lambda: len(self.codes(attempt)) == self.hosts, seconds, self.all_logs)
        return self.codes(attempt)

    def kill(self, attempt: int, host: int) -> None:
        """Kills everything on a host at once, like a preemption without notice."""
        subprocess.run(
            ["systemctl", "kill", "--signal=SIGKILL", f"bert-try-{attempt}"],
            env=self.environment(host),
            check=False,
            capture_output=True,
        )

    def starts(self, host: int) -> list[str]:
        """Returns the units that were started on a host."""
        file = self.home(host) / ".fake-systemd" / "starts.txt"
        return file.read_text().split() if file.exists() else []

    def unit(self, attempt: int, host: int) -> dict[str, str]:
        """Returns the systemd state of a host's unit: ActiveState, MainPID."""
        words = ["systemctl", "show", f"bert-try-{attempt}", "--property=ActiveState,MainPID"]
        done = subprocess.run(
            words, env=self.environment(host), check=True, capture_output=True, text=True
        )
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    def all_logs(self) -> str:
        """Returns all logs, for the message of a failed test."""
        files = sorted(self.folder.glob("hosts/*/bert_jax/runs/*/*.log"))
        files += sorted(self.folder.glob("hosts/*/.fake-systemd/*.journal"))
        return "\n".join(f"== {file}\n{file.read_text()[-6000:]}" for file in files)

    def close(self) -> None:
        """Ends processes that still run."""
        for host in range(self.hosts):
            for file in (self.home(host) / ".fake-systemd").glob("*.json"):
                subprocess.run(
                    ["systemctl", "kill", "--signal=SIGKILL", file.stem],
                    env=self.environment(host),
                    check=False,
                    capture_output=True,
                )


def await_true(
    condition: Callable[[], bool], seconds: float, all_logs: Callable[[], str] = lambda: ""
) -> None:
    """Waits until a condition is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s\n{all_logs()}"
        time.sleep(0.1)
