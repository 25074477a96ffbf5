"""Handles SIGTERM and Ctrl-C: finish the current step, save a checkpoint, exit with code 75.

A single process installs its own signal handlers. Several processes use JAX's preemption service:
one of them receives SIGTERM, and the service chooses a step after which all of them stop.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Generator, Iterable
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

EXIT_DONE = 0
EXIT_USER_ERROR = 1
# EX_SOFTWARE of sysexits.h: a step, save or evaluation hung (`watchdog.py`). It was not saved; the
# same command resumes from the newest checkpoint.
EXIT_HUNG = 70
# EX_TEMPFAIL of sysexits.h: stopped on request and saved; the same command resumes.
EXIT_PREEMPTED = 75
# Each process logs "<START_MESSAGE> step N" before training and "<SAVED_MESSAGE> step N" when it
# stops on request. `simulate/simulated_host.py` and the tests of `tpu/` parse these lines.
START_MESSAGE, SAVED_MESSAGE = "begins after", "saved"


@contextlib.contextmanager
def signal_handlers(
    signals: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """Installs `handler` for these signals and restores the previous handlers on exit."""
    previous = {signum: signal.signal(signum, handler) for signum in signals}
    try:
        yield
    finally:
        for signum, previous_handler in previous.items():
            signal.signal(signum, previous_handler)


class Preemption:
    """Records requests to stop while its `with` block is active.

    The first SIGTERM or SIGINT is recorded for `should_stop`; a second SIGINT raises
    KeyboardInterrupt immediately. Leaving the block restores the previous signal handlers. Enter it
    on the main thread, after `bert_jax.parallel.processes.initialize`.
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
        """Returns whether to save a checkpoint now and stop.

        Every process must call this exactly once after every step.
        """
        if self._is_distributed:
            # The preemption service stops all processes at the number after the highest one it has
            # received. It starts counting at 0, so it gets the number of calls in this process: a
            # run resumed at step 1000 would never reach step 1.
            self._num_calls += 1
            return multihost_utils.reached_preemption_sync_point(self._num_calls)
        return self._requested

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._requested = True
        name = signal.Signals(signum).name
        # Not `print` or `logging`: the signal may have interrupted one, and they are not reentrant.
        os.write(2, f"\n{name}: will save a checkpoint after this step and exit\n".encode())
        if signum == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._is_distributed:
                os.kill(os.getpid(), signal.SIGTERM)
