"""Who looks after a run: one babysitter, held by a generation-matched object in the bucket.

Whoever holds it writes it anew every minute, also while something takes long. A holder that finds
another's word in it has lost the run, and leaves without touching anything; its own word under a
generation that it does not know is a write whose answer was lost. Clocks are not trusted: a lease
is taken over only when it did not change while we watched it, or when its process is gone from this
very machine, since it started.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from tpu.launcher.bucket import Bucket

RENEW_SECONDS = 60
"""From one renewal to the next."""
STALE_SECONDS = 15 * 60
"""A lease of that age, by our clock, is worth watching."""
WATCH_SECONDS = 150
"""How long it is watched: longer than from one renewal to the next, with slow answers."""


class LeaseLost(Exception):
    """Another babysitter has taken the run over."""


class Lease:
    """Held from `take` to `give`."""

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
        self._host, self._pid = _machine(), os.getpid()
        self._holder = f"process {self._pid} on {socket.gethostname()}"
        self._nonce = uuid.uuid4().hex
        self._generation = 0

    def take(self, *, by_force: bool = False) -> None:
        """Takes the lease.

        Raises:
          UserError: another babysitter holds it (named).
        """
        generation = self._bucket.generation(self._url)
        if generation and not by_force:
            self._insist_on_stale(generation)
        try:
            self._write(generation)
        except LeaseLost:
            raise UserError(
                f"another babysitter took {self._url} at the same moment; leave it be"
            ) from None

    def renew(self) -> None:
        """Says that we are still there.

        Raises:
          LeaseLost: someone else has written it.
          UserError: the bucket did not answer; it is not known whether this was written.
        """
        self._write(self._generation)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renews it in a thread meanwhile; that it is lost, the next `renew` tells."""
        over = threading.Event()

        def renew_on() -> None:
            while not self._wait(over, RENEW_SECONDS):
                with contextlib.suppress(LeaseLost, UserError):
                    self.renew()

        thread = threading.Thread(target=renew_on, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def give(self) -> None:
        """Lets go; a lease that is no longer ours is left alone."""
        if self._generation and self._is_ours():
            self._bucket.remove(self._url)

    def _write(self, generation: int) -> None:
        # Refused where another generation is; that may be ours, if its answer never came.
        self._bucket.write(self._url, self._text(), generation)
        # First the generation, then what is there: others never write our word, so both are ours.
        found = self._bucket.generation(self._url)
        if self._bucket.dry:
            return
        if not self._is_ours():
            raise LeaseLost(self._url)
        self._generation = found

    def _is_ours(self) -> bool:
        return self._read().get("nonce") == self._nonce

    def _insist_on_stale(self, generation: int) -> None:
        held = self._read()
        holder, age = str(held.get("holder")), self._clock() - float(held.get("time", 0))
        if self._died_here(held):
            return
        if abs(age) >= STALE_SECONDS:  # old, or from a clock that is far off: look if it moves
            self._sleep(WATCH_SECONDS)
            if self._bucket.generation(self._url) == generation:
                return
        raise UserError(
            f"{holder} looks after this run (last word {max(0.0, age):.0f} s ago); two "
            "would fight. Leave it be, end it there with Ctrl-C, or, if you know that it is dead, "
            "give --take-over"
        )

    def _read(self) -> dict[str, Any]:
        try:
            held = json.loads(self._bucket.read(self._url) or "{}")
        except ValueError:
            return {}
        return held if isinstance(held, dict) else {}

    def _died_here(self, held: dict[str, Any]) -> bool:
        pid = held.get("pid")
        if held.get("host") != self._host or not isinstance(pid, int) or pid == self._pid:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def _text(self) -> str:
        words = {"holder": self._holder, "host": self._host, "pid": self._pid}
        return json.dumps({**words, "nonce": self._nonce, "time": self._clock()}) + "\n"


def _machine() -> str:
    """Where our process ids mean what they say; a name alone may be that of many machines."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{socket.gethostname()} {uuid.getnode():x}"
