"""Ends a subprocess when its parent process ends, however that was killed.

Without this, the workers of a process that received SIGKILL or SIGHUP would run on and keep their
memory, and simulated hosts would train on.
"""

import os
import threading
import time

VARIABLE = "BERT_JAX_EXIT_WITH_PARENT"
"""Environment variable that makes a bert_jax command exit with the process that is named there."""
EXIT_CODE = 1
_POLL_SECONDS = 0.5


def exit_with_parent() -> None:
    """Starts a thread that ends this process when its parent ends.

    The parent is the one of `multiprocessing`, or the process id in `VARIABLE`. Without either it
    does nothing.
    """
    import multiprocessing  # not needed by `--help`, and slow to import

    parent = multiprocessing.parent_process()
    text = os.environ.pop(VARIABLE, "")  # removed, so that subprocesses do not look for it
    pid = parent.pid if parent is not None else int(text) if text.isdigit() else None
    if pid is not None:
        threading.Thread(target=_watch, args=(pid,), daemon=True, name="exit with parent").start()


def environment_of_child() -> dict[str, str]:
    """Returns the variable that makes a bert_jax subprocess end with this process."""
    return {VARIABLE: str(os.getpid())}


def _watch(parent_pid: int) -> None:
    is_child = os.getppid() == parent_pid  # not if a shell or a wrapper is between the two
    # A child compares the parent's id, which changes when the parent ends. A process id may be
    # given to another process soon after, which `is_running` would not notice.
    while os.getppid() == parent_pid if is_child else is_running(parent_pid):
        time.sleep(_POLL_SECONDS)
    os._exit(EXIT_CODE)  # without clean-up, which could wait for the parent


def is_running(pid: int) -> bool:
    """Returns whether a process of this host runs."""
    try:
        os.kill(pid, 0)  # signal 0 only checks that it exists
    except PermissionError:
        return True  # it belongs to another user
    except (ProcessLookupError, OverflowError):
        return False
    return True
