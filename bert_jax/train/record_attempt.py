"""Records the start and the end of this training process, and writes the report at its end."""

import contextlib
import logging
import math
from pathlib import Path
from types import TracebackType
from typing import Self

import jax

from bert_jax.errors import UserError
from bert_jax.params import paths
from bert_jax.report.run_report import write_report
from bert_jax.runs.attempt_log import AttemptLog, Outcome
from bert_jax.train.step import TrainSetup
from bert_jax.train.workloads.base import Source

logger = logging.getLogger(__name__)


class RecordedAttempt:
    """Records the start and the end of this process in `attempts.jsonl`; a context manager.

    The caller calls `end` when training ends; an error that leaves the `with` block is recorded
    without it. Both write the report. Only JAX's process 0 writes; on the others nothing happens.

    Args:
      setup: its number of parameters is recorded.
      source: its description of the data is recorded.
      folder: the run folder.
      start_step: number of optimizer updates done before this attempt.
      started_at: `time.monotonic()` at the start of the process.
    """

    def __init__(
        self, setup: TrainSetup, source: Source, folder: Path, start_step: int, started_at: float
    ):
        self._folder, self._log = folder, None
        if jax.process_index() == 0:
            leaves = jax.tree.leaves(paths.without_auxiliary_networks(setup.abstract["params"]))
            self._log = AttemptLog(
                folder,
                started_at=started_at,
                step=start_step,
                num_parameters=sum(math.prod(leaf.shape) for leaf in leaves),
                data=source.describe_data(),
            )

    def end(self, outcome: Outcome, message: str = "") -> None:
        """Records how the process ends, and writes the report."""
        if self._log is None:
            return
        self._log.end(outcome, message)
        self._log = None  # nothing is recorded after the end
        try:
            write_report(self._folder)
        except UserError as error:
            logger.warning("the report of the run could not be written: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Records an error that ends the training."""
        if error is None:
            return
        # Only messages that are meant for users; the traceback of any other error is on the screen.
        message = str(error) if isinstance(error, UserError) else type(error).__name__
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            self.end("failed", message)
