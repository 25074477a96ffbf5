"""Makes sure that one launcher manages a run, with a lease object in the bucket.

All writes are conditional on the object's generation. The holder renews the lease every minute,
also while an action takes long. A holder that finds another launcher's nonce in the object has lost
the run and exits without touching anything. If it finds its own nonce under an unknown generation,
its write succeeded but the response was lost.

Clocks of other machines are not trusted. A lease is taken over only if it did not change while it
was watched, or if its process ran on this machine since its last boot and no longer exists.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io.parent_process import is_running
from tpu.launcher.cloud.bucket import Bucket

RENEW_SECONDS = 60
"""Time between two renewals."""
STALE_SECONDS = 15 * 60
"""A lease that is older than this, by our clock, is watched to see whether it is still renewed."""
WATCH_SECONDS = 150
"""How long it is watched: longer than the time between two renewals over a slow connection."""


class LeaseLost(Exception):
    """Reports that another launcher has taken the run over."""


class Lease:
    """Holds the lease of a run from `acquire` to `release`."""

    def __init__(
        self,
        bucket: Bucket,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ):
        self._bucket, self._url = bucket, url
        self._clock, self._sleep, self._wait = clock, sleep, wait
        self._machine, self._pid = _machine_id(), os.getpid()
        self._holder = f"process {self._pid} on {socket.gethostname()}"
        self._nonce = uuid.uuid4().hex
        self._generation = 0

    def acquire(self, *, force: bool = False) -> None:
        """Acquires the lease.

        Raises:
          UserError: another launcher holds it; the message names it.
        """
        generation = self._bucket.generation(self._url)
        if generation and not force:
            self._require_stale(generation)
        try:
            self._write(generation)
        except LeaseLost:
            raise UserError(
                f"another launcher acquired {self._url} at the same moment and manages the run now"
            ) from None

    def renew(self) -> None:
        """Renews the lease.

        Raises:
          LeaseLost: another launcher has acquired it.
          UserError: the bucket did not respond; the lease may or may not have been written.
        """
        self._write(self._generation)

    @contextlib.contextmanager
    def renewing(self) -> Generator[None]:
        """Renews the lease in a thread; if it gets lost, the next call of `renew` raises."""
        finished = threading.Event()

        def renew_periodically() -> None:
            while not self._wait(finished, RENEW_SECONDS):
                with contextlib.suppress(LeaseLost, UserError):
                    self.renew()

        thread = threading.Thread(target=renew_periodically, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def release(self) -> None:
        """Releases the lease, unless another launcher has acquired it."""
        if self._generation and self._is_held():
            self._bucket.remove(self._url)

    def _write(self, generation: int) -> None:
        # Fails if the generation differs. That generation may be our own, if the response to an
        # earlier write was lost; so the result of this write does not matter.
        self._bucket.write(self._url, self._serialize(), generation)
        # Read the generation before the content: only we write our nonce, so if it is still there
        # afterwards, the generation is ours, too.
        found_generation = self._bucket.generation(self._url)
        if self._bucket.dry:
            return
        if not self._is_held():
            raise LeaseLost(self._url)
        self._generation = found_generation

    def _is_held(self) -> bool:
        return self._read_lease().get("nonce") == self._nonce

    def _require_stale(self, seen_generation: int) -> None:
        lease = self._read_lease()
        holder, age = str(lease.get("holder")), self._clock() - float(lease.get("time", 0))
        if self._holder_is_dead(lease):
            return
        if abs(age) >= STALE_SECONDS:  # old, or written by a clock that is far off
            self._sleep(WATCH_SECONDS)
            if self._bucket.generation(self._url) == seen_generation:
                return
        raise UserError(
            f"another launcher manages this run: {holder} (last renewed {max(0.0, age):.0f} s "
            "ago). Let it continue or stop it there with Ctrl-C; if you are sure that it is dead, "
            "pass --force-lease"
        )

    def _read_lease(self) -> dict[str, Any]:
        try:
            lease = json.loads(self._bucket.read(self._url) or "{}")
        except ValueError:
            return {}
        return lease if isinstance(lease, dict) else {}

    def _holder_is_dead(self, lease: dict[str, Any]) -> bool:
        pid = lease.get("pid")
        if lease.get("host") != self._machine or not isinstance(pid, int) or pid == self._pid:
            return False
        return not is_running(pid)

    def _serialize(self) -> str:
        fields = {"holder": self._holder, "host": self._machine, "pid": self._pid}
        return json.dumps({**fields, "nonce": self._nonce, "time": self._clock()}) + "\n"


def _machine_id() -> str:
    """Identifies this machine and boot: a pid is only valid there, and hostnames repeat."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot_id} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{socket.gethostname()} {uuid.getnode():x}"
