"""The systemd unit that trains: started once however often it is asked for, stopped with a save.

The unit outlives the ssh session that starts it, and its name makes a second start a no-op: what
starts it may be repeated by a connection that breaks. systemd ends everything that belongs to it.
"""

import grp
import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.errors import UserError
from tpu import protocol, strict_json
from tpu.worker.host import Host

SAVE_SECONDS = 600
"""From SIGTERM to SIGKILL, for the last checkpoint."""
# What the trainer and the agent are told by variables. Secrets go another way: see secret_manager.
_PREFIXES = ("BERT_JAX_", "BERT_TPU_", "JAX_", "XLA_", "TPU_", "LIBTPU_", "CLOUDSDK_")
_PLAIN = ("HOME", "PATH", "LANG", "USER")
_NEVER = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


@dataclass(frozen=True, kw_only=True)
class UnitState:
    """What systemd says of a unit: "active", "inactive", "failed", ..., and its process."""

    active: str
    pid: int | None

    @property
    def runs(self) -> bool:
        """It has begun and not ended."""
        return self.active in ("active", "activating", "deactivating", "reloading")


def start_command(this: Host, number: int, max_hours: float, agent: Path) -> list[str]:
    """The command that starts the unit."""
    user = pwd.getpwuid(os.getuid()).pw_name
    group = grp.getgrgid(os.getgid()).gr_name
    properties = {
        "KillMode": "mixed",  # SIGTERM to the agent, which passes it on; SIGKILL to all
        "KillSignal": "SIGTERM",
        "TimeoutStopSec": str(SAVE_SECONDS),
        "RuntimeMaxSec": str(round(max_hours * 3600)),  # whatever becomes of everything else
        "Restart": "no",
        "LimitNOFILE": "65536",
        "After": "network-online.target",  # at a shutdown the network outlives the save
        "StandardOutput": "journal",
        "StandardError": "journal",
    }
    return [
        *("sudo", "-n", "systemd-run", f"--uid={user}", f"--gid={group}"),
        *(f"--unit={this.unit}", "--collect", "--quiet"),
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in _environment().items()),
        *("--", sys.executable, str(agent), "unit"),
        *(this.run_url, str(this.incarnation), str(number)),
    ]


def start(this: Host, number: int, max_hours: float, agent: Path) -> str:
    """Starts the unit, unless it runs or has ended; says which.

    Raises:
      UserError: systemd does not start it.
    """
    ended = how_it_ended(this)
    if ended is not None:
        return f"{this.unit} has ended before ({ended.code}: {ended.meaning}); not started again"
    if state(this).runs:
        return f"{this.unit} runs already; not started again"
    done = _run(start_command(this, number, max_hours, agent))
    if done.returncode == 0:
        return f"{this.unit} started as host {number}"
    if state(this).runs:  # somebody was faster
        return f"{this.unit} runs already; not started again"
    raise UserError(f"{this.unit} was not started: {_said(done)}")


def state(this: Host) -> UnitState:
    """What systemd says of the unit.

    Raises:
      UserError: it says nothing.
    """
    done = _run(["systemctl", "show", this.unit, "--property=ActiveState,MainPID"])
    rows = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode != 0 or "ActiveState" not in rows:
        raise UserError(f"systemctl show {this.unit}: {_said(done)}")
    pid = int(rows.get("MainPID") or 0)
    return UnitState(active=rows["ActiveState"], pid=pid or None)


def stop(this: Host) -> str:
    """Asks the unit to save and end, and waits until it has; says how it ended.

    Raises:
      UserError: systemd does not stop it.
    """
    if state(this).runs:
        done = _run(["sudo", "-n", "systemctl", "stop", this.unit])
        if done.returncode != 0 and state(this).runs:
            raise UserError(f"{this.unit} was not stopped: {_said(done)}")
    ended = how_it_ended(this)
    if ended is None:
        return f"{this.unit} does not run"
    return f"{this.unit} has ended ({ended.code}: {ended.meaning})"


def how_it_ended(this: Host) -> protocol.Exit | None:
    """What the unit has left behind at its end; None before that."""
    if not this.exit.exists():
        return None
    return strict_json.from_text(protocol.Exit, this.exit.read_text(), str(this.exit))


def _environment() -> dict[str, str]:
    """What the unit inherits; systemd gives it nothing else."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in _PLAIN or name.startswith(_PREFIXES))
        and not any(word in name.upper() for word in _NEVER)
    }


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is not on PATH: the hosts need systemd") from None


def _said(done: "subprocess.CompletedProcess[str]") -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
