"""Runs functions that write files in several processes."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from bert_jax.errors import UserError
from bert_jax.io.parent_process import exit_with_parent

_POLL_SECONDS = 0.1


class Workers:
    """Runs tasks in processes that start with the first task and stay until the `with` block ends.

    A task is a function that writes one file, atomically, whose bytes depend on its arguments only.
    So it does not matter which process runs it, nor when, and a file that exists is not written
    again: this is how a stopped run continues.
    """

    def __init__(self, num_workers: int):
        self.num_workers = num_workers
        self._pool: ProcessPoolExecutor | None = None
        self._stop: Any = None  # a flag in shared memory

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            if error is not None:
                self._stop.value = True  # otherwise `shutdown` waits for the tasks that run
            self._pool.shutdown(wait=True, cancel_futures=True)

    def write_files(
        self,
        function: Callable[..., None],
        tasks: Mapping[Path, tuple[Any, ...]],
        *,
        description: str,
        sizes: Mapping[Path, int] | None = None,
    ) -> None:
        """Calls `function(path, *arguments)` for each path that does not exist.

        Args:
          function: must be importable, because processes receive it by name.
          tasks: the arguments by path.
          description: for the progress bar.
          sizes: bytes of input by path. The progress bar counts them, and the largest task starts
            first, so that no single process is busy with it at the end.

        Raises:
          UserError: a worker process was killed, or what `function` raises.
        """
        missing = [path for path in tasks if not path.exists()]
        size_of = dict.fromkeys(tasks, 1) if sizes is None else sizes
        total = sum(size_of[path] for path in missing)
        unit, unit_scale = ("it", False) if sizes is None else ("B", True)
        with tqdm(
            desc=description, total=total, unit=unit, unit_scale=unit_scale, disable=None
        ) as bar:
            if min(self.num_workers, len(missing)) <= 1:
                for path in missing:
                    function(path, *tasks[path])
                    bar.update(size_of[path])
                return
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                # Not an Event: to set it would wait for processes that a signal has ended.
                self._stop = context.RawValue("b", False)
                self._pool = ProcessPoolExecutor(
                    self.num_workers, context, initializer=_start_worker, initargs=(self._stop,)
                )
            missing.sort(key=lambda path: -size_of[path])
            try:
                futures = {self._pool.submit(function, p, *tasks[p]): p for p in missing}
                for future in as_completed(futures):
                    future.result()
                    bar.update(size_of[futures[future]])
            except BrokenProcessPool:
                raise UserError(
                    "a worker process was killed, perhaps because memory ran out. Finished work is "
                    "kept: run the same command again with fewer --workers"
                ) from None


def _start_worker(stop: Any) -> None:
    """Initializes a worker process, which ends with its parent or when `stop` is set.

    Only the parent process handles Ctrl-C: each worker would print a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    threading.Thread(target=_exit_at, args=(stop,), daemon=True, name="exit at stop").start()


def _exit_at(stop: Any) -> None:
    while not stop.value:
        time.sleep(_POLL_SECONDS)
    os._exit(1)  # the files of a task are written atomically
