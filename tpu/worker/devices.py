"""The chips of a host, who holds them, and the lock file that a killed process leaves behind.

As a program, `python3 devices.py FILE...` prints the processes that hold these files as JSON; run
by root it sees everybody's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def chips(dev: Path) -> list[Path]:
    """The device files of the chips: /dev/vfio/<number>, or /dev/accel<number> where older."""
    vfio = [path for path in dev.glob("vfio/*") if path.name.isdecimal()]
    accel = [path for path in dev.glob("accel*") if path.name.removeprefix("accel").isdecimal()]
    return sorted(vfio or accel)


def holders(files: list[Path]) -> dict[int, str] | None:
    """Process -> its command line, of those that hold one of the files; None if not all was seen.

    Asks as root where that is possible without a password.
    """
    command = [sys.executable, __file__, *map(str, files)]
    try:
        done = subprocess.run(
            ["sudo", "-n", *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
        if done.returncode == 0:
            return {int(pid): name for pid, name in json.loads(done.stdout).items()}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        pass
    return look(files) or None


def look(files: list[Path]) -> dict[int, str]:
    """As `holders`, of the processes that this one may look into."""
    wanted, found = {str(path.resolve()) for path in files}, {}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            targets = {os.readlink(link) for link in (process / "fd").iterdir()}
            if targets & wanted:
                words = (process / "cmdline").read_bytes().split(b"\0")
                found[int(process.name)] = b" ".join(words[:4]).decode(errors="replace").strip()
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def remove_lockfile(file: Path) -> str | None:
    """Removes libtpu's lock file, which nobody may hold any more; why that failed, or None."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        done = subprocess.run(
            ["sudo", "-n", "rm", "-f", str(file)], stdin=subprocess.DEVNULL, capture_output=True
        )
        return None if done.returncode == 0 else error.strerror
    return None


if __name__ == "__main__":
    print(json.dumps(look([Path(name) for name in sys.argv[1:]])))
