"""SIGTERM and Ctrl-C as a request: finish this step, save, leave with an exit code of its own.

One process listens itself. Several processes use JAX's preemption service, which catches SIGTERM
on whichever process gets it and names one step at which all of them stop together.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

EXIT_DONE = 0
EXIT_USER_ERROR = 1
EXIT_USAGE = 2
# EX_SOFTWARE of sysexits.h: a step, save or evaluation hung (`watchdog.py`). Nothing was saved at
# that moment; the same command goes on from the newest checkpoint.
EXIT_HUNG = 70
# EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command goes on from here.
EXIT_PREEMPTED = 75
# What each process says when it begins and when it has saved and leaves, before " step N": whoever
# supervises several processes sees by these lines whether they agree.
START_MESSAGE, SAVED_MESSAGE = "begins after", "saved"


@contextlib.contextmanager
def signal_handlers(
    signals: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Lets `note` have these signals; the handlers that were there before come back at the end."""
    previous = {signum: signal.signal(signum, handler) for signum in signals}
    try:
        yield
    finally:
        for signum, previous_handler in previous.items():
            signal.signal(signum, previous_handler)


class Preemption:
    """Listens while it is entered: `with Preemption() as preemption: ... preemption.reached()`.

    The first SIGTERM or SIGINT is noted; a second SIGINT stops at once. Handlers that were there
    before come back on leaving. Enter it on the main thread, after `distributed.initialize`.
    """

    def __init__(self) -> None:
        self._requested = False
        self._num_calls = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Preemption":
        self._is_distributed = jax.process_count() > 1
        # JAX's own SIGTERM handler must stay in place for the processes to stop together.
        signals = (signal.SIGINT,) if self._is_distributed else (signal.SIGTERM, signal.SIGINT)
        self._stack.enter_context(signal_handlers(signals, self._on_signal))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def should_stop(self) -> bool:
        """Whether to save now and leave; every process calls it after every step."""
        if self._is_distributed:
            # The service takes the number after the highest that it has been told, and waits for
            # that very one; a run that goes on at step 1000 would never come to its 1.
            self._num_calls += 1
            return multihost_utils.reached_preemption_sync_point(self._num_calls)
        return self._requested

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._requested = True
        name = signal.Signals(signum).name
        # os.write, because a print that the signal interrupted cannot be entered again.
        os.write(2, f"\n{name}: saving after this step, then leaving\n".encode())
        if signum == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._is_distributed:
                os.kill(os.getpid(), signal.SIGTERM)
