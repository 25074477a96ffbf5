"""Starts and stops the systemd unit that trains.

The unit survives the ssh session that starts it. Its name makes a second start a no-op, so the
start can be repeated after a broken connection. When it ends, systemd kills all its processes.
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
from tpu.worker.host_context import HostContext

SAVE_SECONDS = 600
"""Time between SIGTERM and SIGKILL, for saving the last checkpoint."""
# Environment variables that configure trainer and agent. Secrets never pass through systemd's
# command line: see secret_manager.
_INHERITED_PREFIXES = ("BERT_JAX_", "BERT_TPU_", "JAX_", "XLA_", "TPU_", "LIBTPU_", "CLOUDSDK_")
_INHERITED_NAMES = ("HOME", "PATH", "LANG", "USER")
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


@dataclass(frozen=True, kw_only=True)
class UnitState:
    """Holds the state of a unit ("active", "inactive", "failed", ...) and its process id."""

    active_state: str
    pid: int | None

    @property
    def is_running(self) -> bool:
        """Returns whether the unit has started and not ended."""
        return self.active_state in ("active", "activating", "deactivating", "reloading")


def systemd_run_command(
    context: HostContext, host_number: int, max_hours: float, agent: Path
) -> list[str]:
    """Returns the command that starts the unit."""
    user = pwd.getpwuid(os.getuid()).pw_name
    group = grp.getgrgid(os.getgid()).gr_name
    properties = {
        "KillMode": "mixed",  # SIGTERM goes to the agent, which forwards it; SIGKILL goes to all
        "KillSignal": "SIGTERM",
        "TimeoutStopSec": str(SAVE_SECONDS),
        "RuntimeMaxSec": str(
            round(max_hours * 3600)
        ),  # limits the cost even if everything else fails
        "Restart": "no",
        "LimitNOFILE": "65536",
        "After": "network-online.target",  # keeps the network up until the save is done
        "StandardOutput": "journal",
        "StandardError": "journal",
    }
    return [
        *("sudo", "-n", "systemd-run", f"--uid={user}", f"--gid={group}"),
        *(f"--unit={context.unit_name}", "--collect", "--quiet"),
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in _unit_environment().items()),
        *("--", sys.executable, str(agent), "unit"),
        *(context.run_url, str(context.attempt), str(host_number)),
    ]


def start(context: HostContext, host_number: int, max_hours: float, agent: Path) -> str:
    """Starts the unit unless it is running or has ended; returns a message.

    Raises:
      UserError: systemd does not start it.
    """
    exit_report = read_exit_report(context)
    if exit_report is not None:
        return (
            f"{context.unit_name} has already ended ({exit_report.code}: {exit_report.meaning}); "
            "not started again"
        )
    if unit_state(context).is_running:
        return f"{context.unit_name} is already running; not started again"
    completed = _run(systemd_run_command(context, host_number, max_hours, agent))
    if completed.returncode == 0:
        return f"{context.unit_name} started as host {host_number}"
    if unit_state(context).is_running:  # started by another process in the meantime
        return f"{context.unit_name} is already running; not started again"
    raise UserError(f"{context.unit_name} was not started: {_error_line(completed)}")


def unit_state(context: HostContext) -> UnitState:
    """Returns the state of the unit.

    Raises:
      UserError: systemctl fails.
    """
    completed = _run(["systemctl", "show", context.unit_name, "--property=ActiveState,MainPID"])
    values = dict(line.split("=", 1) for line in completed.stdout.splitlines() if "=" in line)
    if completed.returncode != 0 or "ActiveState" not in values:
        raise UserError(f"systemctl show {context.unit_name}: {_error_line(completed)}")
    pid = int(values.get("MainPID") or 0)
    return UnitState(active_state=values["ActiveState"], pid=pid or None)


def stop(context: HostContext) -> str:
    """Stops the unit, which saves first, and waits until it has ended; returns a message.

    Raises:
      UserError: systemd does not stop it.
    """
    if unit_state(context).is_running:
        completed = _run(["sudo", "-n", "systemctl", "stop", context.unit_name])
        if completed.returncode != 0 and unit_state(context).is_running:
            raise UserError(f"{context.unit_name} was not stopped: {_error_line(completed)}")
    exit_report = read_exit_report(context)
    if exit_report is None:
        return f"{context.unit_name} is not running"
    return f"{context.unit_name} has ended ({exit_report.code}: {exit_report.meaning})"


def read_exit_report(context: HostContext) -> protocol.ExitReport | None:
    """Returns the exit report of the unit; None if it has not ended."""
    if not context.exit_file.exists():
        return None
    return strict_json.from_text(
        protocol.ExitReport, context.exit_file.read_text(), str(context.exit_file)
    )


def _unit_environment() -> dict[str, str]:
    """Returns the variables that the unit inherits from this process; none of them is a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in _INHERITED_NAMES or name.startswith(_INHERITED_PREFIXES))
        and not any(word in name.upper() for word in _SECRET_WORDS)
    }


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is not on PATH: the hosts need systemd") from None


def _error_line(completed: "subprocess.CompletedProcess[str]") -> str:
    lines = (completed.stderr or completed.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {completed.returncode}"
