"""Defines the one log handler: messages and status go to stderr, results of a command to stdout.

Modules call `logging.getLogger(__name__)`; the command lines call `set_up_logging` once. A program
that imports bert_jax as a library configures `logging` itself. `print` is for the results of a
command; `tests/architecture_test.py` lists the modules that may call it.
"""

import contextlib
import logging
import sys


class StderrHandler(logging.Handler):
    """Writes each log record to the current `sys.stderr`, above any progress bar of tqdm.

    The stream is looked up for each record, because tests and notebooks replace `sys.stderr`.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record as a line."""
        # A run must not end because its terminal was closed, the program that read its messages has
        # exited, or the disk with its log is full.
        with contextlib.suppress(OSError):
            self._write(self.format(record))

    def _write(self, line: str) -> None:
        # A bar can only be visible if tqdm was imported; importing it here would slow `--help`.
        if "tqdm" in sys.modules:
            sys.modules["tqdm"].tqdm.write(line, file=sys.stderr)
            sys.stderr.flush()
        else:
            print(line, file=sys.stderr, flush=True)


def set_up_logging(package: str = "bert_jax", *, with_time: bool = False) -> None:
    """Shows the log messages of a package from level INFO on stderr, one line each.

    Args:
      package: the name of the logger, which is the package's.
      with_time: whether each line starts with the local time, for commands that run for hours.
    """
    package_logger = logging.getLogger(package)
    package_logger.setLevel(logging.INFO)
    # Libraries may add a handler to the root logger, which would show each line a second time.
    package_logger.propagate = False
    if any(isinstance(handler, StderrHandler) for handler in package_logger.handlers):
        return
    handler = StderrHandler()
    if with_time:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    package_logger.addHandler(handler)
