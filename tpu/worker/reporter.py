"""A host's reports: its state and log every half minute, while the run folder is mirrored."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bert_jax.errors import UserError
from tpu import protocol, strict_json
from tpu.protocol import Exit, Phase, State
from tpu.worker import storage
from tpu.worker.host import Host
from tpu.worker.log import Log


class Reporter:
    """Reports in a thread of its own from `begin` on; `end` makes the last report.

    A report that cannot be delivered is said in the log, and made again the next time.

    Args:
      every: seconds from one report to the next.
    """

    def __init__(self, this: Host, number: int, log: Log, every: float):
        self._this, self._number, self._log, self._every = this, number, log, every
        self.phase: Phase = "fetching"
        self.pids: list[int] = []
        self.mirror: Callable[[], None] = lambda: None
        self.progress: Callable[[], int | None] = lambda: None
        self.besides: Callable[[], None] = lambda: None
        self._over = threading.Event()
        self._reporting = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="reporter", daemon=True)

    def begin(self) -> None:
        """The first report at once, and then one after the other."""
        self._thread.start()

    def enter(self, phase: Phase) -> None:
        """The state, now."""
        self.phase = phase
        with self._reporting:
            self._try("state", self._write_state)

    def end(self, code: int) -> None:
        """Mirrors all, and says how it ended: what is said then is true in the bucket."""
        self._over.set()
        self._thread.join()
        self.phase, self.pids = "ended", []
        said = protocol.meaning(code)
        self._log.say(f"host {self._number} ends with code {code}: {said}")
        self._report()
        self.say_exit(code, said)

    def say_exit(self, code: int, said: str) -> None:
        """The last object of a host's life; nothing else is said in it."""
        ended = Exit(host=self._number, code=code, meaning=said, time=time.time())
        text = strict_json.to_text(ended)
        self._this.exit.write_text(text, encoding="utf-8")
        self._try("exit", lambda: storage.write(self._this.folder.exit(self._number), text))

    def _beat(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            self._report()
            self._try("watch", self.besides)
            self._over.wait(max(0.0, begun + self._every - time.monotonic()))

    def _report(self) -> None:
        with self._reporting:
            self._try("run folder", self.mirror)
            self._try("state", self._write_state)
            if self._log.file.exists():
                target = self._this.folder.log(self._number)
                self._try("log", lambda: storage.copy(self._log.file, target))

    def _write_state(self) -> None:
        state = State(
            host=self._number,
            phase=self.phase,
            pid=self.pids[0] if self.pids else None,
            line=self._log.last,
            step=self.progress(),
            rss_bytes=_resident(self.pids),
            disk_free_bytes=shutil.disk_usage(self._this.work).free,
            time=time.time(),
        )
        storage.write(self._this.folder.state(self._number), strict_json.to_text(state))

    def _try(self, what: str, report: Callable[[], None]) -> None:
        try:
            report()
        except (UserError, OSError) as error:
            self._log.say(f"{what} not reported: {error}")


def _resident(roots: list[int]) -> int:
    """Bytes of memory of these processes and all that they have started."""
    parents, sizes = {}, {}
    page = os.sysconf("SC_PAGE_SIZE")
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                # The name in brackets may hold anything, so from its end on.
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(process.name)] = int(fields[1])
            sizes[int(process.name)] = int(fields[21]) * page
    ours = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(sizes.get(pid, 0) for pid in ours)
