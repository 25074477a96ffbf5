"""Finds the TPU chips of a host, the processes that use them, and libtpu's stale lock file.

As a program, `python3 devices.py FILE...` prints the processes that have these files open as JSON;
as root it sees the processes of all users.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def list_chips(dev: Path) -> list[Path]:
    """Returns the chips' device files: /dev/vfio/<number>, or /dev/accel<number> on old images."""
    vfio = [path for path in dev.glob("vfio/*") if path.name.isdecimal()]
    accel = [path for path in dev.glob("accel*") if path.name.removeprefix("accel").isdecimal()]
    return sorted(vfio or accel)


def find_holders(files: list[Path]) -> dict[int, str] | None:
    """Returns {pid: command line} of processes with one of the files open; None if unknown.

    Uses sudo if it needs no password, because other users' processes are invisible otherwise.
    """
    command = [sys.executable, __file__, *map(str, files)]
    try:
        completed = subprocess.run(
            ["sudo", "-n", *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
        if completed.returncode == 0:
            return {int(pid): name for pid, name in json.loads(completed.stdout).items()}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        pass
    return scan_processes(files) or None


def scan_processes(files: list[Path]) -> dict[int, str]:
    """Returns the same for the processes that this process may inspect."""
    device_paths, found = {str(path.resolve()) for path in files}, {}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            targets = {os.readlink(link) for link in (process / "fd").iterdir()}
            if targets & device_paths:
                argv = (process / "cmdline").read_bytes().split(b"\0")
                found[int(process.name)] = b" ".join(argv[:4]).decode(errors="replace").strip()
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


def remove_lockfile(file: Path) -> str | None:
    """Removes libtpu's stale lock file; returns an error message, or None on success."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        completed = subprocess.run(
            ["sudo", "-n", "rm", "-f", str(file)], stdin=subprocess.DEVNULL, capture_output=True
        )
        return None if completed.returncode == 0 else error.strerror
    return None


if __name__ == "__main__":
    print(json.dumps(scan_processes([Path(name) for name in sys.argv[1:]])))
