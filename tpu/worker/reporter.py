"""Writes a host's heartbeat and log to the bucket every half minute, and copies the run folder."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bert_jax.errors import UserError
from tpu import protocol, strict_json
from tpu.protocol import ExitReport, Heartbeat, HostPhase
from tpu.worker import storage
from tpu.worker.host_context import HostContext
from tpu.worker.log import HostLog


class Reporter:
    """Reports periodically in a thread from `start` on; `finish` makes the last report.

    A report that fails is logged and repeated the next time.

    Attributes:
      mirror: copies the run folder to the bucket.
      progress: returns the `step` of the heartbeat.
      also_check: called after each report.
    """

    def __init__(
        self, context: HostContext, host_number: int, log: HostLog, heartbeat_seconds: float
    ):
        self._context, self._host_number = context, host_number
        self._log, self._heartbeat_seconds = log, heartbeat_seconds
        self.phase: HostPhase = "fetching"
        self.pids: list[int] = []
        self.mirror: Callable[[], None] = lambda: None
        self.progress: Callable[[], int | None] = lambda: None
        self.also_check: Callable[[], None] = lambda: None
        self._finished = threading.Event()
        self._report_lock = threading.Lock()
        self._thread = threading.Thread(target=self._report_loop, name="reporter", daemon=True)

    def start(self) -> None:
        """Starts the thread; the first report is made at once."""
        self._thread.start()

    def set_phase(self, phase: HostPhase) -> None:
        """Sets the phase and writes a heartbeat at once."""
        self.phase = phase
        with self._report_lock:
            self._log_errors("state", self._write_heartbeat)

    def finish(self, code: int) -> None:
        """Copies everything, then writes the exit report, so that it is true in the bucket."""
        self._finished.set()
        self._thread.join()
        self.phase, self.pids = "ended", []
        meaning = protocol.describe_exit_code(code)
        self._log.info(f"host {self._host_number} ends with code {code}: {meaning}")
        self._report()
        self.write_exit_report(code, meaning)

    def write_exit_report(self, code: int, meaning: str) -> None:
        """Writes the exit report, which is the last object that a host writes in an attempt."""
        exit_report = ExitReport(
            host=self._host_number, code=code, meaning=meaning, time=time.time()
        )
        text = strict_json.to_text(exit_report)
        self._context.exit_file.write_text(text, encoding="utf-8")
        self._log_errors(
            "exit",
            lambda: storage.write(
                self._context.attempt_folder.exit_report(self._host_number), text
            ),
        )

    def _report_loop(self) -> None:
        while not self._finished.is_set():
            started_at = time.monotonic()
            self._report()
            self._log_errors("watch", self.also_check)
            self._finished.wait(max(0.0, started_at + self._heartbeat_seconds - time.monotonic()))

    def _report(self) -> None:
        with self._report_lock:
            self._log_errors("run folder", self.mirror)
            self._log_errors("state", self._write_heartbeat)
            if self._log.path.exists():
                target = self._context.attempt_folder.log(self._host_number)
                self._log_errors("log", lambda: storage.copy(self._log.path, target))

    def _write_heartbeat(self) -> None:
        heartbeat = Heartbeat(
            host=self._host_number,
            phase=self.phase,
            pid=self.pids[0] if self.pids else None,
            last_log_line=self._log.last_line,
            step=self.progress(),
            rss_bytes=_resident_bytes(self.pids),
            disk_free_bytes=shutil.disk_usage(self._context.workdir).free,
            time=time.time(),
        )
        storage.write(
            self._context.attempt_folder.heartbeat(self._host_number),
            strict_json.to_text(heartbeat),
        )

    def _log_errors(self, description: str, action: Callable[[], None]) -> None:
        try:
            action()
        except (UserError, OSError) as error:
            self._log.info(f"{description} not reported: {error}")


def _resident_bytes(roots: list[int]) -> int:
    """Returns the resident memory of these processes and their descendants, in bytes."""
    parents, sizes = {}, {}
    page_size = os.sysconf("SC_PAGE_SIZE")
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                # The name in brackets may hold anything, so from its end on.
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(process.name)] = int(fields[1])
            sizes[int(process.name)] = int(fields[21]) * page_size
    descendants = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in descendants} - descendants:
        descendants |= more
    return sum(sizes.get(pid, 0) for pid in descendants)
