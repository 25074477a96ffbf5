"""Fakes hosts of a slice as folders on this machine; commands run as local processes.

    hosts/NODE-I/         $HOME
          metadata/...    values of the metadata server, as files
Processes of a host have FAKE_HOST=NODE-I in their environment.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers.tpu.fake_gcloud.parsing import CloudError
from tests.helpers.tpu.fake_gcloud.script import Script

REPEATS = 10  # how often the real gcloud repeats a remote command whose connection broke
BIN = Path(__file__).resolve().parent.parent / "bin"
WORKER_BIN = Path(__file__).resolve().parent.parent / "worker_bin"


def address(number: int) -> str:
    """Returns a host's address; all are addresses of this machine."""
    return f"127.0.0.{2 + number}"


def prepare(root: Path, node: str, hosts: int) -> None:
    """Creates the folders of new hosts; nothing is left of an earlier node with that name."""
    for number in range(hosts):
        home = root / "hosts" / f"{node}-{number}"
        shutil.rmtree(home, ignore_errors=True)
        set_metadata(home, "instance/attributes/agent-worker-number", str(number))
        set_metadata(home, "instance/network-interfaces/0/ip", address(number))
        set_metadata(home, "instance/preempted", "FALSE")
        set_metadata(home, "instance/maintenance-event", "NONE")


def set_metadata(home: Path, key: str, value: str) -> None:
    """Sets a value of a host's metadata server."""
    file = home / "metadata" / "computeMetadata" / "v1" / key
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value)


def notify(root: Path, node: str, hosts: int) -> None:
    """Sends the preemption notice to the hosts of a node."""
    for number in range(hosts):
        set_metadata(root / "hosts" / f"{node}-{number}", "instance/preempted", "TRUE")


def run(root: Path, script: Script, node: str, number: int, command: str) -> int:
    """Runs a command on a host like ssh, repeated like gcloud does when the connection breaks."""
    for _ in range(1 + REPEATS):
        drop = script.drops(command, number)
        code = 255
        if drop is None or drop.get("ran", False):
            code = _once(root, node, number, command)
        if drop is None:
            if code:
                print(
                    f"##### Command execution on worker {number} failed with exit status {code}. "
                    "Continuing.",
                    file=sys.stderr,
                )
            return code
    raise CloudError("[/usr/bin/ssh] exited with return code [255].", 255)


def kill(root: Path, node: str) -> None:
    """Kills all processes on the hosts of a node at once."""
    home = str(root / "hosts")
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        is_of_node = any(word.startswith(f"HOME={home}/{node}-") for word in words)
        if is_of_node and any(word.startswith(f"FAKE_HOST={node}-") for word in words):
            try:
                os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


def environment(root: Path, node: str, number: int) -> dict[str, str]:
    """Returns the variables of a process on a host; keeps BERT_TPU_* that are already set."""
    home = root / "hosts" / f"{node}-{number}"
    return {
        "BERT_TPU_MOUNT": str(root / "gcs"),
        **os.environ,
        "BERT_TPU_METADATA": f"file://{home}/metadata",
        "FAKE_CLOUD": str(root),
        "FAKE_HOST": f"{node}-{number}",
        "HOME": str(home),
        "PATH": f"{WORKER_BIN}:{BIN}:{os.environ['PATH']}",
    }


def _once(root: Path, node: str, number: int, command: str) -> int:
    home = root / "hosts" / f"{node}-{number}"
    home.mkdir(parents=True, exist_ok=True)
    with (root / "ssh.log").open("a") as log:
        log.write(f"{time.time():.3f} {node}-{number} {command}\n")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=home,
        env=environment(root, node, number),
        stdin=subprocess.DEVNULL,
    )
    return done.returncode if done.returncode >= 0 else 128 - done.returncode
